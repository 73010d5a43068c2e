"""HunyuanDiT: blocks over a picture's tokens that read a text, the second half also the first."""
