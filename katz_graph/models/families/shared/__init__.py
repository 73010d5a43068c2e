"""Stages that several families share (text encoders, VAEs, transformer blocks), with their
computation and cost, and the parts of the families' small random models.
"""
