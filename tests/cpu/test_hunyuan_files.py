"""HunyuanDiT's transformers and ControlNets in the original layout, and ComfyUI's checkpoints, load
as the modules that they were made from.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from diffusers import AutoencoderKL, HunyuanDiT2DModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import T5Tokenizer

import katz_graph as katz
from katz_graph.core.errors import InputError
from katz_graph.models.families.shared import stand_ins as shared
from katz_graph.models.families.shared.random_parts import seeded
from katz_graph.models.family import check_controlnet
from katz_graph.models.loading.sources import (
    controlnet_recipe,
    network_recipe,
    pipeline_recipes,
)
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.text.sentence_pieces import sentence_piece_tokenizer
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.models.text.vocabularies import TOKENIZERS
from katz_graph.testing.random_models import Kind, draw_controlnet, draw_network
from katz_graph.testing.stand_ins import text_encoders

KINDS: tuple[Kind, ...] = ("hunyuan_dit", "hunyuan_dit11")
torch.set_num_threads(1)


def linear(into: dict[str, Tensor], name: str, *layers: nn.Module) -> None:
    """Writes layers as one, concatenating their rows."""
    for parameter in ("weight", "bias"):
        parts = [getattr(layer, parameter) for layer in layers if hasattr(layer, parameter)]
        into[f"{name}.{parameter}"] = torch.cat([part.detach() for part in parts])


def original(module: Any) -> dict[str, Tensor]:
    """Names the weights as Tencent's classes do (hydit/modules/models.py, controlnet.py,
    poolers.py).
    """
    found: dict[str, Tensor] = {}
    for number, block in enumerate(module.blocks):
        here = f"blocks.{number}"
        first, second = block.attn1, block.attn2
        linear(found, f"{here}.attn1.Wqkv", first.to_q, first.to_k, first.to_v)
        linear(found, f"{here}.attn2.kv_proj", second.to_k, second.to_v)
        linear(found, f"{here}.attn2.q_proj", second.to_q)
        for name, attention in (("attn1", first), ("attn2", second)):
            linear(found, f"{here}.{name}.q_norm", attention.norm_q)
            linear(found, f"{here}.{name}.k_norm", attention.norm_k)
            linear(found, f"{here}.{name}.out_proj", attention.to_out[0])
        linear(found, f"{here}.norm1", block.norm1.norm)
        linear(found, f"{here}.default_modulation.1", block.norm1.linear)
        linear(found, f"{here}.norm3", block.norm2)  # before the attention to the text
        linear(found, f"{here}.norm2", block.norm3)  # before the MLP
        linear(found, f"{here}.mlp.fc1", block.ff.net[0].proj)
        linear(found, f"{here}.mlp.fc2", block.ff.net[2])
        if block.skip_linear is not None:
            linear(found, f"{here}.skip_norm", block.skip_norm)
            linear(found, f"{here}.skip_linear", block.skip_linear)
    embedding = module.time_extra_emb
    for name, layer in (
        ("x_embedder.proj", module.pos_embed.proj),
        ("t_embedder.mlp.0", embedding.timestep_embedder.linear_1),
        ("t_embedder.mlp.2", embedding.timestep_embedder.linear_2),
        ("extra_embedder.0", embedding.extra_embedder.linear_1),
        ("extra_embedder.2", embedding.extra_embedder.linear_2),
        ("mlp_t5.0", module.text_embedder.linear_1),
        ("mlp_t5.2", module.text_embedder.linear_2),
        ("pooler.q_proj", embedding.pooler.q_proj),
        ("pooler.k_proj", embedding.pooler.k_proj),
        ("pooler.v_proj", embedding.pooler.v_proj),
        ("pooler.c_proj", embedding.pooler.c_proj),
    ):
        linear(found, name, layer)
    found["pooler.positional_embedding"] = embedding.pooler.positional_embedding.detach()
    found["text_embedding_padding"] = module.text_embedding_padding.detach()
    if hasattr(embedding, "style_embedder"):
        found["style_embedder.weight"] = embedding.style_embedder.weight.detach()
    if hasattr(module, "controlnet_blocks"):
        linear(found, "before_proj", module.input_block)
        for number, layer in enumerate(module.controlnet_blocks):
            linear(found, f"after_proj_list.{number}", layer)
    else:
        linear(found, "final_layer.linear", module.proj_out)
        for parameter in ("weight", "bias"):  # shift and scale are swapped
            scale, shift = getattr(module.norm_out.linear, parameter).detach().chunk(2)
            found[f"final_layer.adaLN_modulation.1.{parameter}"] = torch.cat([shift, scale])
    assert len(found) + fused(module) == len(list(module.parameters()))
    return {name: tensor.contiguous() for name, tensor in found.items()}


def fused(module: Any) -> int:
    """Counts the parameters that splitting fused ones adds: q, k, v and k, v of each block."""
    return len(module.blocks) * 2 * (2 + 1)


def assert_same(live: Any, module: nn.Module) -> None:
    assert all(
        torch.equal(live.state_dict()[name], one) for name, one in module.state_dict().items()
    )
    assert live.state_dict().keys() == module.state_dict().keys()


@pytest.mark.parametrize("prefix", ["", "model.", "model.diffusion_model."])
@pytest.mark.parametrize("kind", KINDS)
def test_a_transformer_in_the_original_layout_is_the_module(
    kind: Kind, prefix: str, tmp_path: Path
) -> None:
    module = draw_network(kind, 3)
    tensors = {f"{prefix}{name}": one for name, one in original(module).items()}
    save_file(tensors, tmp_path / "dit.safetensors")
    model = network_recipe(tmp_path / "dit.safetensors")
    values = json.loads(model.network.configuration or "")
    assert {name: module.config.get(name, value) for name, value in values.items()} == values
    assert_same(ModelStore().network(model.network, "cpu", torch.float32), module)
    table = json.loads(model.scheduler.configuration or "")
    assert table["beta_end"] == (0.018 if kind == "hunyuan_dit" else 0.03)
    assert model.latent.channels == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_controlnet_in_the_original_layout_is_the_module(kind: Kind, tmp_path: Path) -> None:
    module = draw_controlnet(kind, 2)
    save_file(original(module), tmp_path / "control.safetensors")
    ours = controlnet_recipe(tmp_path / "control.safetensors")
    values = json.loads(ours.control_net.configuration or "")
    assert {name: module.config.get(name, value) for name, value in values.items()} == values
    assert_same(ModelStore().controlnet(ours.control_net, "cpu", torch.float32), module)
    save_file(original(draw_network(kind, 3)), tmp_path / "dit.safetensors")
    check_controlnet(ours, network_recipe(tmp_path / "dit.safetensors"))
    with pytest.raises(InputError, match=r"control\.safetensors"):
        network_recipe(tmp_path / "control.safetensors")


def test_the_published_ratio_of_the_mlp_gives_its_width(tmp_path: Path) -> None:
    """In published models 4.3637 times 1408 is 6144, with the fraction cut off."""
    module = draw_network("hunyuan_dit", 3, hidden_size=32, mlp_ratio=4.3637)
    rows = module.blocks[0].ff.net[0].proj.out_features
    assert rows == 139
    save_file(original(module), tmp_path / "dit.safetensors")
    model = network_recipe(tmp_path / "dit.safetensors")
    assert_same(ModelStore().network(model.network, "cpu", torch.float32), module)


def test_a_file_without_a_layer_is_reported(tmp_path: Path) -> None:
    tensors = original(draw_network("hunyuan_dit", 3))
    short = {name: one for name, one in tensors.items() if not name.startswith("mlp_t5.0")}
    save_file(short, tmp_path / "dit.safetensors")
    with pytest.raises(InputError, match=r"dit\.safetensors: incomplete: .* is missing: download"):
        network_recipe(tmp_path / "dit.safetensors")


# ComfyUI's checkpoints


PIECES = "text_encoders.mt5xl.spiece_model"
TEXTS = "a red circle above sand", "sand"


@pytest.fixture(scope="module")
def pipeline(folders: dict[Kind, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder in diffusers' layout with the published values that shapes do not determine:
    BERT's heads of 64, the VAE's groups of 32.
    """
    folder = tmp_path_factory.mktemp("models") / "checkpoints" / "folder"
    shutil.copytree(folders["hunyuan_dit"], folder)
    config = folder / "text_encoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_attention_heads": 1}))
    with seeded(8):
        AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(32,) * 4,
            layers_per_block=1,
            scaling_factor=0.13025,
        ).save_pretrained(folder / "vae")
    return folder


