"""The queue of jobs: taken in, kept on disk, put in order, dispatched, predicted.

Must not know of HTTP and of what runs jobs.
"""
