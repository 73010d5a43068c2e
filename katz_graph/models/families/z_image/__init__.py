"""Z-Image and Z-Image-Turbo: blocks over one sequence of picture and text tokens."""
