"""Lists the families of diffusion models, each a folder that declares its stages. The only place
that names them all.
"""

FAMILIES = ("unet", "shared")
"""Names the families; `shared` has what several families use: text encoders and VAEs."""
