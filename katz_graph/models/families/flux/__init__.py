"""FLUX.1: double blocks over picture and text tokens, then single blocks over one joint
sequence.
"""
