"""Z-Image and Z-Image-Turbo: one sequence of a picture's and a text's tokens."""
