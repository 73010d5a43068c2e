"""Provides `comfy.cli_args` to packs: ComfyUI's options, all at their defaults."""

from __future__ import annotations

from argparse import Namespace
from enum import Enum

from katz_graph.comfy.missing import missing_names

__getattr__ = missing_names(__name__, "parser is_valid_directory enables_dynamic_vram")


class LatentPreviewMethod(Enum):
    NoPreviews = "none"
    Auto = "auto"
    Latent2RGB = "latent2rgb"
    TAESD = "taesd"


class PerformanceFeature(Enum):
    Fp16Accumulation = "fp16_accumulation"
    Fp8MatrixMultiplication = "fp8_matrix_mult"
    CublasOps = "cublas_ops"


_SWITCHES = """
    auto_launch bf16_unet bf16_vae cache_classic cache_none cpu cpu_vae deterministic
    disable_all_custom_nodes disable_api_nodes disable_auto_launch disable_cuda_malloc
    disable_metadata disable_smart_memory disable_xformers dont_print_server enable_manager fast
    force_channels_last force_fp16 force_fp32 fp16_unet fp16_vae fp32_unet fp32_vae gpu_only
    highvram log_stdout lowvram multi_user normalvram novram quick_test_for_ci
    use_pytorch_cross_attention use_quad_cross_attention use_split_cross_attention
    windows_standalone_build
"""
_UNSET = """
    base_directory cuda_device default_device directml enable_cors_header extra_model_paths_config
    input_directory output_directory reserve_vram temp_directory tls_certfile tls_keyfile
    user_directory
"""
args = Namespace(
    **dict.fromkeys(_SWITCHES.split(), False),
    **dict.fromkeys(_UNSET.split()),
    listen="127.0.0.1",
    port=8188,
    max_upload_size=100,
    preview_method=LatentPreviewMethod.NoPreviews,
    preview_size=512,
    verbose="INFO",
    default_hashing_function="sha256",
    front_end_version="comfyanonymous/ComfyUI@latest",
    front_end_root=None,
    cache_lru=0,
    whitelist_custom_nodes=[],
)
