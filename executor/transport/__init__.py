"""How values get from process to process: an explicit vocabulary, checked lengths, no pickle. Knows
nothing about what they are for.
"""
