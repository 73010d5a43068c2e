"""Holds code that tests and benches share: requests, models with random weights, reference
implementations, thread workers, fault injection, server processes. The engine must not import it.
"""
