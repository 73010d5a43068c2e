"""Tests the parts of the GPU bench at miniature sizes on a CPU, where figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import CLIPTextConfig

import katz_graph
from katz_graph.bench import gpu
from katz_graph.bench.command import run_bench
from katz_graph.bench.gpu import errors, evaluations
from katz_graph.bench.gpu.busy import mean_share
from katz_graph.bench.gpu.everything import run_parts
from katz_graph.bench.gpu.layers import layers_of_step
from katz_graph.bench.gpu.originals import KINDS, Originals, originals
from katz_graph.bench.gpu.parts import (
    check,
    compiled,
    ipc,
    kernels,
    pictures,
    requests,
    serve,
    start,
    step,
    transformers,
)
from katz_graph.bench.gpu.parts import edit as edit_part
from katz_graph.bench.gpu.parts import rows as rows_part
from katz_graph.bench.gpu.peers import ComfyUI, Start, phases_in
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting, full_size
from katz_graph.bench.gpu.shares import shares
from katz_graph.core.errors import InputError, RunError
from katz_graph.ir.device import ROW_BUCKETS, NetworkLink
from katz_graph.kernels.configurations import FILE
from katz_graph.models.families.shared.transformer import run_blocks
from katz_graph.models.families.shared.transformer_examples import drawn_tokens
from katz_graph.models.families.shared.transformer_stack import stack_of
from katz_graph.models.families.unet.stand_ins import parts, unet_settings
from katz_graph.models.prepare import prepare
from katz_graph.models.stages import Sized
from katz_graph.testing import device_pair
from katz_graph.testing.model_files import difference
from katz_graph.testing.random_models import draw_network, kinds

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
        transformers={"sd35": {}},
        sides=(8, 6),
        product=64,
        array=4096,
        large=10_000,
        rank=4,
        steps=4,
        rounds=1,
        many=4,
        compiler="eager",
        lead=0.05,
        window=0.4,
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
    compared = {row["what"] for row in written if "error_of_reference" in row}
    assert {f"GELU gate, {dtype}" for dtype in ("float32", "float16", "bfloat16")} <= compared


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
    assert any("after_upsampling_tflops" in row for row in rows.rows)


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
    assert [row["what"] for row in rows.rows] == [
        f"sd35 at 64 pixels{more}"
        for more in ("", ", shares of a step", ", diffusers compiled by blocks")
    ]
    assert result.metrics["sd35_difference"] <= 1e-4  # the same work
    (judged,) = rows.judged
    assert judged["what"] == "sd35_of_stock" and judged["bound"] == "<= 0.75"


def test_calls_are_timed_by_their_rows_and_for_two_sizes(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "DTYPE", torch.float32)
    setting = replace(small, sides=(8, 6, 4), transformers={"sd35": {}, "flux": {}})
    with Rows("rows", tmp_path) as rows, torch.inference_mode():
        rows_part.run(setting, rows)
    sizes = [("sdxl", 32), ("sdxl", 64), ("sdxl", 48)]
    sizes += [(kind, side) for kind in ("flux", "sd35") for side in (32, 64)]
    by_rows = [
        f"{kind} at {side} pixels, {count} rows" for kind, side in sizes for count in ROW_BUCKETS
    ]
    by_sizes = [
        f"{kind}, blocks, {small} of 32 and 1 of 64 pixels"
        for kind in ("flux", "sd35")
        for small in (1, 4)
    ]
    assert [row["what"] for row in rows.rows] == by_rows + by_sizes
    assert rows.judged[-1]["holds"] and rows.judged[-1]["bound"] == "<= 240"


def test_edits_are_timed_against_full_evaluations(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "DTYPE", torch.float32)
    setting = replace(small, sides=(16, 8, 4), transformers={"flux": {}})
    with Rows("edit", tmp_path) as rows, torch.inference_mode():
        edit_part.run(setting, rows)
    kinds = [f"{kind} at 128 pixels" for kind in ("sdxl", "flux")]
    cases = ["loads", *(f"mask {m}, {n} edits" for n in (1, 4) for m in (0.1, 0.2))]
    assert [row["what"] for row in rows.rows] == [f"{k}, {case}" for k in kinds for case in cases]
    assert all(row["bytes"] > 0 for row in rows.rows if "bytes" in row)
    assert rows.judged[-1]["holds"]


@pytest.mark.parametrize("kind", ["sd35", "flux"])
def test_one_call_of_two_sizes_computes_each_picture(kind: str) -> None:
    module = draw_network(kind, 1)
    prepare(module)
    numbers = range(len(stack_of(module).blocks(module)))
    with torch.inference_mode():
        small, large = (drawn_tokens(module, Sized(2, side, 6, 5)) for side in (4, 6))
        large = replace(large[0], embedding=small[0].embedding), large[1]
        text_first = kind == rows_part.TEXT_FIRST
        tokens, fixed, by_picture = rows_part.in_one_call([small, large], text_first)
        with by_picture:
            together = run_blocks(module, tokens, numbers, fixed).hidden
        apart = [run_blocks(module, one, numbers, f).hidden for one, f in (small, large)]
    assert difference(together, torch.cat(apart, 1)) <= 1e-5


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
    assert streams["of_one_stream"] != 0 and streams["concurrent"] == 0  # on a CPU
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


@pytest.fixture
def servable(small: Setting) -> Setting:
    """Returns sizes that a loader recognises as SDXL in a single file."""
    network, texts = unet_settings("sdxl"), parts("sdxl")
    return replace(
        small,
        network=network,
        vae=VAE | {"block_out_channels": (32, 32, 64, 64), "norm_num_groups": 32},
        texts=(texts["text_encoder"].config, texts["text_encoder_2"].config),
        sides=(8, 4),
        steps=2,
    )


def test_servers_get_files_in_the_layouts_of_users(servable: Setting, tmp_path: Path) -> None:
    with originals(servable, tmp_path, adapters=True) as files:
        workflow = files.workflow(8, 1, 3, "3 ControlNets, 2 LoRAs")
    written = list(tmp_path.rglob("*.safetensors"))
    times = [path.stat().st_mtime_ns for path in written]
    with originals(servable, tmp_path, adapters=True):
        assert [path.stat().st_mtime_ns for path in written] == times
    (tmp_path / "workflow.json").write_text(json.dumps(workflow))
    options = {"extra_model_paths": [files.model_paths], "output": tmp_path, "devices": "cpu"}
    with katz_graph.open(**options) as engine:
        result = engine.run(tmp_path / "workflow.json")
    assert result.images[0].size == (64, 64)


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    program = tmp_path / "ComfyUI" / "main.py"
    program.parent.mkdir()
    program.write_text((Path(__file__).parent / "fake_comfyui.py").read_text())
    return program


def test_servers_are_compared_under_load(
    servable: Setting, tmp_path: Path, comfyui: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours is a stand-in, too: real ones take seconds to start."""
    monkeypatch.setattr(serve, "CLIENTS", (4,))

    def both(setting: Setting, files: Originals, peer: Path | None) -> dict[str, Start]:
        start = partial(ComfyUI, program=comfyui, model_paths=files.model_paths)
        return {"ours": start, "comfyui": start}

    monkeypatch.setattr(serve, "starts", both)
    with Rows("serve", tmp_path) as rows:
        result = serve.run(servable, rows, comfyui)
    assert not result.ok  # without a GPU no busy share is known
    busy = {row["what"]: row for row in rows.judged if "busy" in str(row["what"])}
    assert len(busy) == 2 and not any(row["holds"] for row in busy.values())
    held = {row["what"] for row in rows.judged if row["holds"]}
    assert "4 clients at 64 pixels, pictures per second" in held
    compared = {row["what"]: row for row in rows.rows if "comfyui" in row}
    assert compared.keys() == {
        "a picture, seconds, compared",
        "a picture, step_seconds, compared",
        "a picture, other_seconds, compared",
        "4 clients at 64 pixels, pictures per second, compared",
        "4 clients at 32 pixels, pictures per second, compared",
    }
    assert len(rows_of(tmp_path / "serve.jsonl")) == len(rows.rows) + len(rows.judged)


