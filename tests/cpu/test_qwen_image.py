"""Qwen-Image transformers in stages equal diffusers' `forward`: with references, with two timesteps,
and with layers. Positions are ComfyUI's where diffusers places pictures otherwise. Their files are
read in ComfyUI's layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImagePipeline
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers_made import COSTED, in_stages

import katz_graph as katz
from katz_graph.core.errors import InputError
from katz_graph.core.patches import FlowSampling
from katz_graph.core.recipe import (
    ClipRecipe,
    ConditioningEntry,
    ModelRecipe,
    Picture,
    Prompt,
    References,
    Zeroed,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.ir.values import Step, TextEncoding
from katz_graph.models.configuration import config
from katz_graph.models.families.shared.stand_ins import PREFIX
from katz_graph.models.family import architecture, family_of
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.sampling import table_of
from katz_graph.testing.random_models import Kind, draw_network
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stand_ins.catalogue import write_stand_in
from katz_graph.testing.stand_ins.formats import write
from katz_graph.testing.worker_threads import WorkerThreads

SIDES = 12, 20  # cells of a picture
TOKENS, LEVEL = 9, 0.4375
SIZES = (8, 12), (12, 4)  # cells of references
VARIANTS: dict[str, tuple[dict[str, Any], str, int, int]] = {
    # further configuration, method of the references, their number, layers
    "plain": ({}, "index", 0, 0),
    "edit": ({}, "index", 2, 0),
    "edit 2511": ({"zero_cond_t": True}, "index_timestep_zero", 2, 0),
    "edit 2511 without references": ({"zero_cond_t": True}, "index_timestep_zero", 0, 0),
    "layered": (
        {"use_additional_t_cond": True, "use_layer3d_rope": True},
        "negative_index",
        1,
        3,
    ),
}

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def made(dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    return draw_network("qwen_image", 3, blocks=3, spread=0.15, **changed).to(dtype)


def given(
    batch: int, dtype: torch.dtype, sides: Sequence[int] = SIDES, layers: int = 0
) -> tuple[Step, TextEncoding]:
    draw = torch.Generator().manual_seed(4)
    frames = [layers] if layers else []
    x = torch.randn(batch, 16, *frames, *sides, generator=draw).to(dtype)
    text = TextEncoding(torch.randn(batch, TOKENS, 96, generator=draw).to(dtype))
    return Step.of(x.float(), x, LEVEL, LEVEL), text


def references(batch: int, dtype: torch.dtype, sizes: Sequence[Sequence[int]]) -> Any:
    draw = torch.Generator().manual_seed(5)
    return tuple(torch.randn(batch, 16, *size, generator=draw).to(dtype) for size in sizes)


def tokens_of(latent: Tensor) -> Tensor:
    return QwenImagePipeline._pack_latents(latent.contiguous(), *latent.shape)


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


class Placed(nn.Module):
    """Looks up positions in diffusers' tables, for ids [S, 3] of the text and of pictures."""

    def __init__(self, tables: Any, text: Tensor, pictures: Tensor) -> None:
        super().__init__()
        self.tables, self.text, self.pictures = tables, text, pictures

    def forward(self, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.turns(self.pictures), self.turns(self.text)

    def turns(self, ids: Tensor) -> Tensor:
        widths = [width // 2 for width in self.tables.axes_dim]
        later = self.tables.pos_freqs.split(widths, dim=1)
        earlier = self.tables.neg_freqs.split(widths, dim=1)
        parts = [
            torch.stack([(after if at >= 0 else before)[at] for at in ids[:, axis].tolist()])
            for axis, (after, before) in enumerate(zip(later, earlier, strict=True))
        ]
        return torch.cat(parts, dim=1)


def forward(module: Any, step: Step, text: TextEncoding, seen: Sequence[Tensor]) -> Tensor:
    """Returns diffusers' prediction, called as its pipelines call the module."""
    x = step.model_input
    frames = [*x.unbind(2)] if x.ndim == 5 else [x]
    pictures = [tokens_of(one) for one in (*frames, *seen)]
    shapes = [(1, one.shape[-2] // 2, one.shape[-1] // 2) for one in (*frames, *seen)]
    layer, more = module.img_in, {}
    if module.config.use_additional_t_cond:
        more["additional_t_cond"] = torch.zeros(len(x), dtype=torch.long)
    counts = [
        len(frames) * pictures[0].shape[1],
        *(one.shape[1] for one in pictures[len(frames) :]),
    ]
    module.img_in = Apart(layer, counts)
    whole = module(
        torch.cat(pictures, dim=1),
        text.hidden,
        None,
        step.timestep.float(),
        [shapes] * len(x),
        **more,
    ).sample
    module.img_in = layer
    height, width = (8 * side for side in x.shape[-2:])
    size = pictures[0].shape[1]
    latents = [
        QwenImagePipeline._unpack_latents(part, height, width, 8)
        for part in whole[:, : size * len(frames)].split(size, dim=1)
    ]
    return torch.cat(latents, dim=2) if x.ndim == 5 else latents[0][:, :, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_stages_match_forward(variant: str, batch: int, dtype: torch.dtype) -> None:
    """Prepared or not; with fused projections within rounding."""
    changed, method, count, layers = VARIANTS[variant]
    module = made(dtype, **changed)
    step, text = given(batch, dtype, layers=layers)
    seen = references(batch, dtype, SIZES[:count])
    wanted = forward(module, step, text, seen)
    assert wanted.std() > 0.1
    for cuts in ([], [0], [0, 1]):
        assert torch.equal(in_stages(module, step, text, cuts, seen, method), wanted)
    prepare(module)
    assert torch.equal(in_stages(module, step, text, [1], seen, method), wanted)
    fuse_projections(module)
    found = in_stages(module, step, text, [1], seen, method)
    bound = 1e-5 if dtype == torch.float32 else 0.05
    assert (found - wanted).abs().max() <= bound * (wanted.max() - wanted.min())


@pytest.mark.parametrize("variant", ["edit", "edit 2511", "layered"])
def test_each_reference_changes_the_prediction(variant: str) -> None:
    changed, method, count, layers = VARIANTS[variant]
    module = made(**changed)
    step, text = given(1, torch.float32, layers=layers)
    seen = references(1, torch.float32, SIZES[:count])
    whole = in_stages(module, step, text, [], seen, method)
    for place in range(count):
        fewer = seen[:place] + seen[place + 1 :]
        assert (in_stages(module, step, text, [], fewer, method) - whole).abs().max() > 1e-3


def ids(rows: int, columns: int, plane: int) -> list[list[int]]:
    """Returns ComfyUI's ids of a picture's patches: plane, row, column, centred."""
    return [
        [plane, row - rows // 2, column - columns // 2]
        for row in range(rows)
        for column in range(columns)
    ]


@pytest.mark.parametrize(
    ("sides", "sizes"),
    [
        ((12, 20), ((20, 28),)),  # a reference larger than the picture
        ((6, 10), ((6, 14), (10, 2))),  # odd numbers of patches
    ],
)
def test_positions_are_comfyui_s(
    sides: tuple[int, int], sizes: tuple[tuple[int, int], ...]
) -> None:
    """Text begins behind the picture alone, and the middle of an odd side is at 0."""
    module = made()
    step, text = given(1, torch.float32, sides)
    seen = references(1, torch.float32, sizes)
    (rows, columns), others = (
        (side // 2 for side in sides),
        [[side // 2 for side in size] for size in sizes],
    )
    first = max(rows // 2, columns // 2)
    pictures = ids(rows, columns, 0)
    for plane, (down, across) in enumerate(others, start=1):
        pictures += ids(down, across, plane)
    found = in_stages(module, step, text, [], seen, "index")
    stock = forward(module, step, text, seen)
    words = torch.arange(first, first + TOKENS)[:, None].expand(TOKENS, 3)
    module.pos_embed = Placed(module.pos_embed, words, torch.tensor(pictures))
    assert torch.equal(found, forward(module, step, text, seen))
    assert (found - stock).abs().max() > 1e-4


def test_references_of_any_model_may_have_timestep_zero() -> None:
    """ComfyUI's node sets the method for models that were trained otherwise, too."""
    step, text = given(2, torch.float32)
    seen = references(2, torch.float32, SIZES)
    plain, trained = made(), made(zero_cond_t=True)
    still, moving = (
        [in_stages(module, step, text, [], seen, method) for module in (plain, trained)]
        for method in ("index_timestep_zero", "index")
    )
    span = still[1].max() - still[1].min()
    assert (still[0] - still[1]).abs().max() <= 1e-5 * span
    assert (moving[0] - moving[1]).abs().max() <= 1e-5 * span
    assert (still[0] - moving[0]).abs().max() > 1e-3 * span


@pytest.mark.parametrize(
    ("variant", "chosen", "used"),
    [
        ("plain", "offset", "index"),
        ("edit 2511", "offset", "index_timestep_zero"),
        ("edit 2511", "index", "index"),
        ("plain", "index_timestep_zero", "index_timestep_zero"),
        ("layered", "offset", "negative_index"),
    ],
)
def test_references_are_placed_as_the_model_was_trained_unless_a_node_says_otherwise(
    variant: str, chosen: Any, used: str, tmp_path: Path
) -> None:
    model = network_recipe(file_of(tmp_path / "model.safetensors", variant))
    seen = References((Picture.of(torch.ones(1, 16, 8, 8)),), chosen)
    entry = completed(model, seen)
    assert entry.references is not None and entry.references.placing == used


@pytest.mark.parametrize(
    ("channels", "method", "words"),
    [
        (16, "uxo", "has no reference method uxo/uno: choose index or index_timestep_zero"),
        (4, "index", "a reference has 4 channels, the model's latents have 16"),
    ],
)
def test_other_references_are_refused(
    channels: int, method: Any, words: str, tmp_path: Path
) -> None:
    model = network_recipe(file_of(tmp_path / "model.safetensors", "plain"))
    seen = References((Picture.of(torch.ones(1, channels, 8, 8)),), method)
    with pytest.raises(InputError, match=words):
        completed(model, seen)


def completed(model: ModelRecipe, seen: References) -> ConditioningEntry:
    entry = ConditioningEntry(Zeroed(Prompt(ClipRecipe(()), "")), references=seen)
    return family_of(model.network).network.complete(entry, model, {}, True)


# Files

MARKER = "__index_timestep_zero__"
HEADS = {"attention_head_dim": 32, "axes_dims_rope": [4, 14, 14]}  # in published proportions
VALUES = {
    "plain": (False, False),
    "edit 2511": (True, False),
    "layered": (False, True),
}  # zero_cond_t, and layers


def file_of(path: Path, variant: str, prefix: str = "", **more: Tensor) -> Path:
    """Writes a transformer as ComfyUI publishes it."""
    tensors = dict(made(**VARIANTS[variant][0], **HEADS).state_dict())
    if variant == "edit 2511":
        tensors[MARKER] = torch.empty(0)
    save_file({f"{prefix}{name}": one for name, one in (tensors | more).items()}, path)
    return path


@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("variant", VALUES)
def test_a_file_says_which_model_it_is(variant: str, prefix: str, tmp_path: Path) -> None:
    module = made(**VARIANTS[variant][0], **HEADS)
    network = network_recipe(file_of(tmp_path / "model.safetensors", variant, prefix)).network
    values = config(network)
    assert (values["zero_cond_t"], values["use_layer3d_rope"]) == VALUES[variant]
    assert values["use_additional_t_cond"] == values["use_layer3d_rope"]
    assert {name: module.config[name] for name in values if name in module.config} == {
        name: value for name, value in values.items() if name in module.config
    }
    ours, wanted = loaded_tensors(network, blank(network)), module.state_dict()
    assert ours.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("kind", ["fp8", "scaled_fp8", "convrot"])
def test_eight_bit_files_predict_as_their_widened_weights(kind: str, tmp_path: Path) -> None:
    changed, method, count, layers = VARIANTS["layered"]
    module = made(**changed, **HEADS)
    write(tmp_path / "model.safetensors", dict(module.state_dict()), kind)
    network = network_recipe(tmp_path / "model.safetensors").network
    step, text = given(1, torch.float32, layers=layers)
    seen = references(1, torch.float32, SIZES[:count])
    as_stored, wide, exact = (
        in_stages(one, step, text, [], seen, method)
        for one in (
            *(
                ModelStore(widens=wide).network(network, "cpu", torch.float32)
                for wide in (False, True)
            ),
            module,
        )
    )
    assert torch.equal(as_stored, wide)
    assert 0 < (wide - exact).abs().max() <= 0.1 * (exact.max() - exact.min())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {MARKER: torch.zeros(3)},
            rf"whose {MARKER} has the shape \[3\], expected an empty tensor",
        ),
        (
            {"time_text_embed.guidance_embedder.linear_1.weight": torch.zeros(32, 256)},
            "guidance_embeds is true, expected false",
        ),
    ],
)
def test_other_files_are_refused(more: dict[str, Tensor], words: str, tmp_path: Path) -> None:
    path = file_of(tmp_path / "model.safetensors", "plain", **more)
    with pytest.raises(InputError, match=words) as caught:
        architecture(network_recipe(path).network)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_levels_are_comfyui_s_for_files_and_folders(
    folders: dict[Kind, Path], tmp_path: Path
) -> None:
    """A folder's scheduler shifts by picture size and stretches the levels to end at 0.02."""
    (tmp_path / "folder/scheduler").mkdir(parents=True)
    for part in folders["qwen_image"].iterdir():
        if part.name != "scheduler":
            (tmp_path / "folder" / part.name).symlink_to(part)
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
    models = (
        pipeline_recipes(tmp_path / "folder")[0],
        network_recipe(file_of(tmp_path / "model.safetensors", "plain")),
    )
    shift = torch.tensor(1.15).exp()
    for model in models:
        table = table_of(model)
        assert len(table.sigmas) == 10_000 and table.timestep_at(0.25) == 0.25
        assert float(table.sigma_at(torch.tensor(0.5))) == pytest.approx(
            float(shift * 0.5 / (1 + (shift - 1) * 0.5)), abs=1e-6
        )
        replaced = table_of(model.with_patch(FlowSampling(3.0, multiplier=1.0)))
        assert float(replaced.sigma_at(torch.tensor(0.5))) == pytest.approx(0.75, abs=1e-6)


def test_published_files_make_a_picture_from_a_text(tmp_path: Path) -> None:
    """With 8-bit files, a LoRA without a prefix, levels of a node, and either empty latent."""
    names = {
        "unet": "qwen_image_fp8_e4m3fn.safetensors",
        "clip": "qwen_2.5_vl_7b_fp8_scaled.safetensors",
        "vae": "qwen_image_vae.safetensors",
        "loras": "Qwen-Image-Lightning-4steps-V1.0.safetensors",
    }
    for folder, name in names.items():
        assert write_stand_in(tmp_path, folder, name)

    def workflow(latent: str, strength: float) -> dict[str, Any]:
        clip = {"clip_name": names["clip"], "type": "qwen_image"}
        nodes: dict[str, tuple[str, dict[str, Any]]] = {
            "unet": ("UNETLoader", {"unet_name": names["unet"], "weight_dtype": "default"}),
            "lora": (
                "LoraLoaderModelOnly",
                {"model": ["unet", 0], "lora_name": names["loras"], "strength_model": strength},
            ),
            "levels": ("ModelSamplingAuraFlow", {"model": ["lora", 0], "shift": 3.0}),
            "clip": ("CLIPLoader", clip),
            "text": ("CLIPTextEncode", {"clip": ["clip", 0], "text": "a red circle"}),
            "other": ("CLIPTextEncode", {"clip": ["clip", 0], "text": ""}),
            "latent": (latent, {"width": 48, "height": 64, "batch_size": 1}),
            "sample": (
                "KSampler",
                {
                    "model": ["levels", 0],
                    "positive": ["text", 0],
                    "negative": ["other", 0],
                    "latent_image": ["latent", 0],
                    "seed": 1,
                    "steps": 2,
                    "cfg": 2.5,
                    "sampler_name": "euler",
                    "scheduler": "simple",
                    "denoise": 1.0,
                },
            ),
            "vae": ("VAELoader", {"vae_name": names["vae"]}),
            "picture": ("VAEDecode", {"samples": ["sample", 0], "vae": ["vae", 0]}),
            "saved": ("SaveImage", {"images": ["picture", 0], "filename_prefix": "x"}),
        }
        return {
            name: {"class_type": kind, "inputs": given} for name, (kind, given) in nodes.items()
        }

    with katz.open(models=str(tmp_path), output=str(tmp_path / "output")) as engine:
        whole, other, plain = (
            engine.run(workflow(latent, strength)).images[0]
            for latent, strength in (
                ("EmptySD3LatentImage", 1.0),
                ("EmptyLatentImage", 1.0),
                ("EmptySD3LatentImage", 0.0),
            )
        )
    assert whole.size == (48, 64)
    assert whole.tobytes() == other.tobytes() != plain.tobytes()


@pytest.mark.parametrize("kind", ["qwen_image", "krea2"])
def test_references_give_the_same_bits_on_two_devices(
    kind: Kind, folders: dict[Kind, Path], costs: Path
) -> None:
    model, clip, _ = pipeline_recipes(folders[kind])
    draw = torch.Generator().manual_seed(3)
    seen = tuple(Picture.of(torch.randn(1, 16, *size, generator=draw)) for size in SIZES)
    with_references, without = (
        (ConditioningEntry(Prompt(clip, "sand"), references=one),)
        for one in (References(seen, "index_timestep_zero"), None)
    )
    begin = {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": 2,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(1, 16, 8, 8)},
        "model": model,
    }

    def drawn(positive: Any) -> Region:
        expansion = expand_sampling("StepBegin", begin, model, positive, without, 3.0)
        return bind(expansion.graph, expansion.outputs[0].node)

    region = drawn(with_references)
    with local_engine(batching=False, cache=costs) as engine:
        wanted, plain = sample(engine, region), sample(engine, drawn(without))
    assert (wanted - plain).abs().max() > 1e-3
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        costed = [one.id for one in region.operations if one.stage in COSTED]
        pins = {name: (f"cpu:{place % 2}",) for place, name in enumerate(costed)}
        target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
        program = plan_region(region, target)
        assert torch.equal(engine.cluster.run(program, bare_context(engine)).samples, wanted)
