"""Files of 8-bit numbers with scales load as the values that they represent. Each format equals a
float64 reference and comfy-kitchen; modules and pictures equal those of full-precision files.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_sd3 import folder  # noqa: F401 - a fixture
from torch import Tensor
from transformers_made import region_of

from katz_graph.core.errors import InputError
from katz_graph.kernels.quantised.widening import hadamard_signs, widened
from katz_graph.models.families.sd3.stand_ins import transformer as original
from katz_graph.models.families.unet.random_models.original import (
    open_clip,
    original_vae,
    transformers_text,
)
from katz_graph.models.families.unet.stand_ins import checkpoint_tensors, parts
from katz_graph.models.loading import convert
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.deferred import Deferred, Latest, deferred, now
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.sources import (
    clip_recipe,
    network_recipe,
    pipeline_recipes,
    vae_recipe,
)
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.requests import local_engine, sample
from katz_graph.testing.stand_ins.formats import FP8, Files, marker, reference, stored, turned

CPU = ("cpu", torch.float32)
PREFIX = "model.diffusion_model."
WEIGHTS = "diffusion_pytorch_model.safetensors"


def same(one: Any, other: Any) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) for name in mine
    )


# Formats


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [*FP8, "int8_tensorwise"])
@pytest.mark.parametrize("shape", [(), (1,), (6,), (6, 1)])
def test_a_weight_is_its_numbers_times_the_scale(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(1)
    rows = shape[:1] == (6,)
    weight, scale = stored(torch.randn(6, 10, generator=draw), kind, rows)
    scale = scale.reshape(shape)
    wanted = reference(weight, scale)
    got = widened(weight, scale, 0, dtype)
    assert got.dtype == dtype and torch.equal(got, wanted.to(dtype))
    assert scale.shape == shape and not torch.equal(wanted, weight.float())


@pytest.mark.parametrize("kind", FP8.values())
def test_each_float_of_8_bits_is_itself(kind: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind).reshape(4, 64)
    got = widened(codes, None, 0, torch.float32)
    assert torch.equal(
        got.view(torch.int32)[got == got], codes.float().view(torch.int32)[got == got]
    )
    assert torch.equal(got.isnan(), codes.float().isnan())


@pytest.mark.parametrize("size", [4, 16, 64, 256])
def test_the_rotation_is_the_regular_hadamard_matrix(size: int) -> None:
    made = hadamard_signs(size, torch.device("cpu")) / size**0.5
    made = made.double()
    assert torch.equal(made, turned(size))
    assert torch.equal(made @ made, torch.eye(size, dtype=torch.float64))
    assert torch.equal(made @ made.T, torch.eye(size, dtype=torch.float64))


@pytest.mark.parametrize("rotated", [16, 256])
@pytest.mark.parametrize("rows", [False, True])
def test_a_rotated_weight_is_turned_back(rotated: int, rows: bool) -> None:
    weight = torch.randn(40, 768, generator=torch.Generator().manual_seed(1))
    made, scale = stored(weight, "int8_tensorwise", rows, rotated)
    got = widened(made, scale, rotated, torch.float32)
    assert torch.equal(got, reference(made, scale, rotated))
    assert (got - weight).abs().max() < 0.06 < (reference(made, scale) - weight).abs().max()


def test_blocks_of_rows_match_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made, scale = stored(torch.randn(9, 256), "int8_tensorwise", rotated=256)
    whole = widened(made, scale, 256, torch.bfloat16)
    monkeypatch.setattr("katz_graph.kernels.quantised.widening.BLOCK_VALUES", 512)
    assert torch.equal(widened(made, scale, 256, torch.bfloat16), whole)


def test_comfy_kitchen_gives_the_same_numbers() -> None:
    kitchen = pytest.importorskip("comfy_kitchen")
    from comfy_kitchen.tensor import TensorWiseINT8Layout

    weight = torch.randn(40, 768, generator=torch.Generator().manual_seed(1))
    for how in ({}, {"per_channel": True}, {"per_channel": True, "convrot": True}):
        made, layout = TensorWiseINT8Layout.quantize(weight, is_weight=True, **how)
        wanted = TensorWiseINT8Layout.dequantize(made, layout)
        rotated = layout.convrot_groupsize if layout.convrot else 0
        got = widened(made, layout.scale, rotated, torch.float32)
        if rotated:  # kitchen adds 256 scaled numbers in float32
            assert (got - wanted).abs().max() < 1e-5
        else:
            assert torch.equal(got, wanted)
    for kind in FP8.values():
        scale = weight.abs().max() / torch.finfo(kind).max
        made = kitchen.quantize_per_tensor_fp8(weight, scale, kind)
        wanted = kitchen.dequantize_per_tensor_fp8(made, scale, torch.float32)
        assert torch.equal(widened(made, scale, 0, torch.float32), wanted)


# Modules


def transformer_files(mark: str, prefix: str = "") -> Files:
    tensors = {f"{prefix}{name}": 0.05 * one for name, one in original(3, 1, width=256).items()}
    files = Files(tensors, mark, prefix)
    files.store("joint_blocks.0.x_block.attn.qkv", "float8_e4m3fn")  # split by rows
    files.store("joint_blocks.1.x_block.mlp.fc1", "float8_e4m3fn", rows=False)
    files.store(
        "final_layer.adaLN_modulation.1", "float8_e5m2" if mark != "scaled_fp8" else "float8_e4m3fn"
    )  # halves swap
    if mark != "scaled_fp8":
        files.store("joint_blocks.1.context_block.attn.qkv", "int8_tensorwise", rotated=256)
        files.store("joint_blocks.1.x_block.mlp.fc2", "int8_tensorwise", rotated=256)
        files.store("joint_blocks.0.x_block.attn2.qkv", "int8_tensorwise")
        files.store("joint_blocks.2.x_block.mlp.fc1", "int8_tensorwise", rows=False)
    return files


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("mark", ["scaled_fp8", "comfy_quant", "metadata"])
def test_a_scaled_transformer_is_the_wide_one(
    mark: str, prefix: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    scaled, wide = (
        network_recipe(path).network for path in transformer_files(mark, prefix).save(tmp_path)
    )
    assert scaled.configuration == wide.configuration
    assert count_values(scaled) == count_values(wide)
    store = ModelStore()
    ours, theirs = (store.network(one, "cpu", dtype) for one in (scaled, wide))
    assert next(ours.parameters()).dtype == dtype
    assert same(ours, theirs)


def test_metadata_may_name_layers_without_the_prefix(tmp_path: Path) -> None:
    files = transformer_files("metadata", PREFIX)
    files.layers = {name.removeprefix(PREFIX): said for name, said in files.layers.items()}
    store = ModelStore()
    ours, theirs = (
        store.network(network_recipe(path).network, *CPU) for path in files.save(tmp_path)
    )
    assert same(ours, theirs)


def test_a_scaled_file_matches_the_wide_one(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    files = transformer_files("comfy_quant")
    _, clip, _ = pipeline_recipes(folder)
    paths = files.save(tmp_path)
    latent = torch.zeros(1, 16, 8, 8)
    with local_engine() as engine:
        ours, theirs = (
            sample(engine, region_of(network_recipe(path), clip, "sd35", latent)) for path in paths
        )
    assert torch.equal(ours, theirs)
    assert ours.isfinite().all() and ours.std() > 0.1


@pytest.mark.parametrize("layout", ["transformers", "open_clip"])
def test_a_scaled_text_encoder_is_the_wide_one(layout: str, tmp_path: Path) -> None:
    if layout == "open_clip":
        tensors, layers = (
            open_clip(parts("sd2")["text_encoder"]),
            "transformer.resblocks.1.mlp.c_{}",
        )
    else:
        tensors = transformers_text(parts("sd1")["text_encoder"])
        layers = "text_model.encoder.layers.1.mlp.{}"
    files = Files(tensors, "comfy_quant")
    files.store(layers.format("fc" if layout == "open_clip" else "fc1"), "float8_e4m3fn")
    files.store(layers.format("proj" if layout == "open_clip" else "fc2"), "int8_tensorwise")
    store = ModelStore()
    recipes = (clip_recipe([path]).encoders[0].encoder for path in files.save(tmp_path))
    ours, theirs = (store.text_encoder(one, *CPU) for one in recipes)
    assert same(ours, theirs)


@pytest.mark.parametrize("original_names", [False, True])
def test_a_scaled_vae_is_the_wide_one(original_names: bool, tmp_path: Path) -> None:
    vae = parts("sd1")["vae"]
    files = Files(original_vae(vae) if original_names else vae.state_dict(), "scaled_fp8")
    files.store(  # a convolution in the original layout
        "decoder.mid.attn_1.q" if original_names else "decoder.mid_block.attentions.0.to_q",
        "float8_e4m3fn",
    )
    files.store("decoder.conv_in", "float8_e4m3fn")
    store = ModelStore()
    ours, theirs = (store.vae(vae_recipe(path).vae, *CPU) for path in files.save(tmp_path))
    assert same(ours, theirs)


def test_a_scaled_checkpoint_is_the_wide_one(tmp_path: Path) -> None:
    files = Files(checkpoint_tensors("sd1"), "metadata")
    files.store(f"{PREFIX}input_blocks.1.1.transformer_blocks.0.ff.net.2", "float8_e4m3fn")
    files.store(
        "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1", "int8_tensorwise"
    )
    files.store("first_stage_model.decoder.mid.attn_1.k", "float8_e5m2", rows=False)
    store = ModelStore()
    ours, theirs = (pipeline_recipes(path) for path in files.save(tmp_path))
    assert same(store.network(ours[0].network, *CPU), store.network(theirs[0].network, *CPU))
    assert same(store.vae(ours[2].vae, *CPU), store.vae(theirs[2].vae, *CPU))
    encoders = (one.encoders[0].encoder for one in (ours[1], theirs[1]))
    assert same(*(store.text_encoder(one, *CPU) for one in encoders))


def test_a_folder_may_hold_scaled_weights(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    files = Files(load_file(folder / "transformer" / WEIGHTS), "comfy_quant")
    files.store("transformer_blocks.1.attn.to_q", "float8_e4m3fn")
    files.store("transformer_blocks.1.ff.net.2", "int8_tensorwise", rotated=16)
    loaded = []
    for path in files.save(tmp_path):
        place = tmp_path / path.stem
        shutil.copytree(folder / "transformer", place)
        path.rename(place / WEIGHTS)
        loaded.append(ModelStore().network(network_recipe(place).network, *CPU))
    assert same(*loaded)


@pytest.mark.parametrize("kind", FP8.values())
def test_plain_numbers_of_8_bits_are_themselves(kind: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: (0.05 * one).to(kind) for name, one in original(2, 1).items()}
    save_file(tensors, tmp_path / "plain.safetensors")
    save_file({name: one.float() for name, one in tensors.items()}, tmp_path / "wide.safetensors")
    store = ModelStore()
    ours, theirs = (
        store.network(network_recipe(tmp_path / f"{name}.safetensors").network, *CPU)
        for name in ("plain", "wide")
    )
    assert same(ours, theirs)


def test_one_weight_at_a_time_is_widened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []

    def watched(*given: Any) -> Tensor:
        assert not [one for one in made if one() is not None]
        tensor = widened(*given)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(convert, "widened", watched)
    scaled, _ = transformer_files("comfy_quant").save(tmp_path)
    network = network_recipe(scaled).network
    module = ModelStore(widens=True).network(network, *CPU)
    assert len(made) == 7  # each once, although some are split in three
    assert not [one for one in made if one() is not None]
    given = loaded_tensors(network, blank(network))
    assert len(made) == 7
    late = [name for name, tensor in given.items() if isinstance(tensor, Deferred)]
    assert len(late) == 4 + 3 * 3
    weights = module.state_dict()
    assert all(torch.equal(now(given[name]), weights[name]) for name in late)


def test_derived_tensors_of_a_deferred_tensor_are_deferred() -> None:
    values, made = torch.arange(12.0).reshape(4, 3), []

    def compute() -> Tensor:
        made.append(values)
        return values

    late, plain = deferred((4, 3), torch.float32, compute, Latest()), torch.ones(2, 3)
    first, second = late.chunk(2)
    whole = torch.cat([second, plain, first], dim=0)
    cases = {
        whole: torch.cat([values[2:], plain, values[:2]]),
        torch.cat(tensors=(late, plain)): torch.cat([values, plain]),
        late.T.contiguous(): values.T,
        late.contiguous().float().detach(): values,  # torch returns it unchanged
        late[1:, None].clone().detach(): values[1:, None],
        late.roll(2, 0): values.roll(2, 0),
    }
    assert not made
    for got, wanted in cases.items():
        assert isinstance(got, Deferred) and got.shape == wanted.shape
        assert torch.equal(now(got), wanted) and not isinstance(now(got), Deferred)
    assert len(made) == 1


def test_a_header_is_understood_without_torch(tmp_path: Path) -> None:
    scaled, _ = transformer_files("comfy_quant").save(tmp_path)
    code = (
        "import sys\nfrom katz_graph.models.loading.sources import network_recipe\n"
        "network_recipe(sys.argv[1]); print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(scaled)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("mark", ["scaled_fp8", "comfy_quant"])
def test_a_weight_and_its_scale_may_lie_in_different_shards(
    mark: str,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    shutil.copytree(folder, tmp_path / "pipeline")
    place = tmp_path / "pipeline" / "transformer"
    files = Files(load_file(place / WEIGHTS), mark)
    files.store("transformer_blocks.0.attn.to_q", "float8_e4m3fn")
    files.store("transformer_blocks.1.ff.net.2", "float8_e4m3fn", rows=False)
    (tmp_path / "made").mkdir()
    scaled, wide = files.save(tmp_path / "made")
    (place / WEIGHTS).unlink()
    extra_tensors = (
        "scale_weight",
        "weight_scale",
        "comfy_quant",
        "scaled_fp8",
        "_scale",
        "scale_input",
    )
    shards: list[dict[str, Tensor]] = [{}, {}]
    for name, tensor in load_file(scaled).items():
        shards[name.endswith(extra_tensors)][name] = tensor
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards, start=1):
        name = f"diffusion_pytorch_model-{number:05}-of-00002.safetensors"
        save_file(tensors, place / name)
        index |= dict.fromkeys(tensors, name)
    (place / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": index}))
    network = pipeline_recipes(tmp_path / "pipeline")[0].network
    loaded = ModelStore().network(network, *CPU).state_dict()
    for name, tensor in load_file(wide).items():
        assert torch.equal(loaded[name], tensor), name
    lost = place / "diffusion_pytorch_model-00002-of-00002.safetensors"
    save_file({name: one for name, one in shards[1].items() if "to_q" not in name}, lost)
    with pytest.raises(InputError, match=rf"^{lost}: lacks transformer_blocks\.0\.attn\.to_q.*sca"):
        pipeline_recipes(tmp_path / "pipeline")


@pytest.mark.parametrize("rounding", ["float8_e4m3fn", "float8_e5m2"])
def test_weights_are_rounded_once_and_those_with_scales_not_at_all(
    rounding: str, tmp_path: Path
) -> None:
    """A float32 just above the midpoint of two 8-bit numbers is rounded up. Via bfloat16, which
    gives the midpoint, it would be rounded to the even one.
    """
    files = transformer_files("comfy_quant")
    kind = FP8[rounding]
    step = torch.finfo(kind).eps
    above = 1 + step / 2 + step / 4096  # slightly above half a step to the odd number after 1
    plain = "joint_blocks.2.x_block.mlp.fc2.weight"
    for tensors in (files.scaled, files.wide):
        tensors[plain] = torch.full_like(tensors[plain], above)
    scaled, wide = files.save(tmp_path)
    network = network_recipe(scaled, rounding).network
    made = ModelStore().network(network, "cpu", torch.bfloat16).state_dict()
    exact = ModelStore().network(network_recipe(wide).network, "cpu", torch.bfloat16).state_dict()
    row = made["transformer_blocks.2.ff.net.2.weight"]
    assert torch.tensor(above).bfloat16() == 1 + step / 2  # the midpoint
    assert torch.equal(row, torch.full_like(row, 1 + step))
    unrounded = "transformer_blocks.1.ff.net.0.proj.weight"
    assert torch.equal(made[unrounded], exact[unrounded])
    other = "transformer_blocks.0.ff.net.2.weight"
    wanted = load_file(wide)["joint_blocks.0.x_block.mlp.fc2.weight"].to(kind).bfloat16()
    assert torch.equal(made[other], wanted)


# Bad input

LAYER = "joint_blocks.1.x_block.mlp.fc1"
WEIGHT, SCALE, MARK = f"{LAYER}.weight", f"{LAYER}.weight_scale", f"{LAYER}.comfy_quant"


def int8() -> dict[str, Tensor]:
    made, scale = stored(original(2, 1)[WEIGHT], "int8_tensorwise")
    return {WEIGHT: made, SCALE: scale, MARK: marker(format="int8_tensorwise")}


def metadata(layers: Any) -> dict[str, str]:
    return {"_quantization_metadata": json.dumps(layers)}


@pytest.mark.parametrize(
    ("tensors", "said", "words"),
    [
        *(
            ({MARK: marker(format=kind)}, None, f"{WEIGHT} is stored as {kind}, which is not supported")
            for kind in ("nvfp4", "mxfp8", "asym_w4a8_int8", "w4a8", "convrot_w4a4", "new_one", "int8_blockwise")
        ),
        ({}, metadata({"layers": {LAYER: {"format": "nvfp4"}}}), f"{WEIGHT} is stored as nvfp4"),
        ({}, metadata({"layers": {LAYER: "int8_tensorwise"}}), f"the marker of {WEIGHT} is not understood"),
        ({}, metadata({"layer": {}}), "its metadata _quantization_metadata is not understood"),
        ({}, metadata([]), "its metadata _quantization_metadata is not understood"),
        ({}, {"_quantization_metadata": "{"}, "its metadata _quantization_metadata is not understood"),
        ({}, metadata({"layers": {LAYER: {"format": "float8_e4m3fn"}}}), f"{WEIGHT} is I8, its marker says float8_e4m3fn"),
        ({}, metadata({"layers": {"x.y": {"format": "nvfp4"}}}), "a marker says how x.y.weight is stored, but it is missing"),
        ({}, metadata({"layers": {LAYER: {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64}}}), f"{WEIGHT} has two markers, which differ"),
        ({MARK: marker(convrot=True, per_row=True)}, None, f"the marker of {WEIGHT} names no format"),
        ({MARK: torch.tensor([123, 1], dtype=torch.uint8)}, None, f"its marker {MARK} is not understood"),
        ({MARK: torch.zeros(5000, dtype=torch.uint8)}, None, f"its marker {MARK} is not understood"),
        ({MARK: torch.zeros(4)}, None, f"its marker {MARK} is not understood"),
        ({MARK: marker(format="int8_tensorwise", group_size=64)}, None, f"the marker of {WEIGHT} is not understood: "),
        ({MARK: marker(format="int8_tensorwise", orig_shape=[1, 2])}, None, f"the marker of {WEIGHT} is not understood: "),
        ({MARK: marker(format="int8_tensorwise", convrot=1)}, None, f"the marker of {WEIGHT} is not understood: "),
        ({MARK: marker(format="int8_tensorwise", convrot=True)}, None, r"inputs are rotated in groups of 256"),
        ({MARK: marker(format="int8_tensorwise", convrot=True, convrot_groupsize=8)}, None, r"inputs are rotated in groups of 8"),
        ({MARK: marker(format="int8_tensorwise", params={"convrot": True, "convrot_groupsize": "64"})}, None, r"inputs are rotated in groups of 64"),
        ({MARK: None}, None, f"{WEIGHT} is 8-bit integers without a format"),
        ({SCALE: None, MARK: None}, None, f"{WEIGHT} is 8-bit integers without a scale"),
        ({SCALE: None}, None, f"{WEIGHT} has a marker and no scale"),
        ({WEIGHT: None, MARK: None}, None, f"{SCALE} is a scale without its weight, {WEIGHT}"),
        ({SCALE: torch.ones(255)}, None, r"expected one scale or one for each of the 256 rows"),
        ({SCALE: torch.ones(256, 2)}, None, r"expected one scale or one for each of the 256 rows"),
        ({SCALE: torch.ones(1, 64)}, None, r"expected one scale or one for each of the 256 rows"),
        ({SCALE: torch.ones(256, 1).to(torch.float8_e4m3fn)}, None, f"{SCALE} is F8_E4M3"),
        ({f"{LAYER}.scale_weight": torch.ones(1)}, None, f"{WEIGHT} has two scales"),
        ({"scaled_fp8": torch.zeros(2, dtype=torch.int32)}, None, "its marker scaled_fp8 is I32, which is not understood"),
    ],
)  # fmt: skip
def test_unknown_formats_are_refused_in_one_line(
    tensors: dict[str, Tensor | None], said: dict[str, str] | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    whole = original(2, 1) | int8() | tensors
    save_file({name: one for name, one in whole.items() if one is not None}, path, said)
    with pytest.raises(InputError) as caught:
        network_recipe(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and words in line and "\n" not in line
    assert line.endswith(
        ": use a file of the same model with bf16, fp16, fp8 or int8_tensorwise weights"
    )


def test_parts_of_every_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    for tensors, layer, load in (
        (transformers_text(parts("sd1")["text_encoder"]), "text_model.encoder.layers.0.mlp.fc1", lambda: clip_recipe([path])),
        (parts("sd1")["vae"].state_dict(), "decoder.conv_in", lambda: vae_recipe(path)),
        (checkpoint_tensors("sd1"), "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1", lambda: pipeline_recipes(path)),
        (checkpoint_tensors("sd1"), "cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1", lambda: clip_recipe([path])),
    ):  # fmt: skip
        whole = tensors | {f"{layer}.comfy_quant": marker(format="nvfp4")}
        save_file({name: one.detach().contiguous().clone() for name, one in whole.items()}, path)
        with pytest.raises(InputError, match=f"{layer}.weight is stored as nvfp4"):
            load()
