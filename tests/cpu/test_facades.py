"""Models, text encoders, VAEs, ControlNets and conditionings in the hands of packs: the same
pictures, and refusals by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from foreign_packs import forgetting_shims, write
from safetensors.torch import save_file
from torch import Tensor

from katz_graph.bench.requests import local_engine
from katz_graph.checks.validate import validate
from katz_graph.comfy.finder import installed
from katz_graph.comfy.running import compute_device
from katz_graph.context import Engine
from katz_graph.events import Event, Progress
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import GraphResult, run_graph
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.ir.device import Device
from katz_graph.packs import load_registry
from katz_graph.recipe import Area, Given, Prompt, References
from katz_graph.scope import running

NODE = """
import torch, comfy.utils, nodes, node_helpers

class Change:
    @classmethod
    def INPUT_TYPES(s):
        return {{"required": {{}}, "optional": {{{inputs}}}}}

    RETURN_TYPES = ({outputs},)
    FUNCTION = "go"
    CATEGORY = "test"

    def go(self, **given):
        {body}

NODE_CLASS_MAPPINGS = {{"Change": Change}}
"""


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    with forgetting_shims():
        yield


@dataclass
class Workshop:
    """A pack of one node over the random models of one family, and graphs with it."""

    folder: Path
    models: Path
    engine: DeviceEngine
    family: str = "sd1"
    warnings: tuple[str, ...] = ()
    encoded: int = 0

    def run(
        self,
        body: str,
        wires: Mapping[str, str],
        gives: str,
        document: Mapping[str, Any],
        cache: ResultCache | None = None,
        listener: Callable[[Event], None] = lambda _: None,
    ) -> GraphResult:
        """Run a document in which Change is a node whose function has this body."""
        inputs = ", ".join(f'"{name}": ("{socket}",)' for name, socket in wires.items())
        lines = "\n        ".join(line for line in body.strip().splitlines())
        outputs = ", ".join(f'"{socket}"' for socket in gives.split())
        packs = write(
            self.folder / "packs", mine=NODE.format(inputs=inputs, outputs=outputs, body=lines)
        )
        folders = Folders((self.models,), self.folder / "input", self.folder / "output")
        registry, problems = load_registry([packs], folders)
        assert problems == []
        loader = {"ckpt": node("CheckpointLoaderSimple", ckpt_name=self.family)}
        graph = from_api({**loader, **document})
        assert [
            problem
            for problem in validate(graph, registry, folders)
            if problem.node and problem.severity == "error"
        ] == []
        context = RunContext(
            self.engine, folders, folders.output, listener=listener, types=registry
        )
        targets = [name for name in document if name in ("out", "other")]
        result = run_graph(
            graph, context, ResultCache() if cache is None else cache, targets=targets
        )
        self.warnings = tuple(context.warnings)
        return result

    def outputs(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """The first output of each target."""
        result = self.run(*arguments, **named)
        result.raise_failures()
        return {name: values[0] for name, values in result.outputs.items()}


@pytest.fixture
def workshop(tmp_path: Path, model_folder: Path, costs: Path) -> Iterator[Workshop]:
    with local_engine(batching=False, cache=costs) as engine:
        yield Workshop(tmp_path, model_folder, engine)


@pytest.fixture
def counted(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Counts encodings of text outside of sampling."""
    encode: Callable[..., Any] = workshop.engine.encode_text

    def counting(*arguments: Any) -> Any:
        workshop.encoded += 1
        return encode(*arguments)

    monkeypatch.setattr(workshop.engine, "encode_text", counting)
    return workshop


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def text(words: str) -> dict[str, Any]:
    return node("CLIPTextEncode", text=words, clip=["ckpt", 1])


def sampled(
    positive: str, model: list[Any] | None = None, steps: int = 2, cfg: float = 4.0, seed: int = 1
) -> dict[str, Any]:
    return node(
        "KSampler",
        **{
            "model": model or ["ckpt", 0],
            "seed": seed,
            "steps": steps,
            "cfg": cfg,
            "sampler_name": "euler",
            "scheduler": "normal",
        },
        **{
            "positive": [positive, 0],
            "negative": ["empty", 0],
            "latent_image": ["latent", 0],
            "denoise": 1.0,
        },
    )


