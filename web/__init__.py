"""Serves workflows: HTTP, websockets, the durable queue, and the runner process below it.

Must not import a model library, but for `runner`.
"""
