"""Benches, and the random models, reference loops and servers that benches and tests share.
Nothing imports it but tests."""
