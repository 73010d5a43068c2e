"""Qwen-Image 2.1: blocks over one causal sequence of text, references and picture."""
