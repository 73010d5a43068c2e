"""Sampling functions of packs give the same pictures, or are refused with an error that names
them.
"""

from __future__ import annotations

import pytest
import torch
from pack_workshop import AROUND, MODEL, Workshop, node, sampled, text
from torch import Tensor

from katz_graph.core.events import Event, Progress
from katz_graph.executor.graph.result_store import ResultCache

PLAIN_CFG = (
    'm.set_model_sampler_cfg_function(lambda a: a["uncond"] + (a["cond"] - a["uncond"]) * '
    'a["cond_scale"])'
)


def patched(change: str) -> str:
    return f'm = given["model"].clone()\n{change}\nreturn (m,)'


def both_sampled(workshop: Workshop, change: str, cfg: float = 4.0) -> tuple[Tensor, Tensor]:
    """Returns latents of the changed model and of the plain one."""
    document = {
        **AROUND,
        "t": text("a cat"),
        "m": node("Change", model=["ckpt", 0]),
        "out": sampled("t", ["m", 0], cfg=cfg),
        "other": sampled("t", cfg=cfg),
    }
    found = workshop.outputs(patched(change), MODEL, "MODEL", document)
    return found["out"]["samples"], found["other"]["samples"]


def test_a_guidance_function_that_computes_guidance(workshop: Workshop) -> None:
    changed, plain = both_sampled(workshop, PLAIN_CFG)
    # x - (x - a) is a, rounded
    assert torch.allclose(changed, plain, atol=1e-4 * float(plain.abs().max()))


def test_a_guidance_function_of_three_arguments(workshop: Workshop) -> None:
    changed, plain = both_sampled(
        workshop, "m.set_model_sampler_cfg_function(lambda cond, uncond, scale: cond)"
    )
    alone, _ = both_sampled(workshop, "pass", cfg=1.0)  # guidance 1 is the positive prediction
    assert not torch.equal(changed, plain)
    assert torch.allclose(changed, alone, atol=1e-4 * float(alone.abs().max()))


def test_guidance_functions_may_read_the_model(workshop: Workshop) -> None:
    change = (
        "m.set_model_sampler_post_cfg_function(lambda a: a['denoised'] * "
        "float(a['model'].model_sampling.sigma_max < 15))"
    )
    changed, plain = both_sampled(workshop, change)
    assert torch.equal(changed, plain)


def test_functions_after_guidance_are_applied_in_order(workshop: Workshop) -> None:
    change = "m.set_model_sampler_post_cfg_function(lambda a: a['denoised'] * 0.0 + 1.0)\n"
    change += (
        "m = m.clone()\nm.set_model_sampler_post_cfg_function(lambda a: a['denoised'] * 0.0 "
        "+ a['denoised'] * 2.0)"
    )
    changed, _ = both_sampled(workshop, change)
    scale = 0.18215  # nodes pass latents times 1 / scale
    assert torch.allclose(changed * scale, torch.full_like(changed, 2.0), atol=1e-3)


def test_a_function_that_calls_the_unet(workshop: Workshop) -> None:
    change = (
        "m.set_model_unet_function_wrapper(lambda apply, a: apply(a['input'], "
        "a['timestep'], **a['c']))"
    )
    changed, plain = both_sampled(workshop, change)
    assert torch.allclose(changed, plain, atol=1e-5 * float(plain.abs().max()))


def test_patches_keep_their_order(workshop: Workshop) -> None:
    """A pack's new patch is last; unchanged patches stay before later ones."""
    replaced = 'm.set_model_sampler_cfg_function(lambda a: a["cond"])'
    added = "m.set_model_sampler_post_cfg_function(lambda a: a['denoised'])"
    body = patched(f"{replaced} if not m.recipe.patches else {added}")
    document = {
        "p": node("Change", model=["ckpt", 0]),
        "r": node("RescaleCFG", model=["p", 0], multiplier=0.5),
        "out": node("Change", model=["r", 0]),
        "other": node("RescaleCFG", model=["out", 0], multiplier=0.7),
    }
    found = workshop.outputs(body, MODEL, "MODEL", document)
    kinds = [getattr(patch, "kind", type(patch).__name__) for patch in found["other"].patches]
    assert kinds == ["cfg_function", "RescaledGuidance", "post_cfg_function", "RescaledGuidance"]


