"""Guards, reads and answers HTTP requests. Must not know what jobs do."""