def all_in_one(folder: Path) -> dict[str, Tensor]:
    """Names a pipeline's weights as in ComfyUI's hunyuan_dit_1.2.safetensors."""
    transformer = HunyuanDiT2DModel.from_pretrained(folder / "transformer")
    bert = load_file(folder / "text_encoder" / "model.safetensors")
    mt5 = load_file(folder / "text_encoder_2" / "model.safetensors")
    vae = load_file(folder / "vae" / "diffusion_pytorch_model.safetensors")
    words = torch.tensor(list(text_encoders.sentence_pieces()), dtype=torch.uint8)
    return (
        shared.under("model.", original(transformer))
        | shared.under("text_encoders.hydit_clip.transformer.bert.", bert)
        | {"text_encoders.hydit_clip.transformer.logit_scale": torch.zeros(1)}
        | shared.under("text_encoders.mt5xl.transformer.", mt5)
        | {"text_encoders.mt5xl.transformer.encoder.embed_tokens.weight": mt5["shared.weight"] + 0}
        | {PIECES: words}
        | shared.under("vae.", vae)
    )


@pytest.fixture
def hub(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Fakes a hub without a local copy at first; lists each call's `local_files_only`."""
    asked = []

    def download(repository: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        assert repository == "Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers"
        assert "tokenizer/vocab.txt" in allow_patterns
        asked.append(local_files_only)
        if local_files_only and len(asked) == 1:
            raise FileNotFoundError("nothing was fetched")
        return str(pipeline)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


def test_a_checkpoint_matches_the_pipeline_s_folder(
    pipeline: Path, hub: list[bool], tmp_path: Path
) -> None:
    save_file(all_in_one(pipeline), pipeline.parent / "hunyuan_dit_1.2.safetensors")
    graph = katz.Graph()
    model, clip, vae = graph.CheckpointLoaderSimple(ckpt_name="folder")
    positive = graph.CLIPTextEncodeHunyuanDiT(clip=clip, bert=TEXTS[0], mt5xl=TEXTS[1])
    latent = graph.KSampler(
        model=model,
        positive=positive,
        negative=graph.CLIPTextEncode(clip=clip, text=""),
        latent_image=graph.EmptyLatentImage(width=64, height=96),
        steps=3,
        cfg=3.0,
    )
    graph.SaveImage(images=graph.VAEDecode(samples=latent, vae=vae))
    painted = []
    with katz.open(models=str(pipeline.parents[1]), output=str(tmp_path)) as engine:
        for name in ("folder", "hunyuan_dit_1.2.safetensors"):
            result = engine.run(graph, set={"CheckpointLoaderSimple.ckpt_name": name}, seed=1)
            painted.append(numpy.array(result.images[0]))
    assert (painted[0] == painted[1]).all() and painted[0].std() > 2
    assert hub[:2] == [True, False]  # fetched once, as it was missing
    assert False not in hub[2:]


def test_without_a_network_the_error_names_the_place_of_the_vocabulary(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    save_file(all_in_one(pipeline), tmp_path / "dit.safetensors")
    with pytest.raises(
        InputError, match=r"its BERT has its tokenizer in .*1.2-Diffusers/tokenizer .*no route to"
    ):
        pipeline_recipes(tmp_path / "dit.safetensors")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (None, f"incomplete: {PIECES}, the tokenizer of its mT5, is missing"),
        (torch.zeros(9), "is F32, expected bytes"),
        (torch.zeros(9, dtype=torch.uint8), "not a sentencepiece model"),
    ],
)
def test_a_checkpoint_s_broken_tokenizer_is_named(
    words: Tensor | None, problem: str, pipeline: Path, hub: list[bool], tmp_path: Path
) -> None:
    tensors = {name: one for name, one in all_in_one(pipeline).items() if name != PIECES}
    save_file(tensors | ({} if words is None else {PIECES: words}), tmp_path / "dit.safetensors")
    with pytest.raises(InputError, match=problem):
        load_tokenizer(pipeline_recipes(tmp_path / "dit.safetensors")[1].encoders[1])


def test_sentencepiece_s_model_cuts_as_the_same_tokenizer_s_json() -> None:
    ours = sentence_piece_tokenizer(text_encoders.sentence_pieces())
    wanted = T5Tokenizer.from_pretrained(TOKENIZERS / "t5_tokenizer")
    for text in (
        "",
        "a red circle",
        "  two  spaces\tand\nlines ",
        "ﬁne ½ Ⅷ Å é",
        "Größe: 中文, 🙂!",
    ):
        assert ours(text).input_ids == wanted(text).input_ids
    assert (ours.pad_token_id, ours.eos_token_id) == (wanted.pad_token_id, wanted.eos_token_id)


def test_unknown_letters_are_spelled_in_bytes_where_the_model_has_them() -> None:
    letters = [(f"<0x{byte:02X}>", 6) for byte in range(256)]
    spelled = sentence_piece_tokenizer(text_encoders.sentence_pieces(letters, spelled=True))
    first = spelled.convert_tokens_to_ids("<0x00>")
    assert spelled("x中").input_ids[-4:] == [*(first + byte for byte in "中".encode()), 1]
