"""Makes live modules of recipes, declares their stages, and keeps them within a device's memory.

Must not know of requests, workers and nodes.
"""
