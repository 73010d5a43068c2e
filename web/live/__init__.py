"""Reports job events to clients over websockets. Must not know how jobs run."""
