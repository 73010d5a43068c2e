"""Packs use models, ControlNets and their loaders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from pack_workshop import AROUND, COND, MODEL, Workshop, node, sampled, text

from katz_graph.comfy.running import compute_device
from katz_graph.executor.graph.context import RunContext
from katz_graph.files.folders import Folders
from katz_graph.ir.device import Device
from katz_graph.node.scope import running
from katz_graph.node.types import Engine


def test_model_attributes_for_packs(workshop: Workshop) -> None:
    body = """
s, f = given["model"].get_model_object("model_sampling"), given["model"].model.latent_format
assert f.latent_channels == 4 and torch.equal(f.process_out(f.process_in(torch.ones(2))), torch.ones(2))
assert abs(float(s.sigma_max) - 14.6146) < 1e-3 and s.percent_to_sigma(1.0) == 0.0 and s.percent_to_sigma(0.0) > 1e6
assert int(s.timestep(s.sigma(torch.tensor(500.0)))) == 500
return (str(given["model"].load_device),)
"""
    assert (
        workshop.outputs(body, MODEL, "STRING", {"out": node("Change", model=["ckpt", 0])})["out"]
        == "cpu"
    )


@pytest.mark.parametrize(
    ("name", "torch_name", "gpus", "expected"),
    [
        ("cuda:0#1", "cuda:0", 1, "cuda:0"),
        ("cpu:1", "cpu", 0, "cpu"),
        ("ray:0", "cpu", 0, "cpu"),
        ("ray:0", "cuda:0", 1, "cuda:0"),
        ("ray:0", "cuda:0", 0, "cpu"),  # another machine's GPU
    ],
)
def test_packs_get_torch_s_device_name(
    name: str, torch_name: str, gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    engine = SimpleNamespace(device=Device(name, 1.0, 1.0, torch_name=torch_name))
    with running(RunContext(cast(Engine, engine), Folders((), Path(), Path()), Path())):
        assert compute_device() == torch.device(expected)


def test_a_controlnet_that_a_pack_applies(workshop: Workshop) -> None:
    body = """
control = given["control"].copy().set_cond_hint(given["image"].movedim(-1, 1), 0.5, (0.0, 0.5))
control.set_previous_controlnet(given["c"][0][1].get("control"))
return ([[t, {**d, "control": control, "control_apply_to_uncond": False}] for t, d in given["c"]],)
"""
    wires = {**COND, "control": "CONTROL_NET", "image": "IMAGE"}
    control = {
        "control_net": ["cn", 0],
        "image": ["i", 0],
        "strength": 0.5,
        "start_percent": 0.0,
        "end_percent": 0.5,
    }
    advanced = "ControlNetApplyAdvanced"
    document = {
        "cn": node("ControlNetLoader", control_net_name="sd1-control0"),
        "i": node("EmptyImage", width=64, height=64, batch_size=1, color=8421504),
        "t": text("a cat"),
        "first": node(advanced, positive=["t", 0], negative=["t", 0], **control),
        "out": node("Change", c=["first", 0], control=["cn", 0], image=["i", 0]),
        "other": node(advanced, positive=["first", 0], negative=["t", 0], **control),
    }
    found = workshop.outputs(body, wires, "CONDITIONING", document)
    assert len(found["out"][0].control) == 2 and found["out"] == found["other"]


def test_the_vae_of_a_controlnet_goes_both_ways(workshop: Workshop) -> None:
    body = """
hint = given["image"].movedim(-1, 1)
control = given["control"].copy().set_cond_hint(hint, 0.5, (0.0, 0.5), vae=given["vae"])
again = control.copy()
applied = [[t, {**d, "control": again, "control_apply_to_uncond": True}] for t, d in given["c"]]
return (applied, [[t, {**d}] for t, d in given["d"]])
"""
    wires = {**COND, "d": "CONDITIONING", "control": "CONTROL_NET", "image": "IMAGE", "vae": "VAE"}
    applied = {
        "control_net": ["cn", 0],
        "image": ["i", 0],
        "strength": 0.5,
        "start_percent": 0.0,
        "end_percent": 0.5,
        "vae": ["ckpt", 2],
    }
    given = {"c": ["t", 0], "d": ["a", 0], "control": ["cn", 0], "image": ["i", 0]}
    document = {
        "cn": node("ControlNetLoader", control_net_name="sd1-control0"),
        "i": node("EmptyImage", width=64, height=64, batch_size=1, color=8421504),
        "t": text("a cat"),
        "a": node("ControlNetApplyAdvanced", positive=["t", 0], negative=["t", 0], **applied),
        "p": node("Change", vae=["ckpt", 2], **given),
        "out": node("ConditioningCombine", conditioning_1=["p", 0], conditioning_2=["p", 1]),
        "other": node("ConditioningCombine", conditioning_1=["a", 0], conditioning_2=["a", 0]),
    }
    found = workshop.outputs(body, wires, "CONDITIONING CONDITIONING", document)
    made, copied = found["out"]
    first, second = found["other"]
    assert first.control[0].vae is not None and copied == second
    assert made.control[0].vae == first.control[0].vae
    assert made.control[0].image == first.control[0].image


def test_a_pack_that_samples_by_a_call(workshop: Workshop) -> None:
    body = """
return nodes.common_ksampler(given["model"], 1, 2, 4.0, "euler", "normal", given["c"], given["d"], given["latent"], denoise=1.0)
"""
    wires = {"model": "MODEL", "c": "CONDITIONING", "d": "CONDITIONING", "latent": "LATENT"}
    call = node("Change", model=["ckpt", 0], c=["t", 0], d=["empty", 0], latent=["latent", 0])
    found = workshop.outputs(
        body, wires, "LATENT", {**AROUND, "t": text("a cat"), "out": call, "other": sampled("t")}
    )
    assert torch.equal(found["out"]["samples"], found["other"]["samples"])


def test_a_pack_that_calls_and_inherits_from_built_in_nodes(workshop: Workshop) -> None:
    body = """