AROUND = {"empty": text(""), "latent": node("EmptyLatentImage", width=64, height=64, batch_size=1)}
PASS = 'return (given["c"],)'
COND = {"c": "CONDITIONING"}


def test_a_conditioning_that_is_passed_on_stays_a_recipe(counted: Workshop) -> None:
    document = {"t": text("a cat"), "out": node("Change", c=["t", 0])}
    (entry,) = counted.outputs(PASS, COND, "CONDITIONING", document)["out"]
    assert isinstance(entry.encoding, Prompt) and entry.encoding.text == "a cat"
    both = {"t": text("a cat"), "u": text("a dog"), "out": node("Change", c=["t", 0], d=["u", 0])}
    joined = counted.outputs(
        'return (given["c"] + given["d"],)', {**COND, "d": "CONDITIONING"}, "CONDITIONING", both
    )["out"]
    assert [one.encoding.text for one in joined] == ["a cat", "a dog"]
    assert counted.encoded == 0


def test_a_conditioning_that_was_looked_into_is_still_the_same(workshop: Workshop) -> None:
    body = (
        'c = given["c"]\nassert len(c) == 1 and c[0][0].ndim == 3\nreturn ([[t, dict(d)] for '
        "t, d in c],)"
    )
    document = {
        "t": text("a cat"),
        "out": node("Change", c=["t", 0]),
        "other": node("Change", c=["out", 0]),
    }
    found = workshop.outputs(body, COND, "CONDITIONING", document)
    assert found["out"] == found["other"] and isinstance(found["out"][0].encoding, Prompt)


@pytest.mark.parametrize(
    ("options", "kind", "inputs"),
    [
        (
            '{"strength": 0.5, "area": (8, 16, 0, 2)}',
            "ConditioningSetArea",
            {"width": 128, "height": 64, "x": 16, "y": 0, "strength": 0.5},
        ),
        (
            '{"start_percent": 0.25, "end_percent": 0.75}',
            "ConditioningSetTimestepRange",
            {"start": 0.25, "end": 0.75},
        ),
        (
            '{"strength": 1.0, "area": ("percentage", 0.5, 0.25, 0.0, 0.125)}',
            "ConditioningSetAreaPercentage",
            {"width": 0.25, "height": 0.5, "x": 0.125, "y": 0.0, "strength": 1.0},
        ),
    ],
)
def test_options_mean_what_the_built_in_nodes_mean(
    workshop: Workshop, options: str, kind: str, inputs: Mapping[str, Any]
) -> None:
    body = f'return (node_helpers.conditioning_set_values(given["c"], {options}),)'
    document = {
        "t": text("a cat"),
        "out": node("Change", c=["t", 0]),
        "other": node(kind, conditioning=["t", 0], **inputs),
    }
    found = workshop.outputs(body, COND, "CONDITIONING", document)
    assert found["out"] == found["other"]


def test_options_of_built_in_nodes_reach_packs(workshop: Workshop) -> None:
    body = (
        'return (str(sorted(set(given["c"][0][1]) - {"pooled_output"})) + '
        'str(given["c"][0][1]["area"]),)'
    )
    area = node(
        "ConditioningSetArea", conditioning=["t", 0], width=128, height=64, x=16, y=8, strength=0.5
    )
    document = {"t": text("a cat"), "a": area, "out": node("Change", c=["a", 0])}
    assert (
        workshop.outputs(body, COND, "STRING", document)["out"]
        == "['area', 'strength'](8, 16, 1, 2)"
    )


def test_masks_go_both_ways(workshop: Workshop) -> None:
    body = (
        'c = given["c"]\nassert c[0][1]["mask_strength"] == 0.75\nreturn ([[t, {**d}] for '
        "t, d in c],)"
    )
    mask = node(
        "ConditioningSetMask",
        conditioning=["t", 0],
        mask=["m", 0],
        strength=0.75,
        set_cond_area="mask bounds",
    )
    document = {
        "t": text("a cat"),
        "m": node("SolidMask", value=1.0, width=64, height=64),
        "other": mask,
        "out": node("Change", c=["other", 0]),
    }
    found = workshop.outputs(body, COND, "CONDITIONING", document)
    assert found["out"] == found["other"]


