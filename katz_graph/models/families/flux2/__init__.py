"""FLUX.2 dev and Klein: double blocks over picture and text tokens, then single blocks over one
joint sequence, with one modulation for all blocks of a kind.
"""
