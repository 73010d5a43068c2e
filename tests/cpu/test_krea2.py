"""Krea 2 transformers: references with the modulation of timestep 0, norms in float32, files in the
original layout, texts as diffusers' pipeline encodes them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import Krea2Pipeline
from diffusers.loaders.single_file_utils import convert_krea2_transformer_checkpoint_to_diffusers
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers_made import forward, in_stages, inputs

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, NodeCall
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    ConditioningEntry,
    Lora,
    ModelRecipe,
    Picture,
    Prompt,
    ReferencePlacing,
    References,
    TextEncoderRecipe,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.ir.values import Step, TextEncoding
from katz_graph.models.families.krea2 import stack
from katz_graph.models.families.krea2.stand_ins import krea2
from katz_graph.models.families.shared.transformer_stack import (
    ReferenceTokens,
    grid_ids,
    packed,
    unpacked,
)
from katz_graph.models.family import check_text, text_set
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.planner.sampling import table_of
from katz_graph.testing.random_models import Kind, draw_network
from katz_graph.testing.requests import bare_context, local_engine

SIZES = (4, 6), (6, 2)  # cells of references
NORMS = "norm", "norm1", "norm2", "norm_q", "norm_k"
STILL: ReferencePlacing = "index_timestep_zero"

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def made(dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    """Builds a network whose norms are float32, as diffusers loads them."""
    module = draw_network("krea2", 3, spread=0.15, **changed).to(dtype)
    for name, weight in module.named_parameters():
        if name.split(".")[-2] in NORMS:
            weight.data = weight.data.float()
    return module


def references(batch: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(5)
    return tuple(torch.randn(batch, 16, *size, generator=draw).to(dtype) for size in SIZES)


# Stages


@pytest.mark.parametrize("seed", range(4))
def test_stages_match_forward_in_other_configurations(seed: int) -> None:
    draw = random.Random(seed)
    keys, groups, blocks = draw.randint(1, 2), draw.randint(1, 3), draw.randint(2, 4)
    first = draw.choice((4, 8))
    module = made(
        num_layers=blocks,
        num_key_value_heads=keys,
        num_attention_heads=keys * groups,
        attention_head_dim=first + 12,
        axes_dims_rope=[first, 4, 8],
        num_text_layers=draw.randint(1, 5),
        text_hidden_dim=24,
        text_num_key_value_heads=draw.choice((1, 2, 4)),
        num_layerwise_text_blocks=draw.randint(0, 2),
        num_refiner_text_blocks=draw.randint(0, 2),
    )
    step, text = inputs(module, 2, torch.float32, seed)
    cuts = [*range(blocks - 1)] if draw.random() < 0.5 else []
    assert torch.equal(in_stages(module, step, text, cuts), forward(module, step, text))


@pytest.mark.parametrize("batch", [1, 2])
def test_stages_match_forward_with_norms_in_float32(batch: int) -> None:
    module = made(torch.bfloat16)
    step, text = inputs(module, batch, torch.bfloat16)
    assert torch.equal(in_stages(module, step, text, [0]), forward(module, step, text))


def test_a_timestep_is_rounded_in_bfloat16_as_the_pipeline_does() -> None:
    module = made(torch.bfloat16)
    step, text = inputs(module, 1, torch.bfloat16)
    step = replace(step, timestep=torch.full((1,), 0.974, dtype=torch.float64))
    rounded = replace(step, timestep=step.timestep.bfloat16().double())
    ours = in_stages(module, step, text, [])
    assert torch.equal(ours, forward(module, rounded, text))
    assert not torch.equal(ours, forward(module, step, text))


def per_token(
    module: Any, step: Step, text: TextEncoding, seen: Sequence[Tensor], first: bool = True
) -> Tensor:
    """Returns the prediction of a plain forward with a modulation of each token. The references'
    is that of timestep 0; they stand before the text, or behind the picture.
    """
    x = step.model_input
    rows, columns = x.shape[-2] // 2, x.shape[-1] // 2
    states = text.hidden.unflatten(-1, (module.config.num_text_layers, -1))
    words = module.txt_in(module.text_fusion(states))
    read = torch.cat([module.img_in(packed(one)) for one in seen], dim=1)
    parts = [words, module.img_in(packed(x))]
    places = [torch.zeros(words.shape[1], 3), grid_ids(rows, columns, "cpu")]
    there = torch.cat(
        [
            grid_ids(high // 2, wide // 2, "cpu", first=plane)
            for plane, (high, wide) in enumerate(SIZES, start=1)
        ]
    )
    now, zero = (
        module.time_embed(level, dtype=x.dtype)
        for level in (step.timestep.float(), torch.zeros(len(x)))
    )
    old, new = (
        module.time_mod_proj(F.gelu(time, approximate="tanh")).expand(-1, tokens, -1)
        for time, tokens in ((zero, read.shape[1]), (now, sum(one.shape[1] for one in parts)))
    )
    order = slice(None, None, 1 if first else -1)
    hidden = torch.cat([read, torch.cat(parts, dim=1)][order], dim=1)
    ids = torch.cat([there, torch.cat(places)][order])
    modulation = torch.cat([old, new][order], dim=1)
    for block in module.transformer_blocks:
        hidden = block(hidden, modulation, module.rotary_emb(ids))
    end = None if first else -read.shape[1]
    picture = hidden[:, :end][:, -rows * columns :]
    return unpacked(module.final_layer(picture, now), rows, columns)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_references_have_the_modulation_of_timestep_0(batch: int, dtype: torch.dtype) -> None:
    module = made(dtype)
    step, text = inputs(module, batch, dtype)
    seen = references(batch, dtype)
    ours = in_stages(module, step, text, [1], seen, STILL)
    assert torch.equal(ours, per_token(module, step, text, seen))
    if dtype == torch.float32:
        other = per_token(module, step, text, seen, first=False)
        assert (ours - other).abs().max() <= 2e-6 * other.abs().max()
        assert (ours - forward(module, step, text)).abs().max() > 1e-2


class Largest(TorchDispatchMode):
    """Records the number of values of the largest tensor that is made."""

    values = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(result) if isinstance(one, Tensor)]
        self.values = max([self.values, *sizes])
        return result


def test_no_token_has_its_own_modulation() -> None:
    """At full size a block would make 0.45 GB of them."""
    module, latents = made(), references(1, torch.float32)
    fixed = stack.fixed(module, 3, 5, 9, ReferenceTokens(latents, STILL))
    embedding = stack.embedding(module, torch.full((1,), 0.5), ())
    hidden = torch.zeros(1, 9 + 15 + fixed[2].shape[1], module.hidden_size)
    with Largest() as largest:
        stack.block(module, 0, hidden, None, embedding, fixed)
    assert largest.values < 6 * hidden.numel()


def test_prepared_layers_give_the_library_s_bits() -> None:
    plain, prepared = made(torch.bfloat16), made(torch.bfloat16)
    prepare(prepared)
    step, text = inputs(plain, 2, torch.bfloat16)
    wanted = in_stages(plain, step, text, [])
    assert torch.equal(in_stages(prepared, step, text, []), wanted)
    fuse_projections(prepared)
    fused = in_stages(prepared, step, text, [])
    assert (fused - wanted).abs().max() <= 0.03 * wanted.abs().max()


# References in requests


@pytest.fixture(scope="module")
def engine(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(cache=costs) as opened:
        yield opened


def sampled(engine: DeviceEngine, folder: Path, seen: References | None) -> tuple[Tensor, str]:
    """Returns the latent of a KSampler, and the warnings of the run."""
    model, clip, _ = pipeline_recipes(folder)
    text = (ConditioningEntry(Prompt(clip, "sand"), references=seen),)
    given = {"model": model, "positive": text, "negative": text, "steps": 1, "cfg": 1.0}
    given["latent_image"] = {"samples": torch.zeros(1, 16, 4, 4)}
    context = bare_context(engine)
    graph = Graph({"out": NodeCall("KSampler", given)})
    result = run_graph(graph, context, ResultCache("none"), targets=["out"])
    result.raise_failures()
    samples: Tensor = result.outputs["out"][0]["samples"]
    return samples, "\n".join(context.warnings)


def test_references_without_the_method_are_ignored_with_a_warning(
    engine: DeviceEngine, folders: dict[Kind, Path]
) -> None:
    latent = Picture.of(torch.randn(1, 16, 4, 4, generator=torch.Generator().manual_seed(1)))
    folder = folders["krea2"]
    plain, silence = sampled(engine, folder, None)
    ignored, warning = sampled(engine, folder, References((latent,)))
    read, no_warning = sampled(engine, folder, References((latent,), STILL))
    assert torch.equal(ignored, plain) and (read - plain).abs().max() > 1e-3
    assert warning.count("\n") == 0 and "ignores the 1 reference latents" in warning
    assert STILL in warning and "reference" not in silence + no_warning


@pytest.mark.parametrize(
    ("channels", "placing", "words"),
    [
        (4, STILL, "a reference has 4 channels, the model's latents have 16"),
        (16, "index", "no reference method index: choose index_timestep_zero"),
        (16, "uxo", "no reference method uxo: choose index_timestep_zero"),
    ],
)
def test_other_references_are_refused(
    channels: int,
    placing: ReferencePlacing,
    words: str,
    engine: DeviceEngine,
    folders: dict[Kind, Path],
) -> None:
    latent = Picture.of(torch.zeros(1, channels, 4, 4))
    with pytest.raises(InputError, match=words):
        sampled(engine, folders["krea2"], References((latent,), placing))


# Files


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("krea2") / "model.safetensors"
    save_file(krea2(), path)
    return path


def loaded(path: Path, dtype: torch.dtype) -> Any:
    return ModelStore().network(network_recipe(path).network, "cpu", dtype)


def in_diffusers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = convert_krea2_transformer_checkpoint_to_diffusers(dict(tensors))
    return found


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_file_has_the_weights_of_diffusers_conversion(prefix: str, tmp_path: Path) -> None:
    tensors = krea2()
    save_file({prefix + name: one for name, one in tensors.items()}, tmp_path / "model.safetensors")
    found, wanted = loaded(tmp_path / "model.safetensors", torch.float32), in_diffusers(tensors)
    state = found.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(one, wanted[name]) for name, one in state.items())


def test_norms_stay_float32_in_bfloat16(file: Path, tmp_path: Path) -> None:
    part = network_recipe(file).network
    store = ModelStore()
    size = store.network_of(part, "cpu", torch.bfloat16).size()
    module = store.network(part, "cpu", torch.bfloat16)
    wanted, tensors = in_diffusers(krea2()), dict(module.named_parameters())
    wide = {name for name, one in tensors.items() if one.dtype == torch.float32}
    assert wide == {name for name in tensors if name.split(".")[-2] in NORMS}
    assert all(torch.equal(tensors[name], wanted[name]) for name in wide)
    assert size == sum(one.nbytes for one in tensors.values())

    norm, layer = "transformer_blocks.1.norm1", "transformer_blocks.1.attn.to_v"
    change = torch.full_like(tensors[f"{norm}.weight"], 2.0**-14)  # bfloat16 would drop it
    down, up = torch.full((1, 64), 0.125), torch.ones(32, 1)
    lora = {"blocks.1.prenorm.diff": change, "blocks.1.attn.wv.lora_A.weight": down}
    lora["blocks.1.attn.wv.lora_B.weight"] = up
    save_file(
        {f"diffusion_model.{name}": one for name, one in lora.items()},
        tmp_path / "lora.safetensors",
    )
    used = Lora(file_identity(tmp_path / "lora.safetensors"), 1.0)
    sets, before = WeightSets(module), tensors[f"{layer}.weight"].clone()
    sets.use((used,))
    assert torch.equal(tensors[f"{norm}.weight"], wanted[f"{norm}.weight"] + change)
    assert not torch.equal(tensors[f"{layer}.weight"], before)
    sets.use(())
    assert torch.equal(tensors[f"{norm}.weight"], wanted[f"{norm}.weight"])
    assert torch.equal(tensors[f"{layer}.weight"], before)


def test_levels_are_shifted_alike_at_every_size(
    file: Path, folders: dict[Kind, Path], tmp_path: Path
) -> None:
    """diffusers shifts those of a base model by size; ComfyUI does not."""
    folder = shutil.copytree(folders["krea2"], tmp_path / "base", copy_function=os.link)
    published = {"base_shift": 0.5, "max_shift": 1.15, "max_image_seq_len": 6400}
    settings = folder / "scheduler/scheduler_config.json"
    values = json.loads(settings.read_text()) | published
    settings.unlink()
    settings.write_text(json.dumps(values))
    shift = torch.tensor(1.15).exp()
    for model in (pipeline_recipes(folder)[0], network_recipe(file)):
        table = table_of(model)
        assert len(table.sigmas) == 10_000 and table.timestep_at(0.25) == 0.25
        assert float(table.sigma_at(torch.tensor(0.5))) == pytest.approx(
            float(shift * 0.5 / (1 + (shift - 1) * 0.5)), abs=1e-6
        )


def test_a_pipeline_that_reads_other_states_is_refused(
    folders: dict[Kind, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["krea2"], tmp_path / "other", copy_function=os.link)
    index = folder / "model_index.json"
    values = json.loads(index.read_text())
    for states in (None, list(range(2, 36, 3)), [1, 2, 3]):
        index.unlink()
        index.write_text(json.dumps(values | {"text_encoder_select_layers": states}))
        if states != [1, 2, 3]:
            pipeline_recipes(folder)
    with pytest.raises(
        InputError, match=r"text_encoder_select_layers is \[1, 2, 3\], expected \[2,"
    ):
        pipeline_recipes(folder)


# Texts


@pytest.mark.parametrize(
    ("kind", "width", "layers", "words"),
    [
        ("Qwen3VLModel", 4096, 36, "give text of width 4096 .* takes 30720 .* use Qwen3-VL 4B"),
        ("Qwen3Model", 2560, 36, "give text of width 2560 .* takes 30720 .* use Qwen3-VL 4B"),
        ("Qwen3VLModel", 2560, 28, "of 28 layers, .* reads the output of layer 35"),
    ],
)
def test_other_text_encoders_are_refused(kind: str, width: int, layers: int, words: str) -> None:
    values = {"hidden_size": width, "num_hidden_layers": layers, "architectures": [kind]}
    encoder = Component("encoder", (), json.dumps(values))
    published = Component("network", (), json.dumps({"_class_name": "Krea2Transformer2DModel"}))
    family, chosen = text_set("krea2", [encoder])
    clip = ClipRecipe(
        (TextEncoderRecipe(encoder, encoder),), layout=chosen.layout or family.text_layout
    )
    with pytest.raises(InputError, match=words) as caught:
        check_text(clip, ModelRecipe(published, published))
    assert str(caught.value).startswith("encoder: ") and "\n" not in str(caught.value)


def test_a_text_has_the_pipeline_s_rows_without_its_fill(
    engine: DeviceEngine, folders: dict[Kind, Path]
) -> None:
    folder = folders["krea2"]
    pipeline = Krea2Pipeline.from_pretrained(folder, transformer=None, vae=None)
    for text in ("a red circle above sand", ""):
        states, mask = pipeline.get_text_hidden_states(text, 32)
        prompt = Prompt(pipeline_recipes(folder)[1], text)
        ours = engine.encode_text(prompt, bare_context(engine)).hidden
        wanted = states[mask].flatten(1)
        assert ours.shape[1:] == wanted.shape
        assert (ours[0] - wanted).abs().max() <= 1e-5 * wanted.abs().max()