def test_changed_tensors_are_what_is_sampled_with(workshop: Workshop) -> None:
    body = 'return ([[t * 0.0, d] for t, d in given["c"]],)'
    document = {
        **AROUND,
        "t": text("a cat"),
        "c": node("Change", c=["t", 0]),
        "z": node("ConditioningZeroOut", conditioning=["t", 0]),
        "out": sampled("c"),
        "other": sampled("z"),
    }
    found = workshop.outputs(body, COND, "CONDITIONING", document)
    assert torch.equal(found["out"]["samples"], found["other"]["samples"])


def test_tensors_that_were_changed_in_place_are_noticed(workshop: Workshop) -> None:
    body = 'c = given["c"]\nc[0][0].mul_(0.5)\nreturn (c,)'
    document = {"t": text("a cat"), "out": node("Change", c=["t", 0])}
    (entry,) = workshop.outputs(body, COND, "CONDITIONING", document)["out"]
    assert isinstance(entry.encoding, Given)


@pytest.mark.parametrize("kind", ["FluxGuidance", "FluxDisableGuidance"])
def test_guidance_and_references_survive_a_copy(workshop: Workshop, kind: str) -> None:
    body = 'return ([[t, {**d}] for t, d in given["c"]],)'
    method = node(
        "FluxKontextMultiReferenceLatentMethod",
        conditioning=["r", 0],
        reference_latents_method="uxo/uno",
    )
    document = {
        **AROUND,
        "t": text("a cat"),
        "g": node(kind, conditioning=["t", 0]),
        "r": node("ReferenceLatent", conditioning=["g", 0], latent=["latent", 0]),
        "other": method,
        "out": node("Change", c=["other", 0]),
    }
    found = workshop.outputs(body, COND, "CONDITIONING", document)
    assert found["out"] == found["other"] and workshop.warnings == ()
    (entry,) = found["out"]
    assert entry.guidance == ("off" if kind == "FluxDisableGuidance" else 3.5)
    assert entry.references.placing == "uxo" and len(entry.references.latents) == 1


def test_guidance_and_references_of_packs_are_those_of_the_built_in_nodes(
    workshop: Workshop,
) -> None:
    body = """
c = node_helpers.conditioning_set_values(given["c"], {"guidance": 2})
latent = {"reference_latents": [given["l"]["samples"]]}
return (node_helpers.conditioning_set_values(c, latent, append=True),)
"""
    document = {
        **AROUND,
        "t": text("a cat"),
        "g": node("FluxGuidance", conditioning=["t", 0], guidance=2.0),
        "other": node("ReferenceLatent", conditioning=["g", 0], latent=["latent", 0]),
        "out": node("Change", c=["t", 0], l=["latent", 0]),
    }
    found = workshop.outputs(body, {**COND, "l": "LATENT"}, "CONDITIONING", document)
    assert found["out"] == found["other"] and workshop.warnings == ()
    assert isinstance(found["out"][0].references, References)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('{"reference_latents": [torch.zeros(4, 8, 8)]}', "has [4, 8, 8] in reference_latents"),
        ('{"reference_latents_method": "elsewhere"}', "expected one of offset, index, uxo"),
    ],
)
def test_references_that_cannot_be_read_are_refused(
    workshop: Workshop, options: str, words: str
) -> None:
    body = f'return (node_helpers.conditioning_set_values(given["c"], {options}),)'
    document = {"t": text("a cat"), "out": node("Change", c=["t", 0])}
    (error,) = workshop.run(body, COND, "CONDITIONING", document).failures.values()
    assert words in str(error)


def test_unknown_options_stay_and_are_said_once(workshop: Workshop) -> None:
    body = (
        'c = given["c"]\nseen = c[0][1].get("sparkle", 0)\nreturn ([[t, {**d, "sparkle": seen + '
        "1}] for t, d in c],)"
    )
    steps = {
        "a": node("Change", c=["t", 0]),
        "b": node("Change", c=["a", 0]),
        "out": node("Change", c=["b", 0]),
    }
    (entry,) = workshop.outputs(body, COND, "CONDITIONING", {"t": text("a cat"), **steps})["out"]
    assert entry.options == {"sparkle": 3}
    assert workshop.warnings == (
        "conditioning: options that have no meaning here are kept, but change nothing: sparkle",
    )