def test_pictures_of_each_kind_are_compared(
    servable: Setting, tmp_path: Path, comfyui: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        pictures,
        "starts",
        lambda setting, files, peer: dict.fromkeys(
            ("ours", "comfyui"),
            partial(ComfyUI, program=comfyui, model_paths=files.model_paths),
        ),
    )
    with Rows("pictures", tmp_path) as rows:
        pictures.run(servable, rows, comfyui)
    assert [row["what"] for row in rows.judged] == ["3 ControlNets of the sum of their parts"]
    compared = [row["what"] for row in rows.rows if "ours_of_theirs" in row]
    assert compared == [
        f"{kind}, {figure}, compared" for kind in KINDS for figure in ("first seconds", "seconds")
    ]


def test_a_start_is_measured_to_the_first_picture(
    servable: Setting, tmp_path: Path, comfyui: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Phased(ComfyUI):
        def phases(self) -> dict[str, float]:
            return {"server: imports": 0.25}

    monkeypatch.setattr(
        start,
        "starts",
        lambda setting, files, peer: {
            "ours": partial(Phased, program=comfyui, model_paths=files.model_paths)
        },
    )
    monkeypatch.setattr(start, "Ours", Phased)
    with Rows("start", tmp_path) as rows:
        result = start.run(servable, rows)
    assert result.ok and [row["bound"] for row in rows.judged] == ["<= 12", "<= 9"]
    assert {"what": "second start, ours, server: imports", "seconds": 0.25} in [
        {name: row.get(name) for name in ("what", "seconds")} for row in rows.rows
    ]


def test_phases_of_a_start_are_read_from_metrics() -> None:
    text = (
        "# TYPE katz_start_seconds gauge\n"
        'katz_start_seconds{phase="import libraries",process="server"} 1.5\n'
        'katz_start_seconds{phase="first evaluations",process="first job"} 2e-05\n'
    )
    assert phases_in(text) == {
        "server: import libraries": 1.5,
        "first job: first evaluations": 2e-5,
    }


def test_busy_is_the_mean_of_complete_samples() -> None:
    assert mean_share("100\n80\n9") == pytest.approx(0.9)
    assert mean_share("[N/A]\n[N/A]\n") is None and mean_share("") is None


PART = """
import json, sys, time
from pathlib import Path
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
part, out = given["--part"], Path(given["--out"])
rows = {
    "good": [{"what": "a", "figure": 1.0, "bound": "<= 2", "holds": True}],
    "slow": [{"what": "b", "figure": 2.0, "bound": "<= 2", "holds": True}],
    "fatal": [{"what": "c", "seconds": 1.0}],
}[part]
with (out / f"{part}.jsonl").open("a") as file:
    file.writelines(json.dumps({"part": part} | row) + "\\n" for row in rows)
    file.write("{incompl")
assert part != "fatal"
time.sleep(60 if part == "slow" else 0)
"""


def test_all_parts_run_until_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that hangs is stopped and one that fails ends; both keep their rows."""
    (tmp_path / "good.jsonl").write_text('{"part": "good", "bound": "of an earlier run"}\n')
    (tmp_path / "part.py").write_text(PART)
    expected = {"good": 1.0, "fatal": 1.0, "large": 1e3, "slow": 0.5}
    command = (sys.executable, str(tmp_path / "part.py"))
    result = run_parts(expected, 20, tmp_path, None, command)
    assert not result.ok
    assert result.metrics == {"good: a": 1.0, "slow: b": 2.0}
    notes = [note.split(" ")[:2] for note in result.notes]
    assert notes == [["fatal:", "no"], ["large:", "skipped,"], ["slow:", "stopped,"]]
    assert run_parts({"good": 1.0}, 20, None, None, command).ok


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


def test_transfers_between_two_processes_are_timed_until_one_is_killed(
    small: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ipc, device_pair):
        monkeypatch.setattr(module, "RESIDUAL_BYTES", 1 << 20)
        monkeypatch.setattr(module, "TRANSFERS", 20)
    monkeypatch.setattr(ipc, "measure_link", lambda probe: NetworkLink(1e9, probe(64)))
    with Rows("ipc", tmp_path) as rows:
        metrics = ipc.run(small, rows).metrics
    assert rows_of(tmp_path / "ipc.jsonl")[0]["transport"] == "shared memory"
    assert metrics["seconds of 108 MB"] > 0
    assert 0 < metrics["seconds until a killed process is noticed"] <= ipc.NOTICED


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
    with pytest.raises(InputError, match="--peer: part step measures no server"):
        (tmp_path / "main.py").touch()
        gpu.run(part="step", peer=f"comfyui={tmp_path}")
    with pytest.raises(InputError, match=r"--peer comfyui=nowhere: .*main.py does not exist"):
        gpu.run(part="serve", peer="comfyui=nowhere")
    with pytest.raises(InputError, match="--minutes: runs all parts; omit --part"):
        gpu.run(part="step", minutes=1)
    with pytest.raises(InputError, match="--part: bench graph has no parts"):
        run_bench("graph", False, part="x")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"--out .*file: cannot write"):
        Rows("check", tmp_path / "file")


def test_it_needs_no_package_of_servers_rays_or_developers() -> None:
    """Works with torch, diffusers and transformers alone."""
    code = (
        "import sys\nsys.modules |= dict.fromkeys(('ray', 'starlette', 'uvicorn', 'pytest', 'peft'))\n"
        "import importlib\nfrom katz_graph.bench.gpu import PARTS\n"
        "for part in PARTS: importlib.import_module(f'katz_graph.bench.gpu.parts.{part}')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
