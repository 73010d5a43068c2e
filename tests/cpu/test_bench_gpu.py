"""Tests the parts of the GPU bench at miniature sizes on a CPU, where figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import CLIPTextConfig

from katz_graph.bench import gpu
from katz_graph.bench.command import run_bench
from katz_graph.bench.gpu import check, compiled, errors, kernels, requests, step, transformers
from katz_graph.bench.gpu.layers import layers_of_step
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting, full_size
from katz_graph.bench.gpu.shares import shares
from katz_graph.core.errors import InputError, RunError
from katz_graph.kernels.configurations import FILE
from katz_graph.testing.random_models import kinds

CPU = torch.device("cpu")
WIDTHS = (32, 48)  # of the two text encoders
VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (8, 8, 16, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
}


@pytest.fixture
def small() -> Setting:
    first, second = (
        CLIPTextConfig(
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=4,
            projection_dim=40,
            vocab_size=514,
            bos_token_id=512,
            eos_token_id=513,
        )
        for width in WIDTHS
    )
    return replace(
        full_size(CPU),
        dtype=torch.float32,
        network=kinds()["sdxl"].configuration((32, 32, 64), layers=1),
        vae=VAE,
        texts=(first, second),
        hints=(4, 8, 8, 12),
        transformers={"sd35": {}, "flux": {}},
        sides=(8, 6),
        product=64,
        array=4096,
        large=10_000,
        rank=4,
        steps=4,
        rounds=1,
        many=4,
        compiler="eager",
    )


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_check_measures_rates_and_errors(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "SUSTAINED", 0.05)
    with Rows("check", tmp_path) as rows:
        result = check.run(small, rows)
    assert result.ok and all(value > 0 for value in result.metrics.values())
    written = rows_of(tmp_path / "check.jsonl")
    assert written[0]["torch"] == torch.__version__
    assert sum("error_of_reference" in row for row in written) == 30


def test_a_wrong_kernel_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = errors.geglu.geglu
    monkeypatch.setattr(errors.geglu, "geglu", lambda x: 1.01 * right(x))
    found = errors.of_kernels(CPU)
    assert {name for name, error in found.items() if error > check.WORST} == {
        f"{name}, {dtype}"
        for name in ("GELU gate", "gated product")  # it ends with the same gate
        for dtype in ("float32", "float16", "bfloat16")
    }


def test_kernels_are_timed_at_every_size_of_a_step(small: Setting, tmp_path: Path) -> None:
    with Rows("kernels", tmp_path) as rows:
        result = kernels.run(small, rows, tmp_path / "table.json")
    assert (tmp_path / "table.json").read_text() == FILE.read_text()  # no kernels, no tiles
    assert result.metrics["large_of_copy"] > 0 and result.metrics["small_of_copy"] > 0
    names = " ".join(str(row["what"]) for row in rows.rows)
    for name in ("group_norm_silu", "bias_residual", "residual_layer_norm", "geglu"):
        assert name in names
    tried = [row for row in rows.rows if "fastest" in row]
    gates = [row["calls"] for row in rows.rows if str(row["what"]).startswith("geglu")]
    assert [row["calls"] for row in tried[:-1]] == gates  # one product per gate
    assert str(tried[-1]["what"]).startswith("lora_patch")
    assert all(row["chosen"] == row["fastest"] == "library" for row in tried)
    attention = [row for row in rows.rows if str(row["what"]).startswith("attention")]
    assert attention and all(row["math_tflops"] > 0 for row in attention)
    assert all(
        row["nchw_tflops"] > 0 and row["channels_last_tflops"] > 0
        for row in rows.rows
        if str(row["what"]).startswith("convolution")
    )


def test_a_step_of_sdxl_has_the_operations_that_are_published() -> None:
    """13.5 TFLOP with guidance at 1024 pixels: twice the UNet's 6.76."""
    listed = layers_of_step(full_size(CPU), 128)
    computing = ("product", "convolution", "attention")
    total = sum(
        count * layer.operations for layer, count in listed.items() if layer.kind in computing
    )
    assert total == pytest.approx(13.52e12, rel=0.01)


