"""Tells clients over websockets what happens to jobs. Must not know how jobs run."""
