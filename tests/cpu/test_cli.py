"""The command line gives pictures, JSON for scripts, one clear line for each mistake, and no
partial results.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from command import Katz
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from katz_graph.executor.turns.loop import DeviceThread
from katz_graph.executor.worker import host

WORKFLOWS = Path(__file__).parents[2] / "workflows"
PROMPT, NEGATIVE, SAMPLER, SAVE = "2", "3", "5", "7"


def workflow(**changes: Any) -> dict[str, Any]:
    """Returns text-to-image on a random pipeline; `changes` are sampler inputs, or nodes by id with
    prefix `n`.
    """
    nodes: dict[str, Any] = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd1"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a star"}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": ""}},
        "4": {
            "class_type": "EmptyLatentImage",
            "inputs": {"width": 64, "height": 64, "batch_size": 1},
        },
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["2", 0],
                "negative": ["3", 0],
                "latent_image": ["4", 0],
                "seed": 7,
                "steps": 3,
                "cfg": 4.0,
            },
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {
            "class_type": "SaveImage",
            "inputs": {"images": ["6", 0], "filename_prefix": "picture"},
        },
    }
    for name, value in changes.items():
        if name.startswith("n") and name[1:].isdigit():
            nodes[name[1:]] = value
        else:
            nodes[SAMPLER]["inputs"][name] = value
    return nodes


def write(nodes: Any, name: str = "workflow.json") -> Path:
    path = Path(name)
    path.write_text(json.dumps(nodes))
    return path


def test_a_workflow_becomes_a_picture_that_carries_it(katz: Katz, model_folder: Path) -> None:
    result = katz("run", write(workflow()), "--models", model_folder, "--json")
    assert result.code == 0
    data = result.data
    assert set(data) == {
        "outputs",
        "seed",
        "seconds",
        "predicted_seconds",
        "plan",
        "calls",
        "activations",
        "approximations",
    }
    assert data["seed"] == 7 and data["approximations"] == [] and data["activations"] == {}
    assert data["calls"].pop("eager") > 0  # a CPU records nothing
    assert data["calls"] == {"recorded": 0, "replayed": 0, "beside": 0, "shared": 0}
    assert (
        data["seconds"]["total"] >= data["seconds"]["denoise"] > 0 and data["predicted_seconds"] > 0
    )
    (path,) = map(Path, data["outputs"])
    assert path == Path("output/picture_00001_.png").resolve()
    picture = Image.open(path)
    assert picture.size == (64, 64)
    assert json.loads(picture.text["prompt"])[SAMPLER]["inputs"]["seed"] == 7
    # the editor opens this when the picture is dropped on it
    editor = json.loads(picture.text["workflow"])
    sampler = next(node for node in editor["nodes"] if node["type"] == "KSampler")
    assert sampler["widgets_values"][0] == 7 and len(editor["nodes"]) == len(workflow())


def test_a_picture_runs_again_to_the_same_bytes(katz: Katz, model_folder: Path) -> None:
    first = Path(
        katz("run", write(workflow()), "--models", model_folder, "--json").data["outputs"][0]
    )
    again = Path(
        katz("run", first, "--models", model_folder, "--output", "again", "--json").data["outputs"][
            0
        ]
    )
    assert again.read_bytes() == first.read_bytes()


def test_seed_and_set_name_the_changed_node(katz: Katz, model_folder: Path) -> None:
    result = katz(
        "run",
        write(workflow()),
        "--models",
        model_folder,
        "--seed",
        11,
        "--set",
        "5.steps=2",
        "--json",
    )
    assert (
        "node 5 (KSampler): seed = 11" in result.err
        and "node 5 (KSampler): steps = 2" in result.err
    )
    assert result.data["seed"] == 11 and result.data["plan"]["evaluations"] == 2


def test_another_seed_is_another_picture(katz: Katz, model_folder: Path) -> None:
    paths = [
        katz("run", write(workflow()), "--models", model_folder, "--seed", seed, "--json").data[
            "outputs"
        ][0]
        for seed in (1, 2)
    ]
    one, other = (numpy.asarray(Image.open(path)) for path in paths)
    assert paths[1].endswith("picture_00002_.png") and not numpy.array_equal(one, other)


def test_why_gives_a_reason_for_every_node(katz: Katz, model_folder: Path) -> None:
    err = katz("run", write(workflow()), "--models", model_folder, "--why").err
    assert all(f"node {number} (" in err for number in range(1, 8))


def test_a_trace_has_a_lane_per_device_and_an_event_per_segment(
    katz: Katz, model_folder: Path
) -> None:
    assert (
        katz("run", write(workflow()), "--models", model_folder, "--trace", "trace.json").code == 0
    )
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    segments = [event for event in events if event.get("cat") == "segment"]
    assert set(lanes) == {"cpu", "graph"}
    assert [event["args"]["evaluation"] for event in segments] == [0, 1, 2]
    assert all(event["tid"] == lanes["cpu"] and event["dur"] > 0 for event in segments)
    assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in itertools.pairwise(segments))


def test_plan_runs_no_model_and_writes_nothing(
    katz: Katz, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "katz_graph.models.loading.residents.Residents.get",
        lambda *_: pytest.fail("a model was loaded"),
    )
    path = write(workflow())
    text = katz("plan", path, "--models", model_folder)
    assert text.code == 0 and "series-parallel tree: P(S(" in text.out and "predicted" in text.out
    data = katz("plan", path, "--models", model_folder, "--json").data
    assert data["latent"] == [1, 4, 8, 8] and data["evaluations"] == 3
    assert (
        katz("plan", path, "--models", model_folder, "--after", "variants").out.count("variant ")
        == 1
    )
    assert katz("plan", path, "--models", model_folder, "--svg", "plan.svg").code == 0
    assert Path("plan.svg").read_text().count("<rect") > 4
    assert not Path("output").exists()


def test_plan_names_the_node_of_each_operation(katz: Katz, model_folder: Path) -> None:
    def nodes(path: Path) -> dict[str, tuple[str, str]]:
        plan = katz("plan", path, "--models", model_folder, "--json").data
        looped = [one for one in plan["operations"] if not one["hoisted"]]
        return {one["id"]: (one["node"], one["branch"]) for one in looped}

    sampler = nodes(write(workflow()))
    assert sampler["5.positive-mid"] == ("5", "positive")
    assert sampler["5.negative-mid"] == ("5", "negative")
    drawn = nodes(Path(__file__).parents[2] / "workflows" / "loop_by_hand.json")
    assert drawn["31"] == ("31", "") and {node for node, _ in drawn.values()} == set(drawn)


def test_a_size_that_is_no_multiple_of_eight_is_floored_with_a_warning(
    katz: Katz, model_folder: Path
) -> None:
    result = katz(
        "run", write(workflow()), "--models", model_folder, "--set", "4.width=70", "--json"
    )
    assert result.code == 0 and "70x64 is not a multiple of 8; using 64x64" in result.err
    assert Image.open(result.data["outputs"][0]).size == (64, 64)


WRONG_OPTIONS = {
    "--set 5.stepz=3": ("--set", "5.stepz=3"),
    "--set 99.steps=3": ("--set", "99.steps=3"),
    "--set nonsense": ("--set", "nonsense"),
    "--devices cpu*0": ("--devices", "cpu*0"),
    "--devices cpu,cpu": ("--devices", "cpu,cpu"),
    "--devices cuda:99": ("--devices", "cuda:99"),
    "--devices tpu": ("--devices", "tpu"),
    "--link fast": ("--link", "fast"),
    "--threads 0": ("--threads", 0),
    "--place x": ("--place", "x"),
    "--place decoder=cpu": ("--place", "decoder=cpu"),
    "--place controlnet=cpu:7": ("--place", "controlnet=cpu:7", "--devices", "cpu*2"),
    "--allow magic": ("--allow", "magic"),
    "--bogus": ("--bogus",),
    "--models nowhere": ("--models", "nowhere"),
}


@pytest.mark.parametrize("arguments", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_wrong_options_are_one_line_and_code_2(
    katz: Katz, model_folder: Path, arguments: tuple[object, ...]
) -> None:
    result = katz("run", write(workflow()), "--models", model_folder, *arguments)
    assert result.code == 2 and len(result.errors) == 1
    assert not Path("output").exists()


def lying_header(path: Path) -> None:
    path.write_bytes((2**40).to_bytes(8, "little") + b"{}")


def truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def pickle(path: Path) -> None:
    path.rename(path.with_suffix(".bin"))


BROKEN_WEIGHTS = {"truncated": truncated, "lying header": lying_header, "pickle": pickle}


@pytest.mark.parametrize("damage", BROKEN_WEIGHTS.values(), ids=BROKEN_WEIGHTS)
def test_broken_weights_are_refused_by_name(
    katz: Katz, model_folder: Path, damage: Any, tmp_path: Path
) -> None:
    shutil.copytree(model_folder / "checkpoints" / "sd1", "models/checkpoints/sd1")
    damage(Path("models/checkpoints/sd1/unet/diffusion_pytorch_model.safetensors"))
    result = katz("run", write(workflow()), "--models", "models")
    assert result.code == 2 and len(result.errors) == 1
    assert "unet" in result.errors[0] and not Path("output").exists()


def with_lora(name: str) -> dict[str, Any]:
    lora = {
        "class_type": "LoraLoader",
        "inputs": {"model": ["1", 0], "clip": ["1", 1], "lora_name": name},
    }
    return workflow(model=["8", 0], n8=lora)


def test_a_lora_for_another_architecture_names_the_first_mismatch(
    katz: Katz, model_folder: Path
) -> None:
    result = katz("run", write(with_lora("sdxl-first.safetensors")), "--models", model_folder)
    assert result.code == 2 and len(result.errors) == 1
    assert (
        "sdxl-first.safetensors" in result.errors[0] and "another architecture" in result.errors[0]
    )


def test_foreign_tensors_in_a_lora_are_skipped_with_a_warning_or_refused(
    katz: Katz, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model_folder, "models", symlinks=True)
    names = ("sd1-second.safetensors", "more.safetensors")
    source, target = (f"models/loras/{name}" for name in names)
    with safe_open(source, "pt") as file:
        save_file(
            load_file(source) | {"bundle_emb.style.string_to_param.*": torch.zeros(2, 32)},
            target,
            file.metadata(),
        )
    results = [
        katz("run", write(with_lora(name)), "--models", "models", "--json") for name in names
    ]
    assert [result.code for result in results] == [0, 0]
    one, other = (numpy.asarray(Image.open(result.data["outputs"][0])) for result in results)
    assert numpy.array_equal(one, other)
    assert "used without" not in results[0].err
    assert (
        results[1].err.count(
            "more.safetensors: used without tensors of unknown names: "
            "bundle_emb.style.string_to_param.*"
        )
        == 1
    )
    monkeypatch.setenv("KATZ_LORA_KEYS", "strict")  # inherited by workers
    arguments = (write(with_lora(names[1])), "--models", "models", "--devices", "cpu*2")
    strict = katz("run", *arguments)
    assert strict.code == 2 and len(strict.errors) == 1
    assert "more.safetensors: has tensors of unknown names: bundle_emb" in strict.errors[0]


def with_control(name: str, image: str) -> dict[str, Any]:
    return workflow(
        positive=["10", 0],
        negative=["10", 1],
        n8={"class_type": "LoadImage", "inputs": {"image": image}},
        n9={"class_type": "ControlNetLoader", "inputs": {"control_net_name": name}},
        n10={
            "class_type": "ControlNetApplyAdvanced",
            "inputs": {
                "positive": ["2", 0],
                "negative": ["3", 0],
                "control_net": ["9", 0],
                "image": ["8", 0],
            },
        },
    )


def test_a_controlnet_of_the_wrong_width_names_both(katz: Katz, model_folder: Path) -> None:
    Path("input").mkdir()
    Image.new("RGB", (64, 64), "white").save("input/white.png")
    assert (
        katz("run", write(with_control("sd1-control0", "white.png")), "--models", model_folder).code
        == 0
    )
    result = katz(
        "run",
        write(with_control("sdxl-control0", "white.png")),
        "--models",
        model_folder,
        "--output",
        "other",
    )
    assert result.code == 2 and len(result.errors) == 1
    assert "does not fit the UNet" in result.errors[0] and not Path("other").exists()


def test_an_image_that_is_none_is_refused(katz: Katz, model_folder: Path) -> None:
    Path("input").mkdir()
    Path("input/fake.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"nothing of the kind")
    result = katz("run", write(with_control("sd1-control0", "fake.png")), "--models", model_folder)
    assert result.code == 2 and "fake.png: cannot be read as a picture" in result.errors[0]


def test_a_checkpoint_that_is_a_pickle_is_refused_with_the_way_out(
    katz: Katz, model_folder: Path
) -> None:
    result = katz(
        "run", write(workflow()), "--models", model_folder, "--set", "1.ckpt_name=old.ckpt"
    )
    assert result.code == 2 and "pickle" in result.errors[0] and "safetensors" in result.errors[0]


def test_out_of_memory_is_one_line(katz: Katz, model_folder: Path) -> None:
    result = katz(
        "run",
        write(workflow()),
        "--models",
        model_folder,
        "--set",
        "4.width=16384",
        "--set",
        "4.height=16384",
        "--set",
        "4.batch_size=4096",
    )
    assert result.code == 1 and len(result.errors) == 1 and "memory" in result.errors[0]


def test_eviction_reasons_name_both_models(katz: Katz, model_folder: Path) -> None:
    """The budget fits only UNet and text encoder, so the VAE replaces an unused one of them."""
    run = ("run", write(workflow()), "--models", model_folder, "--model-gb", "0.00131")
    result = katz(*run, "--why")
    assert result.code == 0
    assert re.search(
        r"^released (unet|text encoder) sd1 \(0\.00 GB, loaded in \d+\.\d s\) for VAE sd1$",
        result.err,
        re.MULTILINE,
    )
    assert "released" not in katz(*run).err
    result = katz("run", write(workflow()), "--models", model_folder, "--model-gb", "0.001")
    assert (
        result.code == 1
        and "more than the 0.00 GB that models may take (--model-gb)" in result.errors[0]
    )


def test_a_full_disk_leaves_no_half_picture(
    katz: Katz, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Image.Image, file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    result = katz("run", write(workflow()), "--models", model_folder)
    assert (
        result.code == 1
        and len(result.errors) == 1
        and "No space left on device" in result.errors[0]
    )
    assert list(Path("output").iterdir()) == []


def test_one_failing_output_does_not_take_the_others(katz: Katz, model_folder: Path) -> None:
    nodes = workflow(
        n20={
            "class_type": "SaveImage",
            "inputs": {"images": ["6", 0], "filename_prefix": "../../escape"},
        }
    )
    result = katz("run", write(nodes), "--models", model_folder)
    assert result.code == 1 and Path("output/picture_00001_.png").exists()
    assert any("points outside of the output folder" in line for line in result.errors)


def test_a_controlnet_drawn_by_hand_is_the_sampler_s(katz: Katz, model_folder: Path) -> None:
    Path("input").mkdir()
    Image.new("RGB", (64, 64), "white").save("input/white.png")
    applied = with_control("sd1-control0", "white.png")
    applied["10"]["inputs"] |= {"strength": 0.7, "end_percent": 0.5}
    drawn = {key: copy.deepcopy(node) for key, node in applied.items() if key not in ("5", "10")}
    drawn["20"] = {
        "class_type": "StepBegin",
        "inputs": {"model": ["1", 0], "latent_image": ["4", 0], "seed": 7, "steps": 3},
    }
    drawn["21"] = {"class_type": "StepWindow", "inputs": {"step": ["20", 0], "end_percent": 0.5}}
    for text, first in (("3", 30), ("2", 40)):
        common = {"conditioning": [text, 0]}
        encoder, middle, control, switch, decoder = map(str, range(first, first + 5))
        drawn[encoder] = {
            "class_type": "UNetEncoder",
            "inputs": {"model": ["1", 0], "step": ["20", 0], **common},
        }
        drawn[middle] = {
            "class_type": "UNetMid",
            "inputs": {"model": ["1", 0], "features": [encoder, 0], **common},
        }
        inputs = {
            "control_net": ["9", 0],
            "step": ["20", 0],
            "image": ["8", 0],
            "strength": 0.7,
            **common,
        }
        drawn[control] = {"class_type": "ControlNet", "inputs": inputs}
        drawn[switch] = {
            "class_type": "Switch",
            "inputs": {"condition": ["21", 0], "on_true": [control, 0]},
        }
        inputs = {"model": ["1", 0], "features": [middle, 0], "residuals_1": [switch, 0], **common}
        drawn[decoder] = {"class_type": "UNetDecoder", "inputs": inputs}
    drawn["50"] = {
        "class_type": "CFGCombine",
        "inputs": {"cond": ["44", 1], "uncond": ["34", 1], "guidance": 4.0},
    }
    drawn["51"] = {"class_type": "StepEnd", "inputs": {"step": ["20", 0], "prediction": ["50", 0]}}
    drawn["6"]["inputs"]["samples"] = ["51", 0]
    pictures = [
        katz("run", write(nodes), "--models", model_folder, "--json").data["outputs"][0]
        for nodes in (applied, drawn)
    ]
    one, other = (numpy.asarray(Image.open(path)) for path in pictures)
    assert numpy.array_equal(one, other)


def test_prompts_of_different_length_are_sampled(katz: Katz, model_folder: Path) -> None:
    nodes = workflow()
    nodes["2"]["inputs"]["text"] = "a large red star " * 12
    assert katz("run", write(nodes), "--models", model_folder).code == 0
    # sdxl's first block has no cross-attention: it is independent of the text
    nodes["1"]["inputs"]["ckpt_name"] = "sdxl"
    assert katz("run", write(nodes), "--models", model_folder).code == 0


def test_no_denoising_leaves_the_latent_as_it_is(katz: Katz, model_folder: Path) -> None:
    result = katz("run", write(workflow(denoise=0.0)), "--models", model_folder, "--json")
    assert result.code == 0 and result.data["plan"]["evaluations"] == 0
    assert katz("plan", write(workflow(denoise=0.0)), "--models", model_folder).code == 0


def diffusers_workflow(**inputs: Any) -> dict[str, Any]:
    nodes = workflow()
    given = {
        name: nodes[SAMPLER]["inputs"][name]
        for name in ("model", "positive", "negative", "latent_image")
    }
    nodes[SAMPLER] = {
        "class_type": "DiffusersSampler",
        "inputs": given | {"steps": 3, "guidance_scale": 4.0} | inputs,
    }
    return nodes


def test_guidance_of_one_or_less_is_the_positive_prompt_alone_under_a_diffusers_scheduler(
    katz: Katz, model_folder: Path
) -> None:
    pictures = []
    for guidance in (0.0, 1.0):
        result = katz(
            "run",
            write(diffusers_workflow(guidance_scale=guidance)),
            "--models",
            model_folder,
            "--json",
        )
        pictures.append(numpy.asarray(Image.open(result.data["outputs"][0])))
    assert numpy.array_equal(*pictures)


WRONG_SCHEDULERS = {
    "unknown class": {"scheduler_class": "NoSuchScheduler"},
    "not for images": {"scheduler_class": "VQDiffusionScheduler"},
    "configuration that is no JSON": {"scheduler_config": "{"},
    "configuration of a wrong type": {"scheduler_config": '{"num_train_timesteps": "abc"}'},
    "unknown beta schedule": {"scheduler_config": '{"beta_schedule": "x"}'},
}


@pytest.mark.parametrize("inputs", WRONG_SCHEDULERS.values(), ids=WRONG_SCHEDULERS)
def test_a_scheduler_that_cannot_be_set_up_is_one_line(
    katz: Katz, model_folder: Path, inputs: dict[str, str]
) -> None:
    result = katz("run", write(diffusers_workflow(**inputs)), "--models", model_folder)
    assert result.code == 2 and len(result.errors) == 1, result.err


def test_text_encoders_of_another_checkpoint_are_refused_by_name(
    katz: Katz, model_folder: Path
) -> None:
    nodes = workflow(n8={"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sdxl"}})
    nodes["2"]["inputs"]["clip"] = ["8", 1]
    result = katz("run", write(nodes), "--models", model_folder)
    assert result.code == 2 and "do not fit the UNet" in result.errors[0]


def test_an_output_that_is_a_file_is_refused_before_the_run(katz: Katz, model_folder: Path) -> None:
    Path("occupied").write_text("")
    result = katz("run", write(workflow()), "--models", model_folder, "--output", "occupied")
    assert (
        result.code == 2 and "is not a folder" in result.errors[0] and "sampling" not in result.err
    )


@pytest.mark.parametrize(
    "run", [{"batching": "yes"}, {"devices": 3}, {"allow": "magic"}, {"seed": True}]
)
def test_wrong_run_options_in_the_file_are_one_line(
    katz: Katz, model_folder: Path, run: dict[str, Any]
) -> None:
    path = write({"format": "katz", "version": 1, "graph": workflow(), "run": run})
    result = katz("run", path, "--models", model_folder)
    assert result.code == 2 and len(result.errors) == 1, result.err


def start(*arguments: object) -> subprocess.Popen[str]:
    """Starts `katz` in a process that obeys Ctrl-C, even if the test process ignores it."""
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nfrom "
        "katz_graph.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_ends_at_once_with_130_and_leaves_nothing(
    katz: Katz, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a separate cache: its file shows that sampling is near
    monkeypatch.setenv("KATZ_CACHE", "cache")
    path = write(workflow(steps=2000))
    running = start("run", path, "--models", model_folder, "--trace", "trace.json")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(Path("cache").glob("costs-*.sqlite")):
        time.sleep(0.1)
    time.sleep(3)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130, err
    assert "Traceback" not in err and "cancelled" in err
    assert not Path("output").exists() or list(Path("output").iterdir()) == []


def test_every_shipped_workflow_is_a_valid_one() -> None:
    from katz_graph.checks.validate import check
    from katz_graph.formats.read import read_workflow
    from katz_graph.packs import load_registry

    registry, problems = load_registry()
    assert not problems
    for path in sorted(WORKFLOWS.glob("*.json")):
        checked = check(read_workflow(path).graph, registry)
        assert not checked.problems, path


def test_threads_are_those_asked_for(
    katz: Katz, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(
        host,
        "DeviceThread",
        lambda name, threads, *rest: (
            given.append((threads, torch.get_num_threads())) or DeviceThread(name, threads, *rest)
        ),
    )
    assert katz("run", write(workflow()), "--models", model_folder, "--threads", 1).code == 0
    assert given == [(1, 1)]
