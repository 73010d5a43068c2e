"""Lists the families of diffusion models. The only place that names them all."""

FAMILIES = ("unet", "sd3", "flux", "z_image", "hunyuan_dit")
"""Names the folders of families: the module `family` of each declares its FAMILY. What several
families use, text encoders and VAEs, is in `shared`.
"""
