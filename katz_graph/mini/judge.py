"""Judges pictures of the miniature world: a small convolutional classifier recognises the things,
the styles and the silhouette. Must not know the models that painted the picture.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from katz_graph.mini import world
from katz_graph.mini.world import Thing

SIDE = 128  # pictures are resized to this side first
PRESENCE = len(world.SHAPES)  # index of "nothing in this cell" among the shape classes


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.ReLU(inplace=True),
    )


class Judge(nn.Module):
    """Maps [B, 3, 128, 128] in -1..1 to logits: shape [B, 9 cells, 9], colour [B, 9, 8], size [B,
    9, 3], background [B, 7], style [B, 3] and silhouette [B, 128, 128].
    """

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2), _block(32, 32, 1))
        self.middle = nn.Sequential(_block(32, 64, 2), _block(64, 64, 1))
        self.coarse = nn.Sequential(_block(64, 96, 2), _block(96, 96, 1))
        self.cells = nn.Sequential(nn.Linear(96, 128), nn.ReLU(inplace=True))
        self.cell_sizes = (PRESENCE + 1, len(world.COLOURS), len(world.SIZES))
        self.things = nn.Linear(128, sum(self.cell_sizes))
        self.whole = nn.Linear(160, len(world.BACKGROUNDS) + len(world.STYLES))
        self.mask_coarse = nn.Conv2d(96, 32, 1)
        self.mask_middle = nn.Conv2d(64, 32, 1)
        self.mask = nn.Sequential(_block(32, 32, 1), nn.Conv2d(32, 16, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        fine = self.fine(x)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        cells = F.adaptive_avg_pool2d(coarse, 3).flatten(2).transpose(1, 2)
        shape, colour, size = self.things(self.cells(cells)).split(self.cell_sizes, dim=-1)
        whole = self.whole(torch.cat([coarse.mean((2, 3)), middle.mean((2, 3))], dim=1))
        up = F.interpolate(self.mask_coarse(coarse), scale_factor=2.0) + self.mask_middle(middle)
        mask = F.pixel_shuffle(self.mask(F.interpolate(up, scale_factor=2.0) + fine), 4)
        return {
            "shape": shape,
            "colour": colour,
            "size": size,
            "background": whole[:, : len(world.BACKGROUNDS)],
            "style": whole[:, len(world.BACKGROUNDS) :],
            "silhouette": mask[:, 0],
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Holds the content of one picture. `things`: the cells most likely filled, most likely first;
    either the requested number, or all above 0.5. `silhouette`: boolean [128, 128].
    """

    things: tuple[Thing, ...]
    background: str
    styles: frozenset[str]
    silhouette: torch.Tensor


@torch.no_grad()
def judge(model: Judge, pictures: torch.Tensor, count: int | None = None) -> list[Verdict]:
    """Judges pictures [B, H, W, 3] in 0..1. `count`: number of things to name in each picture;
    without it, all that are more likely present than absent.
    """
    x = pictures.float().permute(0, 3, 1, 2) * 2 - 1
    if x.shape[2:] != (SIDE, SIDE):
        x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", antialias=True)
    logits = model(x)
    filled = 1 - logits["shape"].softmax(-1)[..., PRESENCE]
    verdicts = []
    for index in range(len(x)):
        order = filled[index].argsort(descending=True).tolist()
        named = order[:count] if count is not None else [c for c in order if filled[index, c] > 0.5]
        things = tuple(
            Thing(
                world.SHAPES[int(logits["shape"][index, cell, :PRESENCE].argmax())],
                world.COLOURS[int(logits["colour"][index, cell].argmax())],
                world.SIZES[int(logits["size"][index, cell].argmax())],
                cell // 3,
                cell % 3,
            )
            for cell in named
        )
        styles = frozenset(
            name
            for name, value in zip(world.STYLES, logits["style"][index], strict=True)
            if value > 0
        )
        background = world.BACKGROUNDS[int(logits["background"][index].argmax())]
        verdicts.append(Verdict(things, background, styles, logits["silhouette"][index] > 0))
    return verdicts


def overlap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Computes the intersection over union of two boolean masks; 1 when both are empty."""
    union = int((found | wanted).sum())
    return int((found & wanted).sum()) / union if union else 1.0


def save_judge(model: Judge, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.half().contiguous() for name, value in model.state_dict().items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(
        json.dumps({"architecture": "katz_graph.mini.judge.Judge", "side": SIDE}) + "\n"
    )


def load_judge(folder: Path) -> Judge:
    model = Judge()
    model.load_state_dict(
        {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    )
    return model.eval()