def test_what_is_no_conditioning_is_refused(workshop: Workshop) -> None:
    document = {"t": text("a cat"), "out": node("Change", c=["t", 0])}
    (error,) = workshop.run(
        'return ([["words", {}]],)', COND, "CONDITIONING", document
    ).failures.values()
    assert (
        str(error)
        == "node out (Change): the conditioning has a str for a text encoding, expected a tensor "
        "[batch, tokens, width]"
    )


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_a_text_that_a_pack_encodes(workshop: Workshop, family: str) -> None:
    workshop.family = family
    body = """
clip = given["clip"].clone()
tokens = clip.tokenize("a (big:1.3) cat")
cond, pooled = clip.encode_from_tokens(tokens, return_pooled=True)
return ([[cond, {"pooled_output": pooled}]], clip.encode_from_tokens_scheduled(tokens))
"""
    document = {
        "other": text("a (big:1.3) cat"),
        "p": node("Change", clip=["ckpt", 1]),
        "out": node("ConditioningCombine", conditioning_1=["p", 0], conditioning_2=["p", 1]),
    }
    found = workshop.outputs(body, {"clip": "CLIP"}, "CONDITIONING CONDITIONING", document)
    assert found["out"] == found["other"] * 2


def test_two_texts_for_two_encoders(workshop: Workshop) -> None:
    workshop.family = "sdxl"
    body = f"""
clip = given["clip"]
tokens = clip.tokenize("a cat")
tokens["l"] = clip.tokenize("{"a very long style " * 30}")["l"]
empty = clip.tokenize("")
while len(tokens["l"]) > len(tokens["g"]):
    tokens["g"] += empty["g"]
return (clip.encode_from_tokens_scheduled(tokens),)
"""
    (entry,) = workshop.outputs(
        body, {"clip": "CLIP"}, "CONDITIONING", {"out": node("Change", clip=["ckpt", 1])}
    )["out"]
    assert entry.encoding.text.startswith("a very long style") and entry.encoding.further == (
        "a cat",
    )


def test_tokens_that_a_pack_made_up_are_refused(workshop: Workshop) -> None:
    body = (
        'tokens = given["clip"].tokenize("a cat")\ntokens["l"][0][1] = (5, 1.0)\nreturn '
        '(given["clip"].encode_from_tokens(tokens),)'
    )
    (error,) = workshop.run(
        body, {"clip": "CLIP"}, "CONDITIONING", {"out": node("Change", clip=["ckpt", 1])}
    ).failures.values()
    assert "the pack changed the tokens of a text" in str(error)


def test_another_layer_of_the_encoder(workshop: Workshop) -> None:
    body = (
        'clip = given["clip"].clone()\nclip.clip_layer(-2)\nassert given["clip"].layer_idx is '
        "None\nreturn (clip,)"
    )
    layer = node("CLIPSetLastLayer", clip=["ckpt", 1], stop_at_clip_layer=-2)
    found = workshop.outputs(
        body, {"clip": "CLIP"}, "CLIP", {"out": node("Change", clip=["ckpt", 1]), "other": layer}
    )
    assert found["out"] == found["other"]


def test_pictures_and_latents(workshop: Workshop) -> None:
    body = """
image = given["vae"].decode(given["latent"]["samples"])
image[:, 0] = 0.0
return (image, {"samples": given["vae"].encode(image)})
"""
    wires = {"vae": "VAE", "latent": "LATENT"}
    document = {
        **AROUND,
        "p": node("Change", vae=["ckpt", 2], latent=["latent", 0]),
        "other": node("VAEEncode", pixels=["p", 0], vae=["ckpt", 2]),
        "out": node("LatentBatch", samples1=["p", 1], samples2=["p", 1]),
    }
    found = workshop.outputs(body, wires, "IMAGE LATENT", document)
    assert torch.equal(found["out"]["samples"][:1], found["other"]["samples"])


