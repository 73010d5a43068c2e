"""Connects a pack's code to the current run: returns the engine's device, and reports progress and
previews.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from katz_graph.core.events import Previewed, Progress
from katz_graph.node.scope import current

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def compute_device() -> torch.device:
    """Returns the current engine's device, or the CPU if this process does not have that device.
    Without a run, returns the most likely device.
    """
    import torch

    now = current()
    if now is None or now.context.engine is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(now.context.engine.device.torch_name)
    # the GPU is on another machine of a cluster
    elsewhere = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    return torch.device("cpu") if elsewhere else device


class ProgressBar:
    """Reports the progress of the running node. An update raises if the run was cancelled."""

    def __init__(self, total: int, node_id: str | None = None) -> None:
        self.total, self.current, self.node_id = total, 0, node_id

    def update_absolute(self, value: int, total: int | None = None, preview: Any = None) -> None:
        """Reports progress. `preview`: (format, Pillow image, longest side), a picture [H, W, 3] or
        [B, H, W, 3] in 0..1, or a Pillow image.
        """
        self.total = self.total if total is None else total
        self.current = min(value, self.total)
        now = current()
        if now is None:
            return
        now.context.check_cancelled()
        node = str(self.node_id or now.node)
        now.context.report(Progress(node, self.current, self.total))
        if preview is not None and now.context.wants_preview(node):
            now.context.report(Previewed(node, _picture(preview)))

    def update(self, value: int) -> None:
        self.update_absolute(self.current + value)


def _picture(preview: Any) -> Tensor:
    """Converts a preview to uint8 [h, w, 3]."""
    import numpy
    import torch

    image = preview[1] if isinstance(preview, tuple) else preview
    if isinstance(image, torch.Tensor):
        first = image.reshape(-1, *image.shape[-3:])[0]
        return first[..., :3].float().mul(255).round().clamp(0, 255).to(torch.uint8).cpu()
    return torch.from_numpy(numpy.array(image.convert("RGB")))
