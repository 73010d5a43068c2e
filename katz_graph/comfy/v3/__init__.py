"""Runs ComfyUI V3 nodes, which are classes with a schema: packs import `inputs`, `schema` and `ui`,
and `adapter` makes node types.
"""
