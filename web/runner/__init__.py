"""The runner: the process that has the packs and the devices, and runs jobs for the server."""
