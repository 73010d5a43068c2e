"""`katz warm` compiles a workflow's kernels into Triton's cache, for a GPU that is absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Katz
from test_cli import workflow, write
from torch import Tensor

from katz_graph.kernels import configurations, dispatch

pytest.importorskip("triton")
ROWS, COLUMNS = 104, 64  # of pixels; numbers of positions are multiples of 16 only in part


def with_control() -> dict[str, Any]:
    def control(text: str) -> dict[str, Any]:
        return {
            "class_type": "ControlNetApply",
            "inputs": {
                "conditioning": [text, 0],
                "control_net": ["8", 0],
                "image": ["9", 0],
                "strength": 0.7,
            },
        }

    size = {"width": COLUMNS, "height": ROWS, "batch_size": 1}
    nodes = workflow(
        n4={"class_type": "EmptyLatentImage", "inputs": size},
        n8={"class_type": "ControlNetLoader", "inputs": {"control_net_name": "sd1-control0"}},
        n9={"class_type": "EmptyImage", "inputs": {**size, "color": 0}},
        n10=control("2"),
        positive=["10", 0],
        steps=2,
    )
    return nodes


def zeroed(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*args: Any, **options: Any) -> Tensor:
        tensor = make(*args, **options)
        return tensor if tensor.is_meta else tensor.zero_()

    return made


def test_a_run_finds_all_its_kernels_compiled(
    katz: Katz, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signatures are those of tensors with memory. Nothing is launched, so results are 0."""
    from katz_graph.kernels.triton.ahead import compiling

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    options = "--models", model_folder, "--dtype", "bfloat16"
    path = write(with_control())
    first = katz("warm", path, *options, "--arch", "sm90", "--json").data
    assert first["architecture"] == 90 and first["compiled"] > 20 and first["cached"] == 0
    again = katz("warm", path, *options, "--arch", "sm90")
    assert again.out.startswith("compiled 0 kernels for sm90 in ")
    assert again.out.endswith(f" s, {first['compiled']} were there\n")

    monkeypatch.setattr(dispatch, "INTERPRETED", True)  # kernels also on CPUs
    monkeypatch.setattr(dispatch, "_works", lambda: True)
    monkeypatch.setattr(configurations, "INTERPRETED_AS", 90)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, zeroed(getattr(torch, name)))
    with compiling(90) as counted:
        dispatch.COMPILED_FOR.set(None)  # planning counts on the meta device without kernels
        assert katz("run", path, *options).code == 0
    assert counted.compiled == 0 and counted.cached > 20


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        (workflow(), ("--arch", "sm9"), "--arch sm9: expected one of sm75, sm80, "),
        (workflow(), (), "this machine has no GPU: name the architecture, such as --arch sm90"),
        (
            {
                "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64}},
                "2": {
                    "class_type": "SaveImage",
                    "inputs": {"images": ["1", 0], "filename_prefix": "x"},
                },
            },
            ("--arch", "sm90"),
            "workflow.json: this workflow runs no model, so there are no kernels to compile",
        ),
    ],
)
def test_what_cannot_be_compiled_is_explained_in_a_line(
    katz: Katz,
    model_folder: Path,
    nodes: dict[str, Any],
    options: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused = katz("warm", write(nodes), "--models", model_folder, *options)
    assert refused.code == 2
    (line,) = refused.errors
    assert line.startswith(f"error: {message}")
