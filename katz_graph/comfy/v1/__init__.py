"""Adapts packs with `NODE_CLASS_MAPPINGS` to node types. Must not know the executor."""
