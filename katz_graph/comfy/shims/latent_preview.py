"""Provides `latent_preview` to packs: previews of latents, with the same linear map as the built-in
samplers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from katz_graph.comfy.missing import missing_names
from katz_graph.comfy.running import ProgressBar
from katz_graph.core.latent_space import LinearMap
from katz_graph.files.images import MAX_PREVIEW_SIDE
from katz_graph.models.family import linear_map
from katz_graph.node.scope import current
from katz_graph.picture.preview import latent_picture

__getattr__ = missing_names(
    __name__, "Latent2RGBPreviewer LatentPreviewer LatentPreviewMethod TAESD TAESDPreviewerImpl"
)


class _Previewer:
    def __init__(self, colours: LinearMap) -> None:
        self._colours = colours

    def decode_latent_to_preview(self, x0: Any) -> Any:
        """Converts a scaled latent [B, C, h, w] to a Pillow image."""
        from PIL import Image

        return Image.fromarray(latent_picture(x0, self._colours).cpu().numpy())

    def decode_latent_to_preview_image(self, preview_format: str, x0: Any) -> tuple[str, Any, int]:
        return preview_format, self.decode_latent_to_preview(x0), MAX_PREVIEW_SIDE


def get_previewer(device: Any, latent_format: Any) -> _Previewer | None:
    """Returns a previewer; None if the run has no previews, or for unknown latent spaces."""
    colours = linear_map(latent_format.space) if _watched() else None
    return None if colours is None else _Previewer(colours)


def prepare_callback(
    model: Any, steps: int, x0_output_dict: dict[str, Any] | None = None
) -> Callable[[int, Any, Any, int], None]:
    """Returns a callback for a sampling loop, which reports the node's progress and a preview after
    each step.
    """
    progress = ProgressBar(steps)
    previewer = get_previewer(None, model.model.latent_format) if _watched() else None

    def step(number: int, denoised: Any, x: Any, total: int) -> None:
        if x0_output_dict is not None:
            x0_output_dict["x0"] = denoised
        preview = (
            None
            if previewer is None
            else previewer.decode_latent_to_preview_image("JPEG", denoised)
        )
        progress.update_absolute(number + 1, total, preview)

    return step


def _watched() -> bool:
    now = current()
    return now is not None and now.context.previews
