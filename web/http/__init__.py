"""Secures, parses and answers HTTP requests. Must not know the meaning of jobs."""
