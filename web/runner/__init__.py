"""Runs jobs for the server, in the process that has the packs and the devices."""