@pytest.mark.parametrize(
    ("tiled", "built_in"),
    [
        (
            'given["vae"].decode_tiled(z, tile_x=8, tile_y=16, overlap=2)',
            {"tile_size": 64, "overlap": 16},
        ),
        ('given["vae"].decode_tiled(z)', {"tile_size": 512, "overlap": 64}),
    ],
)
def test_tiles_of_a_pack_are_those_of_the_engine(
    workshop: Workshop, tiled: str, built_in: Mapping[str, int]
) -> None:
    """Cells of a latent for a pack, pixels for a node."""
    body = (
        f"z = torch.randn(1, 4, 12, 12, generator=torch.manual_seed(0))\nreturn ({tiled}, "
        f'{{"samples": z}})'
    )
    document = {
        "out": node("Change", vae=["ckpt", 2]),
        "other": node(
            "VAEDecodeTiled",
            samples=["out", 1],
            vae=["ckpt", 2],
            temporal_size=64,
            temporal_overlap=8,
            **built_in,
        ),
    }
    found = workshop.outputs(body, {"vae": "VAE"}, "IMAGE LATENT", document)
    assert torch.equal(found["out"], found["other"])


def test_a_pack_encodes_in_tiles(workshop: Workshop) -> None:
    body = 'x = torch.rand(1, 96, 96, 3, generator=torch.manual_seed(0))\nv = given["vae"]\n'
    body += 'return ({"samples": v.encode_tiled(x, tile_x=64, tile_y=64, overlap=16)}, x)'
    document = {
        "out": node("Change", vae=["ckpt", 2]),
        "other": node(
            "VAEEncodeTiled",
            pixels=["out", 1],
            vae=["ckpt", 2],
            tile_size=64,
            overlap=16,
            temporal_size=64,
            temporal_overlap=8,
        ),
    }
    found = workshop.outputs(body, {"vae": "VAE"}, "LATENT IMAGE", document)
    assert torch.equal(found["out"]["samples"], found["other"]["samples"])


MODEL = {"model": "MODEL"}
PLAIN_CFG = (
    'm.set_model_sampler_cfg_function(lambda a: a["uncond"] + (a["cond"] - a["uncond"]) * '
    'a["cond_scale"])'
)


def patched(change: str) -> str:
    return f'm = given["model"].clone()\n{change}\nreturn (m,)'


def both_sampled(workshop: Workshop, change: str, cfg: float = 4.0) -> tuple[Tensor, Tensor]:
    """Latents with the model as a pack changed it, and as it was."""
    document = {
        **AROUND,
        "t": text("a cat"),
        "m": node("Change", model=["ckpt", 0]),
        "out": sampled("t", ["m", 0], cfg=cfg),
        "other": sampled("t", cfg=cfg),
    }
    found = workshop.outputs(patched(change), MODEL, "MODEL", document)
    return found["out"]["samples"], found["other"]["samples"]


def test_a_guidance_function_that_says_what_guidance_is(workshop: Workshop) -> None:
    changed, plain = both_sampled(workshop, PLAIN_CFG)
    # x - (x - a) is a but for rounding
    assert torch.allclose(changed, plain, atol=1e-4 * float(plain.abs().max()))


def test_a_guidance_function_of_three_arguments(workshop: Workshop) -> None:
    changed, plain = both_sampled(
        workshop, "m.set_model_sampler_cfg_function(lambda cond, uncond, scale: cond)"
    )
    alone, _ = both_sampled(workshop, "pass", cfg=1.0)  # guidance 1 is the positive side alone
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
    scale = 0.18215  # a sampler's latent times 1 / scale stands on the wire
    assert torch.allclose(changed * scale, torch.full_like(changed, 2.0), atol=1e-3)


def test_a_function_that_calls_the_unet(workshop: Workshop) -> None:
    change = (
        "m.set_model_unet_function_wrapper(lambda apply, a: apply(a['input'], "
        "a['timestep'], **a['c']))"
    )
    changed, plain = both_sampled(workshop, change)
    assert torch.allclose(changed, plain, atol=1e-5 * float(plain.abs().max()))


def test_patches_keep_their_order(workshop: Workshop) -> None:
    """What a pack sets comes last; what it leaves as it was stays before what was set later."""
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
        "m.set_model_sampler_post_cfg_function(lambda a: (told(), a['denoised'])[1])",
        "m.set_model_unet_function_wrapper(lambda apply, a: (told(), apply(a['input'], "
        "a['timestep'], **a['c']))[1])",
    ],
)
def test_functions_of_packs_reach_the_run_that_samples(workshop: Workshop, change: str) -> None:
    """Also the second one, for which the patched model comes from the cache."""
    cache, says = ResultCache(), "told = lambda: comfy.utils.ProgressBar(9).update(1)"
    for seed in (1, 2):
        sampling = {
            **AROUND,
            "t": text("a cat"),
            "m": node("Change", model=["ckpt", 0]),
            "out": sampled("t", ["m", 0], seed=seed),
        }
        told: list[Event] = []
        workshop.run(
            patched(f"{says}\n{change}"),
            MODEL,
            "MODEL",
            sampling,
            cache=cache,
            listener=told.append,
        ).raise_failures()
        assert {event.node for event in told if isinstance(event, Progress)} == {"out"}


