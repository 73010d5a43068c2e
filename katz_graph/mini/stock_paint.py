"""Paints with stock diffusers pipelines, to measure a training without the engine."""

from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import ControlNetModel, StableDiffusionXLControlNetPipeline, StableDiffusionXLPipeline


class StockPaint:
    """Paints with StableDiffusionXLPipeline (with a ControlNet where one is asked for) over a
    `weights` folder, Euler, fp32.
    """

    def __init__(self, weights: Path, guidance: float = 4.0) -> None:
        self.weights, self.guidance = weights, guidance
        self.pipeline = StableDiffusionXLPipeline.from_pretrained(weights / "pipeline", torch_dtype=torch.float32)
        self.pipeline.set_progress_bar_config(disable=True)
        self.loaded: tuple[str, ...] = ()

    def __call__(
        self,
        captions: list[str],
        seeds: list[int],
        control: tuple[str, torch.Tensor] | None = None,
        loras: Sequence[tuple[str, float]] = (),
        steps: int = 20,
        height: int = 128,
        width: int = 128,
    ) -> torch.Tensor:
        """Paints pictures [B, height, width, 3] in 0..1."""
        names = tuple(name for name, _ in loras)
        if names != self.loaded:
            self.pipeline.unload_lora_weights()
            for name in names:
                self.pipeline.load_lora_weights(self.weights / "loras" / f"{name}.safetensors", adapter_name=name)
            self.loaded = names
        if names:
            self.pipeline.set_adapters(list(names), [strength for _, strength in loras])
        latents = [torch.randn(1, 4, height // 8, width // 8, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        common = {
            "prompt": captions,
            "height": height,
            "width": width,
            "num_inference_steps": steps,
            "guidance_scale": self.guidance,
            "latents": torch.cat(latents),
            "output_type": "pt",
        }
        if control is None:
            pictures = self.pipeline(**common).images
        else:
            kind, hints = control
            model = ControlNetModel.from_pretrained(self.weights / "controlnet" / kind, torch_dtype=torch.float32)
            guided = StableDiffusionXLControlNetPipeline(
                **self.pipeline.components, controlnet=model, force_zeros_for_empty_prompt=False, add_watermarker=False
            )
            guided.set_progress_bar_config(disable=True)
            pictures = guided(**common, image=hints.permute(0, 3, 1, 2)).images
        return pictures.permute(0, 2, 3, 1).float()  # type: ignore[no-any-return]
