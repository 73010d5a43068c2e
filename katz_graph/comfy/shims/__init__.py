"""Holds modules under the names that packs import them by. Only the import finder loads them."""
