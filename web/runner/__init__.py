"""Runs jobs for the server, in the process that holds the packs and the devices."""
