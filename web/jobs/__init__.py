"""Queues jobs: takes them in, keeps them on disk, orders, dispatches and predicts them.

Must not know HTTP and what runs jobs.
"""
