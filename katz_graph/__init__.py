"""The vocabulary (graphs, nodes, recipes, devices), and what works on it without running a graph.

Must not import the built-in nodes, the executor and the server, but for `cli` and `bench`, which
put them together.
"""
