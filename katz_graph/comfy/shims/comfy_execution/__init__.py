"""Provides `comfy_execution` to packs."""
