"""Writes full-size models with random weights in the layouts in which users have them, and the
workflows that use them, for servers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from katz_graph.bench.gpu.models import control_net, lora_tensors, made_on, pipeline_modules
from katz_graph.bench.gpu.setting import Setting
from katz_graph.testing.random_models import usual
from katz_graph.testing.server_process import painting

CONTROLS, LORAS = 3, 2  # files
GUIDANCE = 7.0
KINDS: Mapping[str, tuple[int, int]] = {
    "plain": (0, 0),
    "1 ControlNet": (1, 0),
    "3 ControlNets": (3, 0),
    "2 LoRAs": (0, 2),
    "3 ControlNets, 2 LoRAs": (3, 2),
}
"""Numbers of ControlNets and LoRAs of each kind of workflow."""
FOLDERS = {"checkpoint": "checkpoints", "control": "controlnet", "lora": "loras"}
"""Folder of each kind of file."""


@dataclass(frozen=True, slots=True)
class Originals:
    """Holds the folder of a checkpoint, ControlNets and LoRAs."""

    folder: Path
    setting: Setting

    @property
    def model_paths(self) -> Path:
        """The file that describes the folders to servers."""
        return self.folder / "extra_model_paths.yaml"

    @property
    def cache(self) -> Path:
        """The folder of our server's measurements and compiled kernels."""
        return self.folder / "cache"

    def named(self, kind: str, number: int = 0) -> str:
        """Returns a file's name. It includes the network's width, because a folder may have models
        of several sizes.
        """
        width = self.setting.network["block_out_channels"][0]
        return f"bench-{width}-{kind}{number}.safetensors"

    def path(self, kind: str, number: int = 0) -> Path:
        return self.folder / FOLDERS[kind] / self.named(kind, number)

    def workflow(self, side: int, steps: int, seed: int, kind: str = "plain") -> dict[str, Any]:
        """Returns a prompt in API format. `side`: of the latent."""
        nodes = painting(seed, steps, 8 * side, guidance=GUIDANCE)
        nodes["1"]["inputs"]["ckpt_name"] = self.named("checkpoint")
        sampler = nodes["5"]["inputs"]
        controls, loras = KINDS[kind]
        for number in range(loras):
            nodes[f"lora{number}"] = {
                "class_type": "LoraLoader",
                "inputs": {
                    "model": sampler["model"],
                    "clip": nodes["2"]["inputs"]["clip"],
                    "lora_name": self.named("lora", number),
                    "strength_model": 0.8,
                    "strength_clip": 0.8,
                },
            }
            sampler["model"] = [f"lora{number}", 0]
            for text in ("2", "3"):
                nodes[text]["inputs"]["clip"] = [f"lora{number}", 1]
        if controls:
            nodes["hint"] = {
                "class_type": "EmptyImage",
                "inputs": {
                    "width": 8 * side,
                    "height": 8 * side,
                    "batch_size": 1,
                    "color": 0x4080C0,
                },
            }
        for number in range(controls):
            nodes[f"control{number}"] = {
                "class_type": "ControlNetLoader",
                "inputs": {"control_net_name": self.named("control", number)},
            }
            nodes[f"apply{number}"] = {
                "class_type": "ControlNetApplyAdvanced",
                "inputs": {
                    "positive": sampler["positive"],
                    "negative": sampler["negative"],
                    "control_net": [f"control{number}", 0],
                    "image": ["hint", 0],
                    "strength": 0.8,
                    "start_percent": 0.0,
                    "end_percent": 1.0,
                },
            }
            sampler["positive"], sampler["negative"] = (
                [f"apply{number}", 0],
                [f"apply{number}", 1],
            )
        return nodes


@contextmanager
def originals(setting: Setting, folder: Path | None, adapters: bool = False) -> Iterator[Originals]:
    """Writes the files that a folder lacks; without a folder, into a temporary one. With
    `adapters`, also ControlNets and LoRAs. 7 GB at full size, with adapters 16 GB.
    """
    with TemporaryDirectory() as name:
        files = Originals((folder or Path(name)).absolute() / "models", setting)
        for kind in FOLDERS.values():
            (files.folder / kind).mkdir(parents=True, exist_ok=True)
        places = {"base_path": str(files.folder)} | {name: name for name in FOLDERS.values()}
        files.model_paths.write_text(json.dumps({"bench": places}))  # JSON is YAML
        _save(files.path("checkpoint"), partial(_checkpoint, setting))
        for number in range(CONTROLS if adapters else 0):
            _save(files.path("control", number), partial(_control, setting, 10 + number))
        for number in range(LORAS if adapters else 0):
            _save(files.path("lora", number), partial(lora_tensors, setting, 20 + number))
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()  # servers need the memory in which models were made
        yield files


def _checkpoint(setting: Setting) -> dict[str, Tensor]:
    made: dict[str, Tensor] = usual().checkpoint(*pipeline_modules(setting, 0))
    return made


def _control(setting: Setting, seed: int) -> dict[str, Tensor]:
    with made_on(setting.device, setting.dtype, seed):
        made: dict[str, Tensor] = control_net(setting).state_dict()
    return made


def _save(path: Path, tensors: Callable[[], dict[str, Tensor]]) -> None:
    """Writes a file unless it exists. A file with this name is complete."""
    if path.exists():
        return
    made = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors().items()}
    partial_file = path.with_suffix(".part")
    save_file(made, partial_file, {"format": "pt"})
    partial_file.replace(path)
