"""HunyuanDiT: blocks over picture tokens with cross-attention to the text; the second half also
reads skips from the first.
"""
