"""Fixtures for tests that run models: one thread, and random-weight pipelines in a models
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_packs import forgetting_shims
from pack_workshop import Workshop
from transformers_made import EACH

from katz_graph.testing.model_files import Models
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import local_engine


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, sd1: Models, sdxl: Models) -> Path:
    """Contains checkpoints/sd1, checkpoints/sdxl, controlnet/<family>-control0,
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


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    """Returns the pipeline folder of each transformer family."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in EACH}
    for kind, place in made.items():
        make_pipeline(place, kind, 1)
    return made


@pytest.fixture
def workshop(tmp_path: Path, model_folder: Path, costs: Path) -> Iterator[Workshop]:
    with forgetting_shims(), local_engine(batching=False, cache=costs) as engine:
        yield Workshop(tmp_path, model_folder, engine)


@pytest.fixture
def counted(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Counts text encodings outside of sampling."""
    encode: Callable[..., Any] = workshop.engine.encode_text

    def counting(*arguments: Any) -> Any:
        workshop.encoded += 1
        return encode(*arguments)

    monkeypatch.setattr(workshop.engine, "encode_text", counting)
    return workshop
