"""Runs child processes and packs the data between them and their parent.

Must not know jobs, workers and models; never imports torch.
"""