class Mine(nodes.LoraLoader):
    pass
model, clip = Mine().load_lora(given["model"], given["clip"], "sd1-first.safetensors", 0.5, 0.25)
return (model, nodes.CLIPTextEncode().encode(clip, "a cat")[0])
"""
    lora = node(
        "LoraLoader",
        model=["ckpt", 0],
        clip=["ckpt", 1],
        lora_name="sd1-first.safetensors",
        strength_model=0.5,
        strength_clip=0.25,
    )
    document = {"p": node("Change", model=["ckpt", 0], clip=["ckpt", 1]), "l": lora}
    encode = {"out": node("ConditioningCombine", conditioning_1=["p", 1], conditioning_2=["p", 1])}
    encode["other"] = node("CLIPTextEncode", text="a cat", clip=["l", 1])
    found = workshop.outputs(
        body, {**MODEL, "clip": "CLIP"}, "MODEL CONDITIONING", {**document, **encode}
    )
    assert found["out"] == found["other"] * 2


def test_models_by_path_are_the_recipes_of_the_loaders(workshop: Workshop) -> None:
    body = """
import folder_paths, comfy.sd, comfy.controlnet
model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(folder_paths.get_full_path("checkpoints", "sd1"))
weights = comfy.utils.load_torch_file(folder_paths.get_full_path("loras", "sd1-first.safetensors"))
model, clip = comfy.sd.load_lora_for_models(model, clip, weights, 0.5, 0.25)
control = comfy.controlnet.load_controlnet(folder_paths.get_full_path("controlnet", "sd1-control0"))
return ((model, clip, vae, control),)
"""
    loaders = {
        "other": node(
            "LoraLoader",
            model=["ckpt", 0],
            clip=["ckpt", 1],
            lora_name="sd1-first.safetensors",
            strength_model=0.5,
            strength_clip=0.25,
        ),
        "cn": node("ControlNetLoader", control_net_name="sd1-control0"),
        "out": node("Change", vae=["ckpt", 2], control=["cn", 0]),
    }
    wires = {"vae": "VAE", "control": "CONTROL_NET"}
    result = workshop.run(body, wires, "*", loaders)
    result.raise_failures()
    (made,) = result.outputs["out"]
    assert tuple(one.recipe for one in made[:2]) == result.outputs["other"]
    given = workshop.run('return ((given["vae"], given["control"]),)', wires, "*", loaders).outputs[
        "out"
    ][0]
    assert [one.recipe for one in made[2:]] == [one.recipe for one in given]


@pytest.mark.parametrize(
    "change",
    [
        "weights[name] *= 2",
        "del weights[name]",
        "weights = dict(weights)",
        "weights.update({name: one + 1})",
    ],
)
def test_weights_that_a_pack_changed_are_refused(workshop: Workshop, change: str) -> None:
    body = f"""
import folder_paths, comfy.sd
weights = comfy.utils.load_torch_file(folder_paths.get_full_path("loras", "sd1-first.safetensors"))
name, one = next(iter(weights.items()))
{change}
return comfy.sd.load_lora_for_models(given["model"], None, weights, 1.0, 0.0)[:1]
"""
    (error,) = workshop.run(
        body, MODEL, "MODEL", {"out": node("Change", model=["ckpt", 0])}
    ).failures.values()
    assert "load_lora_for_models needs unchanged weights from comfy.utils.load_torch_file" in str(
        error
    )


def test_noise_levels_of_a_schedule(workshop: Workshop) -> None:
    body = """
import comfy.samplers
cut = comfy.samplers.KSampler(given["model"], 4, "cpu", "euler", "karras", denoise=0.5).sigmas
whole = comfy.samplers.calculate_sigmas(given["model"].get_model_object("model_sampling"), "karras", 8)
return (whole, cut)
"""
    document = {
        "out": node("Change", model=["ckpt", 0]),
        "other": node(
            "BasicScheduler", model=["ckpt", 0], scheduler="karras", steps=8, denoise=1.0
        ),
    }
    result = workshop.run(body, MODEL, "SIGMAS SIGMAS", document)
    result.raise_failures()
    whole, cut = result.outputs["out"]
    assert torch.equal(whole, result.outputs["other"][0]) and torch.equal(cut, whole[-5:])


def test_a_pack_that_saves_through_a_built_in_node(workshop: Workshop) -> None:
    body = (
        'saver = nodes.SaveImage()\nsaver.type, saver.prefix_append = "temp", "_x"\nreturn '
        'saver.save_images(given["image"], "mine")'
    )
    document = {
        "i": node("EmptyImage", width=8, height=8, batch_size=1, color=255),
        "out": node("Change", image=["i", 0]),
    }
    workshop.outputs(body, {"image": "IMAGE"}, "IMAGE", document)
    assert [path.name for path in (workshop.folder / "output/temp").iterdir()] == [
        "mine_x_00001_.png"
    ]


def test_any_wire_takes_them_and_gives_them_back(workshop: Workshop) -> None:
    document = {
        "t": text("a cat"),
        "c": node("Change", value=["t", 0]),
        "m": node("Change", value=["ckpt", 0]),
        "out": node("ConditioningCombine", conditioning_1=["c", 0], conditioning_2=["t", 0]),
        "other": node("ModelSamplingDiscrete", model=["m", 0], sampling="eps", zsnr=False),
    }
    found = workshop.outputs('return (given["value"],)', {"value": "*"}, "*", document)
    assert found["out"][0] == found["out"][1]