def test_a_step_is_compared_with_diffusers(small: Setting, tmp_path: Path) -> None:
    with Rows("step", tmp_path) as rows, torch.inference_mode():
        result = step.run(small, rows)
    assert result.metrics["vae_seconds"] > 0
    assert [row["what"] for row in rows.rows][:2] == ["step at 64 pixels", "step at 48 pixels"]


def test_transformers_are_compared_with_stock_pipelines(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "DTYPE", torch.float32)
    with Rows("transformers", tmp_path) as rows, torch.inference_mode():
        result = transformers.run(small, rows)
    assert [row["what"] for row in rows.rows] == ["sd35 at 64 pixels", "flux at 64 pixels"]
    for kind in small.transformers:
        assert result.metrics[f"{kind}_difference"] <= 1e-4  # the same work


def test_requests_count_recordings_and_switches(small: Setting, tmp_path: Path) -> None:
    with Rows("requests", tmp_path) as rows, torch.inference_mode():
        result = requests.run(small, rows)
    assert result.metrics["captures_of_switches"] == 0 and result.metrics["megabytes"] > 0
    by_name = {str(row["what"]): row for row in rows.rows}
    assert {
        *requests.KINDS,
        "LoRA patched and restored",
        "switches",
        "4 requests",
    } <= by_name.keys()
    streams = by_name["1C0L, one stream and two"]
    assert streams["of_one_stream"] != 0 and streams["beside"] == 0  # on a CPU
    switches = by_name["switches"]
    assert switches["other_checkpoint_loads"] > 0 and switches["other_lora_loads"] == 0


def test_ways_of_compiling_are_compared(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests two ways: tracing is slow."""
    known = compiled.ways(small)
    monkeypatch.setattr(
        compiled, "ways", lambda setting: {k: known[k] for k in ("eager", "blocks")}
    )
    with Rows("compiled", tmp_path) as rows, torch.inference_mode():
        result = compiled.run(small, rows)
    assert result.metrics["best_compiled_of_ours"] != 0
    assert [row["what"] for row in rows.rows] == ["ours", "eager", "blocks"]


def test_shares_of_a_step_are_those_of_its_kernels() -> None:
    taken = {
        "nvjet_hsh_128x256": 3.0,
        "nvjet_hsh_64x256": 1.0,
        "sm90_xmma_fprop_implicit_gemm": 2.0,
        "fmha_cutlassF": 1.0,
        "elementwise": 1.0,
    }
    found = shares(taken, 10.0)
    assert {name: share for name, share in found.items() if name not in taken} == pytest.approx(
        {"product": 0.4, "convolution": 0.2, "attention": 0.1, "other": 0.1, "gaps": 0.2}
    )
    assert found["nvjet_hsh_128x256"] == pytest.approx(0.3)
    assert shares({}, 1.0) == {}


def test_a_missing_gpu_and_wrong_parts_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="needs a GPU"):
        gpu.run()
    with pytest.raises(
        InputError, match="--part: unknown part 'stap'; did you mean \"step\"\\?; choose"
    ):
        gpu.run(part="stap")
    with pytest.raises(InputError, match="--write: part step measures no tiles"):
        gpu.run(part="step", write=tmp_path / "table.json")
    with pytest.raises(InputError, match="--part: bench graph has no parts"):
        run_bench("graph", False, part="x")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"--out .*file: cannot write"):
        Rows("check", tmp_path / "file")


def test_it_needs_no_package_of_servers_rays_or_developers() -> None:
    """Works with torch, diffusers and transformers alone."""
    code = (
        "import sys\nsys.modules |= dict.fromkeys(('ray', 'starlette', 'uvicorn', 'pytest', 'peft'))\n"
        "from katz_graph.bench.gpu import check, compiled, kernels, requests, step, transformers"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
