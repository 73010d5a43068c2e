"""Conditionings, text encoders, VAEs and latents used by packs give the same pictures, or are
refused with an error that names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from pack_workshop import AROUND, COND, PASS, Workshop, node, sampled, text

from katz_graph.core.recipe import Given, Prompt, References


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
def test_options_match_the_built_in_nodes(
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


def test_sampling_uses_changed_tensors(workshop: Workshop) -> None:
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


def test_unknown_options_stay_and_are_reported_once(workshop: Workshop) -> None:
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
        "conditioning: unknown options are passed on without effect: sparkle",
    )


def test_invalid_conditionings_are_refused(workshop: Workshop) -> None:
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
    """Packs count in latent cells, nodes in pixels."""
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
