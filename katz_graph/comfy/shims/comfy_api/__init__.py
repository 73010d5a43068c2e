"""Provides `comfy_api` to packs."""
