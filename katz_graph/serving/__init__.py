"""Schedules requests on devices: due times, equal shares of clients, shared calls. Must not know
the planner, the executor or the server, and needs no torch.
"""
