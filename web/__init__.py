"""Serves workflows: HTTP, websockets, the durable queue, and the runner process.

Must not import a model library, except in `runner`.
"""
