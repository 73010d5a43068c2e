"""Queues jobs: admits, stores, orders, dispatches and predicts them.

Must not know HTTP or the implementation that runs jobs.
"""
