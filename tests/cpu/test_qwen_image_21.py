"""Qwen-Image 2.1 transformers in stages equal diffusers' `forward`, without and with references at
the places of their vision tokens. Positions are ComfyUI's where sides differ by half a cell. Files
are read in ComfyUI's layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders.single_file_utils import (
    convert_qwen_image21_transformer_checkpoint_to_diffusers,
)
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers_made import in_stages

from katz_graph.core.errors import InputError
from katz_graph.core.patches import WholeSequence
from katz_graph.core.recipe import Component, ConditioningEntry, Picture, Prompt, References
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.ir.values import Step, TextEncoding
from katz_graph.models.configuration import config
from katz_graph.models.family import architecture, text_set
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.nodes.edit_prompts import TextEncodeQwenImage21
from katz_graph.nodes.patches import QwenImage21Cache
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.sampling import table_of
from katz_graph.testing.random_models import draw_network, make_pipeline
from katz_graph.testing.requests import bare_context, local_engine
from katz_graph.testing.stand_ins.formats import write

SIDES = 6, 8  # cells of a picture
TOKENS, FIRST, LEVEL = 9, 2, 0.4375  # tokens of text, of them before the first vision token
SIZES = (4, 6), (6, 4)  # cells of references
BEGIN = {"latent_image": {"samples": torch.zeros(1, 64, *SIDES)}}
PREFIX = "model.diffusion_model."

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def made(dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    return draw_network("qwen_image_21", 3, blocks=3, spread=0.15, **changed).to(dtype)


def slots_of(sizes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the vision tokens of pictures, with one word between two of them."""
    found: list[int] = []
    first = FIRST
    for high, wide in sizes:
        found += range(first, first + high * wide // 4)
        first += high * wide // 4 + 1
    return tuple(found)


def given(
    batch: int,
    dtype: torch.dtype = torch.float32,
    sizes: Sequence[Sequence[int]] = (),
    sides: Sequence[int] = SIDES,
) -> tuple[Step, TextEncoding, tuple[Tensor, ...]]:
    draw = torch.Generator().manual_seed(4)
    slots = slots_of(sizes)
    x = torch.randn(batch, 64, *sides, generator=draw).to(dtype)
    hidden = torch.randn(batch, TOKENS + len(slots), 96, generator=draw).to(dtype)
    seen = tuple(torch.randn(batch, 64, *size, generator=draw).to(dtype) for size in sizes)
    return Step.of(x.float(), x, LEVEL, LEVEL), TextEncoding(hidden, slots=slots), seen


def rows(latent: Tensor) -> Tensor:
    return latent.flatten(2).transpose(1, 2)


class Apart(nn.Module):
    """Embeds the picture and each reference by separate products, as the stages do: rounding in
    bfloat16 depends on the number of rows.
    """

    def __init__(self, layer: Any, counts: Sequence[int]) -> None:
        super().__init__()
        self.layer, self.counts = layer, list(counts)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.split(self.counts, dim=1)
        return torch.cat([self.layer(one.contiguous()) for one in parts], dim=1)


def forward(
    module: Any, step: Step, text: TextEncoding, seen: Sequence[Tensor], **more: Any
) -> Tensor:
    """Returns diffusers' prediction, called as its pipeline calls the module."""
    x = step.model_input
    shapes = [(1, *one.shape[-2:]) for one in (*seen, x)]
    counts = [height * width for _, height, width in shapes]
    count = text.hidden.shape[1]
    vision = torch.zeros(len(x), count + counts[-1] // 4, dtype=torch.bool)
    vision[:, [*text.slots, *range(count, vision.shape[1])]] = True
    layer = module.img_in
    module.img_in = Apart(layer, counts)
    whole = module(
        torch.cat([rows(one) for one in (*seen, x)], dim=1),
        text.hidden,
        step.timestep.float(),
        [shapes] * len(x),
        vision,
        **more,
    ).sample
    module.img_in = layer
    return whole[:, -counts[-1] :].transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("sizes", [(), SIZES])
def test_stages_match_forward(
    sizes: Sequence[Sequence[int]], batch: int, dtype: torch.dtype
) -> None:
    """Prepared or not; with fused projections within rounding. References are embedded apart."""
    module = made(dtype)
    step, text, seen = given(batch, dtype, sizes)
    wanted = forward(module, step, text, seen)
    assert wanted.std() > 0.1
    for cuts in ([], [0], [0, 1]):
        assert torch.equal(in_stages(module, step, text, cuts, seen), wanted)
    prepare(module)
    assert torch.equal(in_stages(module, step, text, [1], seen), wanted)
    fuse_projections(module)
    found = in_stages(module, step, text, [1], seen)
    bound = 1e-5 if dtype == torch.float32 else 0.05
    assert (found - wanted).abs().max() <= bound * (wanted.max() - wanted.min())


def test_a_reference_takes_the_place_of_its_vision_tokens() -> None:
    module = made()
    step, text, seen = given(1, sizes=SIZES)
    whole = in_stages(module, step, text, [], seen)
    moved = TextEncoding(text.hidden, slots=tuple(slot + 1 for slot in text.slots))
    behind = TextEncoding(text.hidden)
    without = in_stages(module, step, text, [])  # the model reads the vision tokens
    for other in (moved, behind):
        assert (in_stages(module, step, other, [], seen) - whole).abs().max() > 1e-3
    assert (without - whole).abs().max() > 1e-3
    for number in range(2):
        changed = tuple(one + (place == number) for place, one in enumerate(seen))
        assert (in_stages(module, step, text, [], changed) - whole).abs().max() > 1e-3


def test_references_must_have_the_cells_of_their_vision_tokens() -> None:
    step, text, seen = given(1, sizes=SIZES)
    with pytest.raises(InputError, match=r"have 24 cells, the 12 vision tokens .* stand for 48"):
        in_stages(made(), step, text, [], seen[:1])


class Placed(nn.Module):
    """Rotates by ids [S, 3]: order, row, column."""

    def __init__(self, tables: Any, ids: Tensor) -> None:
        super().__init__()
        self.tables, self.ids = tables, ids

    def forward(self, *_: Any, **__: Any) -> Tensor:
        widths = enumerate(self.tables.axes_dim)
        parts = [self.tables.rope_params(self.ids[:, axis], width) for axis, width in widths]
        return torch.cat(parts, dim=-1)


@pytest.mark.parametrize("sides", [(6, 8), (7, 8), (8, 5)])
def test_references_are_centred_on_the_picture(sides: tuple[int, int]) -> None:
    """diffusers centres them by themselves, half a cell aside if only the picture's side is odd."""
    module = made()
    step, text, seen = given(1, sizes=[(4, 6)], sides=sides)
    found = in_stages(module, step, text, [], seen)
    stock = forward(module, step, text, seen)
    words = [[place] * 3 for place in range(TOKENS)]
    corner = [side // 2 - side for side in sides]
    at = [corner[0] + (sides[0] - 4) / 2, corner[1] + (sides[1] - 6) / 2]
    reference = [[FIRST, at[0] + row, at[1] + column] for row in range(4) for column in range(6)]
    behind = [[place + 6] * 3 for place in range(FIRST, TOKENS)]  # its longer side
    picture = [
        [TOKENS + 6, corner[0] + row, corner[1] + column]
        for row in range(sides[0])
        for column in range(sides[1])
    ]
    ids = [*words[:FIRST], *reference, *behind, *picture]
    module.pos_embed = Placed(module.pos_embed, torch.tensor(ids, dtype=torch.float32))
    wanted = forward(module, step, text, seen)
    assert torch.equal(found, wanted)
    assert torch.equal(stock, wanted) == (sides == (6, 8))


# Files

HEADS = {"attention_head_dim": 32, "axes_dims_rope": [4, 14, 14]}  # in published proportions


def fused(tensors: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Returns a transformer's tensors as ComfyUI publishes them."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("gate_layer.weight"):
            up = tensors[name.replace("gate_layer", "proj")]
            found[prefix + name.replace("gate_layer", "gate_up")] = torch.cat([tensor, up])
        elif ".img_mlp.proj." not in name:
            found[prefix + name] = tensor.clone()
    return found


@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("whole", [False, True])
def test_a_file_has_the_tensors_of_diffusers_converter(
    whole: bool, prefix: str, tmp_path: Path
) -> None:
    module = made(**HEADS)
    tensors = dict(module.state_dict())
    stored = fused(tensors, prefix) if whole else {prefix + name: tensors[name] for name in tensors}
    save_file(stored, tmp_path / "model.safetensors")
    network = network_recipe(tmp_path / "model.safetensors").network
    values = config(network)
    shared = values.keys() & module.config.keys()
    assert len(shared) >= 8
    assert {name: values[name] for name in shared} == {name: module.config[name] for name in shared}
    ours = loaded_tensors(network, blank(network))
    wanted = convert_qwen_image21_transformer_checkpoint_to_diffusers(dict(stored))
    buffers = {name for name, _ in module.named_buffers()}
    assert ours.keys() - buffers == wanted.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in wanted.items())
    for name, buffer in module.named_buffers():
        assert torch.equal(ours[name], buffer)


@pytest.mark.parametrize("kind", ["fp8", "scaled_fp8", "convrot"])
def test_eight_bit_files_are_read(kind: str, tmp_path: Path) -> None:
    tensors = dict(made(**HEADS).state_dict())
    write(tmp_path / "model.safetensors", fused(tensors), kind)
    network = network_recipe(tmp_path / "model.safetensors").network
    ours = ModelStore().network(network, "cpu", torch.float32).state_dict()
    for layer in ("img_mlp.gate_layer", "img_mlp.proj", "attn.to_q"):
        wanted = tensors[f"transformer_blocks.1.{layer}.weight"]
        error = (ours[f"transformer_blocks.1.{layer}.weight"].float() - wanted).abs().max()
        assert 0 < error <= 0.07 * wanted.abs().max()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"causal_condition": False}, "causal_condition is false, expected true"),
        ({"patch_size": 2}, "patch_size is 2, expected 1"),
    ],
)
def test_unpublished_forms_are_refused(changed: dict[str, Any], words: str) -> None:
    values = {"_class_name": "QwenImage21Transformer2DModel", **changed}
    with pytest.raises(InputError, match=words) as caught:
        architecture(Component("place", (), json.dumps(values)))
    assert "\n" not in str(caught.value) and "place" in str(caught.value)


