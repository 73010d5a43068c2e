"""FLUX.1: blocks over a picture's tokens and a text's, then blocks over both as one sequence."""