def test_a_pack_may_put_a_function_around_the_one_that_is_there(workshop: Workshop) -> None:
    first = (
        'm.set_model_sampler_cfg_function(lambda a: a["uncond"] + (a["cond"] - a["uncond"]) * '
        'a["cond_scale"])'
    )
    second = """before = m.model_options["sampler_cfg_function"]
m.set_model_sampler_cfg_function(lambda a: before({**a, "model": a["model"]}) * float(a["model"].latent_format.latent_channels == 4))"""
    changed, plain = both_sampled(workshop, f"{first}\nm = m.clone()\n{second}")
    assert torch.allclose(changed, plain, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize(
    "change",
    [
        "m.set_model_sampler_post_cfg_function(lambda a: (notify(), a['denoised'])[1])",
        "m.set_model_unet_function_wrapper(lambda apply, a: (notify(), apply(a['input'], "
        "a['timestep'], **a['c']))[1])",
    ],
)
def test_functions_of_packs_reach_the_run_that_samples(workshop: Workshop, change: str) -> None:
    """Includes a second run, whose patched model is cached."""
    cache, says = ResultCache(), "notify = lambda: comfy.utils.ProgressBar(9).update(1)"
    for seed in (1, 2):
        sampling = {
            **AROUND,
            "t": text("a cat"),
            "m": node("Change", model=["ckpt", 0]),
            "out": sampled("t", ["m", 0], seed=seed),
        }
        events: list[Event] = []
        workshop.run(
            patched(f"{says}\n{change}"),
            MODEL,
            "MODEL",
            sampling,
            cache=cache,
            listener=events.append,
        ).raise_failures()
        assert {event.node for event in events if isinstance(event, Progress)} == {"out"}


def test_a_function_with_a_missing_dependency_names_its_pack(workshop: Workshop) -> None:
    change = "m.set_model_sampler_cfg_function(lambda a: a['model'].diffusion_model)"
    document = {
        **AROUND,
        "t": text("a cat"),
        "m": node("Change", model=["ckpt", 0]),
        "out": sampled("t", ["m", 0]),
    }
    (error,) = workshop.run(patched(change), MODEL, "MODEL", document).failures.values()
    assert (
        "pack mine needs comfy.model_patcher.ModelPatcher.model.diffusion_model, which Katz Graph "
        "does not have" in str(error)
    )


def test_a_clone_leaves_the_model_as_it_was(workshop: Workshop) -> None:
    body = (
        'm = given["model"]\nc = m.clone()\nc.set_model_unet_function_wrapper(print)\nassert '
        "m.is_clone(c)\nreturn (m, c)"
    )
    document = {
        "p": node("Change", model=["ckpt", 0]),
        "out": node("Change", model=["p", 0]),
        "other": node("Change", model=["p", 1]),
    }
    found = workshop.outputs(body, MODEL, "MODEL MODEL", document)
    assert found["out"].patches == () and [patch.kind for patch in found["other"].patches] == [
        "network_wrapper"
    ]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (
            "m.set_model_attn1_patch(print)",
            "comfy.model_patcher.ModelPatcher.set_model_attn1_patch",
        ),
        ("m.add_object_patch('a', 1)", "comfy.model_patcher.ModelPatcher.add_object_patch"),
        (
            "m.model.diffusion_model.forward",
            "comfy.model_patcher.ModelPatcher.model.diffusion_model",
        ),
        (
            "m.get_model_object('diffusion_model')",
            "comfy.model_patcher.ModelPatcher.get_model_object('diffusion_model')",
        ),
    ],
)
def test_insides_of_a_model_are_refused_by_name(workshop: Workshop, change: str, name: str) -> None:
    (error,) = workshop.run(
        patched(change), MODEL, "MODEL", {"out": node("Change", model=["ckpt", 0])}
    ).failures.values()
    assert (
        str(error) == f"node out (Change): pack mine needs {name}, which Katz Graph does not have"
    )


def test_patches_in_the_options_of_a_model_are_refused_by_name(workshop: Workshop) -> None:
    change = 'm.model_options["transformer_options"]["patches"] = {"attn2": [print]}'
    (error,) = workshop.run(
        patched(change), MODEL, "MODEL", {"out": node("Change", model=["ckpt", 0])}
    ).failures.values()
    assert "model_options['transformer_options']['patches']" in str(error)
