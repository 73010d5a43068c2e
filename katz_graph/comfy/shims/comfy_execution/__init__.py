"""`comfy_execution` as packs import it."""