def test_levels_are_comfyui_s_for_files_and_folders(tmp_path: Path) -> None:
    """A folder's scheduler shifts by picture size and stretches the levels to end at 0.02."""
    make_pipeline(tmp_path / "folder", "qwen_image_21", 1, 1)
    published = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "base_image_seq_len": 256,
        "base_shift": 0.5,
        "max_image_seq_len": 8192,
        "max_shift": 0.9,
        "shift_terminal": 0.02,
        "use_dynamic_shifting": True,
    }
    (tmp_path / "folder/scheduler/scheduler_config.json").write_text(json.dumps(published))
    save_file(fused(dict(made(**HEADS).state_dict())), tmp_path / "model.safetensors")
    shift = torch.tensor(0.69).exp()
    for model in (
        pipeline_recipes(tmp_path / "folder")[0],
        network_recipe(tmp_path / "model.safetensors"),
    ):
        table = table_of(model)
        assert len(table.sigmas) == 10_000 and table.timestep_at(0.25) == 0.25
        assert float(table.sigma_at(torch.tensor(0.5))) == pytest.approx(
            float(shift * 0.5 / (1 + (shift - 1) * 0.5)), abs=1e-6
        )


def test_the_text_encoder_decides_between_models_of_one_loader_type() -> None:
    """The state before the final norm is read, behind the system turn; an empty text is a blank."""
    found = {}
    for kind, width in (("Qwen3VL", 4096), ("Qwen2_5_VL", 3584)):
        values = {"architectures": [f"{kind}ForConditionalGeneration"]}
        values |= {"text_config": {"hidden_size": width}}
        family, _ = text_set("qwen_image", [Component("", (), json.dumps(values))])
        found[kind] = family
    layout = found["Qwen3VL"].text_layout
    assert (layout.raw, layout.dropped, layout.empty) == (True, "system", " ")
    assert found["Qwen2_5_VL"].text_layout.dropped == "prefix"


