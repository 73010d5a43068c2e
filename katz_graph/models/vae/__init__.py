"""VAEs: their kinds, latent spaces and files, and encoding and decoding with them."""
