"""`comfy_api` as packs import it."""
