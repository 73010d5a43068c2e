"""Anima: Cosmos' blocks, which attend to text that a part of the network made of two encodings."""
