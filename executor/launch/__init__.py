"""Ways to get a worker that is connected to the driver: a process, a thread, a Ray actor. Know
nothing of what workers do.
"""