@pytest.mark.parametrize(
    ("count", "channels", "words"),
    [
        (17, 64, "has 17 references, the model reads at most 16"),
        (1, 16, "has 16 channels, the model's latents have 64"),
    ],
)
def test_references_that_do_not_fit_are_refused(
    count: int, channels: int, words: str, tmp_path: Path
) -> None:
    make_pipeline(tmp_path, "qwen_image_21", 1, 1)
    model, clip, _ = pipeline_recipes(tmp_path)
    latent = Picture.of(torch.zeros(1, channels, 2, 2))
    entry = ConditioningEntry(Prompt(clip, "a"), references=References((latent,) * count))
    with pytest.raises(InputError, match=words):
        expand_sampling("StepBegin", BEGIN | {"model": model}, model, (entry,), (entry,), 1.0)


# Nodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pipeline")
    make_pipeline(place, "qwen_image_21", 5, 1)
    return place


def drawn(*shape: int) -> Tensor:
    return torch.rand(1, *shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("resolution", [0, 160])
@pytest.mark.parametrize("with_vae", [True, False])
def test_one_resized_picture_goes_to_encoder_and_vae(
    resolution: int, with_vae: bool, folder: Path
) -> None:
    """Its vision tokens stand for 2 x 2 cells; the latent has the first picture's size. A picture too
    small for the text encoder is enlarged.
    """
    _, clip, vae = pipeline_recipes(folder)
    node = TextEncodeQwenImage21(prompt="a cube", negative_prompt="", resolution=resolution)
    images = {"image_1": drawn(134, 70, 3), "image_2": drawn(33, 33, 4)}
    with local_engine() as engine:
        context = bare_context(engine)
        given = {"vae": vae} if with_vae else {}
        positive, negative, latent = node.run(clip, context, images=images, **given)
    sizes = [(128, 64), (96, 96)] if resolution == 0 else [(224, 128), (160, 160)]
    assert latent["samples"].shape == (1, 64, sizes[0][0] // 16, sizes[0][1] // 16)
    for side, text in ((positive, "a cube"), (negative, "")):
        prompt, references = side[0].encoding, side[0].references
        assert (prompt.text, prompt.captions) == (text, ("<image1>", " <image2>"))
        seen = [tuple(one.pixels.shape[1:]) for one in prompt.pictures]
        assert seen == [(*size, 3) for size in sizes]
        if not with_vae:
            assert references is None
            continue
        cells = [tuple(one.pixels.shape[-2:]) for one in references.latents]
        assert cells == [(high // 16, wide // 16) for high, wide in sizes]
        with local_engine() as engine:
            models = DeviceModels()
            made = models.encode_text(prompt)
            assert len(made.slots) * 4 == sum(high * wide for high, wide in cells)


def test_the_encoder_sees_alpha_over_white_and_the_vae_sees_it(folder: Path) -> None:
    _, clip, vae = pipeline_recipes(folder)
    clear = torch.zeros(1, 64, 64, 4)
    node = TextEncodeQwenImage21(prompt="", negative_prompt="", resolution=0)
    with local_engine() as engine:
        context = bare_context(engine)
        (entry,), _, _ = node.run(clip, context, vae, images={"image_1": clear})
        opaque = engine.encode_image(vae, clear[..., :3], context)
    assert torch.equal(entry.encoding.pictures[0].pixels, torch.ones(1, 64, 64, 3))
    assert (entry.references.latents[0].pixels - opaque).abs().max() > 1e-3


def test_a_gap_among_pictures_is_refused(folder: Path) -> None:
    clip = pipeline_recipes(folder)[1]
    node = TextEncodeQwenImage21(prompt="", negative_prompt="")
    with local_engine() as engine, pytest.raises(InputError, match="image_1 is not linked") as one:
        node.run(clip, bare_context(engine), images={"image_2": drawn(32, 32, 3)})
    assert "images.image_2 is" in str(one.value)


def test_a_text_alone_has_a_latent_of_the_resolution(folder: Path) -> None:
    clip = pipeline_recipes(folder)[1]
    with local_engine() as engine:
        for resolution, cells in ((0, 64), (512, 32)):
            node = TextEncodeQwenImage21(prompt="", negative_prompt="", resolution=resolution)
            *_, latent = node.run(clip, bare_context(engine), images={})
            assert latent["samples"].shape == (1, 64, cells, cells)


def test_the_cache_node_turns_keys_and_values_off_or_leaves_them(folder: Path) -> None:
    model = pipeline_recipes(folder)[0]
    with local_engine() as engine:
        context = bare_context(engine)
        for device in ("auto", "gpu", "cpu"):
            assert QwenImage21Cache(device=device).run(model, context) == model
        assert not context.warnings
        off = QwenImage21Cache(device="off", dtype="int8").run(model, context)
        assert off.patches == (WholeSequence(),)
        assert QwenImage21Cache(dtype="int8").run(model, context) == model
    (line,) = context.warnings
    assert "int8 is taken as default" in line
