"""Lists the families of diffusion models. No other module does."""

FAMILIES = (
    "unet",
    "sd3",
    "flux",
    "z_image",
    "hunyuan_dit",
    "qwen_image",
    "krea2",
    "flux2",
    "qwen_image_21",
    "anima",
)
"""Folders of families. Each has a module `family` that declares FAMILY. The folder `shared` holds
text encoders, VAEs and other code of several families.
"""
