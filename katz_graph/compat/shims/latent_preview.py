"""`latent_preview` as packs import it: previews are made by those who watch a run, so nothing is made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from katz_graph.compat.missing import missing_names
from katz_graph.compat.progress import ProgressBar

__getattr__ = missing_names(__name__, "Latent2RGBPreviewer LatentPreviewer LatentPreviewMethod TAESDPreviewerImpl")


def get_previewer(device: Any, latent_format: Any) -> None:
    return None


def prepare_callback(model: Any, steps: int, x0_output_dict: dict[str, Any] | None = None) -> Callable[[int, Any, Any, int], None]:
    """What a sampling loop calls after each step: it moves the progress of the node."""
    progress = ProgressBar(steps)

    def step(number: int, denoised: Any, x: Any, total: int) -> None:
        if x0_output_dict is not None:
            x0_output_dict["x0"] = denoised
        progress.update_absolute(number + 1, total)

    return step
