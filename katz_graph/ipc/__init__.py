"""Runs child processes and packs what passes between them and their parent.

Knows nothing of jobs, workers and models; never imports torch.
"""
