"""Runs child processes and serialises data between them and their parent.

Must not know jobs, workers or models; never imports torch.
"""
