"""Computes on one device: models in memory, a fair queue of requests, instruction lists. Must not
know the driver's other workers.
"""
