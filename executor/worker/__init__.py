"""Serves one device: its models, its instruction lists, and the reports about them. Must not know
the driver's other workers.
"""
