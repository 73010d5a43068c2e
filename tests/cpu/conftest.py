"""Fixtures of tests that run models: one thread, and random-weight pipelines in a models folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from katz_graph.bench.parity import Models


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, sd1: Models, sdxl: Models) -> Path:
    """checkpoints/sd1, checkpoints/sdxl, controlnet/<family>-control0,
    loras/<family>-first.safetensors ...
    """
    root = tmp_path_factory.mktemp("models")
    for kind in ("checkpoints", "controlnet", "loras"):
        (root / kind).mkdir()
    for models in (sd1, sdxl):
        (root / "checkpoints" / models.name).symlink_to(models.pipeline)
        for control in models.controls:
            (root / "controlnet" / control.name).symlink_to(control)
        for lora in models.loras:
            (root / "loras" / lora.name).symlink_to(lora)
    return root