def test_a_function_that_needs_what_is_not_there_names_its_pack(workshop: Workshop) -> None:
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


def test_what_a_pack_may_know_of_a_model(workshop: Workshop) -> None:
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
        ("ray:0", "cuda:0", 0, "cpu"),  # the GPU is another machine's
    ],
)
def test_packs_are_told_the_device_as_torch_calls_it(
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
    first, kept = found["other"]
    assert first.control[0].vae is not None and copied == kept
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
    assert "load_lora_for_models takes weights as comfy.utils.load_torch_file gives them" in str(
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


def utils(folder: Path) -> Any:
    load_registry([write(folder / "packs", one="NODE_CLASS_MAPPINGS = {}\n")])
    assert installed()
    import comfy.utils

    return comfy.utils


def test_sizes(tmp_path: Path) -> None:
    scale = utils(tmp_path).common_upscale
    picture = torch.rand(2, 3, 16, 32)
    assert scale(picture, 8, 24, "bilinear", "disabled").shape == (2, 3, 24, 8)
    middle = scale(picture, 16, 16, "nearest-exact", "center")
    assert torch.equal(middle, picture[..., 8:24])
    assert scale(torch.rand(1, 4, 5, 16, 16), 8, 8, "area", "disabled").shape == (1, 4, 5, 8, 8)


def test_tiles_of_a_function_that_works_on_pixels_are_the_whole(tmp_path: Path) -> None:
    comfy_utils = utils(tmp_path)
    picture = torch.rand(2, 3, 40, 56)
    calls = []

    def double(tile: Tensor) -> Tensor:
        calls.append(tile.shape)
        return torch.nn.functional.interpolate(tile, scale_factor=2, mode="nearest")

    whole = torch.nn.functional.interpolate(picture, scale_factor=2, mode="nearest")
    made = comfy_utils.tiled_scale(
        picture, double, tile_x=24, tile_y=16, overlap=8, upscale_amount=2, out_channels=3
    )
    assert torch.allclose(made, whole, atol=1e-6)
    assert len(calls) == 2 * comfy_utils.get_tiled_scale_steps(56, 40, 24, 16, 8)
    assert set(calls) == {torch.Size((1, 3, 16, 24))}


def test_weight_files(tmp_path: Path) -> None:
    comfy_utils = utils(tmp_path)
    save_file({"a.weight": torch.ones(2, 3)}, tmp_path / "x.safetensors", metadata={"made": "here"})
    tensors, metadata = comfy_utils.load_torch_file(
        str(tmp_path / "x.safetensors"), return_metadata=True
    )
    assert torch.equal(tensors["a.weight"], torch.ones(2, 3)) and metadata == {"made": "here"}
    assert comfy_utils.calculate_parameters(tensors, "a.") == 6
    assert list(
        comfy_utils.state_dict_prefix_replace({"a.x": 1, "b.x": 2}, {"a.": "c."}, filter_keys=True)
    ) == ["c.x"]
    with pytest.raises(Exception, match="is a pickle, which can run code"):
        comfy_utils.load_torch_file(str(tmp_path / "x.ckpt"))
    assert (
        comfy_utils.set_attr(nested := torch.nn.Sequential(torch.nn.Linear(2, 2)), "0.bias", None)
        is not None
    )
    assert comfy_utils.get_attr(nested, "0.bias") is None


def test_areas_are_in_latent_cells() -> None:
    from katz_graph.comfy.facades.conditioning import options_of
    from katz_graph.recipe import ConditioningEntry

    entry = ConditioningEntry(Given("", torch.zeros(1, 1, 1), None), area=Area(1, 2, 3, 4))
    assert options_of(entry, None)["area"] == (3, 4, 1, 2)
