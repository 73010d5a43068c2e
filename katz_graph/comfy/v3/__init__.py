"""Runs ComfyUI V3 nodes, which are classes with a schema. Packs import `inputs`, `schema` and `ui`;
`adapter` builds the node types.
"""
