"""Nodes as classes with a schema: `inputs`, `schema` and `ui` are what packs import, `adapter`
makes node types of them.
"""
