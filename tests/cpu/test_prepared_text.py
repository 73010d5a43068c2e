"""Prepared text encoders equal transformers' forwards: on a CPU bit for bit; with a GPU's fused
projections within float rounding.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import recipes
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    MistralConfig,
    MistralModel,
    MT5Config,
    MT5EncoderModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from katz_graph.executor.planning import plan_region
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.ir.device import Device, Target
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.prepare import fuse_projections, prepare, unprepared
from katz_graph.models.projections import FUSED
from katz_graph.models.text.sequence import last_state
from katz_graph.planner.region import stage_of
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import sampler_region
from katz_graph.testing.tapes import Tapes

TOKENS = [5, 12, 77]
HALF = [torch.float16, torch.bfloat16]


def clip(kind: type, activation: str) -> Any:
    torch.manual_seed(0)
    return kind(
        CLIPTextConfig(
            vocab_size=200,
            hidden_size=40,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            projection_dim=24,
            hidden_act=activation,
            bos_token_id=198,
            eos_token_id=199,
            initializer_factor=4.0,
        )
    ).eval()


def bert() -> Any:
    torch.manual_seed(0)
    return BertModel(
        BertConfig(
            vocab_size=200,
            hidden_size=40,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=4,
            initializer_range=0.3,
        )
    ).eval()


def t5(kind: type, config: type, **options: Any) -> Any:
    torch.manual_seed(0)
    module = kind(
        config(
            vocab_size=200,
            d_model=40,
            d_kv=12,
            d_ff=56,
            num_layers=3,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            initializer_factor=2.0,
            **options,
        )
    )
    return with_random_norms(module)


def language(model: Any, config: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = config(
        vocab_size=200,
        hidden_size=40,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        use_cache=False,
        **options,
    )
    module = with_random_norms(model(sizes))
    for name, weight in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)
    return module


def with_random_norms(module: nn.Module) -> nn.Module:
    """New norms have weights of 1, which hide mistakes."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return module.eval()


ENCODERS: dict[str, Callable[[], Any]] = {
    "clip of sd1": lambda: clip(CLIPTextModel, "quick_gelu"),
    "clip of sd2": lambda: clip(CLIPTextModel, "gelu"),
    "clip that projects": lambda: clip(CLIPTextModelWithProjection, "gelu"),
    "bert": bert,
    "t5": lambda: t5(T5EncoderModel, T5Config),
    "t5 with silu": lambda: t5(T5EncoderModel, T5Config, dense_act_fn="silu"),
    "mt5": lambda: t5(MT5EncoderModel, MT5Config),
    "qwen2": lambda: language(Qwen2Model, Qwen2Config),
    "qwen3": lambda: language(Qwen3Model, Qwen3Config, head_dim=12),
    "mistral": lambda: language(MistralModel, MistralConfig, head_dim=12, sliding_window=None),
}
SIXTEEN = ("t5", "t5 with silu", "mt5", "qwen2", "mistral")
BLOCKS = dict.fromkeys(SIXTEEN, 1 + 5 * 3) | {"qwen3": 1 + 7 * 3}
"""Prepared modules of an encoder of three layers; others have two a layer."""
PRODUCTS = {"bert": 0, **dict.fromkeys(BLOCKS, 2 * 3)}
"""Fused products of an encoder of three layers; others have one a layer."""


def call(module: Any, tokens: int) -> Tensor:
    """Returns all hidden states, for any `clip skip`, and the pooled text."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, 198, (2, tokens), generator=generator)
    ids[:, -1] = 199
    output = module(ids, output_hidden_states=True)
    pooled = getattr(output, "text_embeds", output.get("pooler_output"))
    states = *output.hidden_states, output.last_hidden_state if pooled is None else pooled
    return torch.cat([one.flatten() for one in states])


@torch.no_grad()
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ENCODERS)
def test_on_a_processor_it_is_transformers_bit_for_bit(name: str, tokens: int) -> None:
    module = ENCODERS[name]()
    expected, kinds = call(module, tokens), [type(one) for one in module.modules()]
    assert not unprepared(module)
    prepare(module)
    changed = [
        kind for kind, one in zip(kinds, module.modules(), strict=True) if type(one) is not kind
    ]
    assert len(changed) == BLOCKS.get(name, 2 * 3)
    assert torch.equal(call(module, tokens), expected)


def fused(module: nn.Module) -> int:
    fuse_projections(module)
    return sum(hasattr(one, FUSED) for one in module.modules())


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in ENCODERS if PRODUCTS.get(name, 3)])
def test_with_projections_side_by_side_it_is_transformers_within_rounding(name: str) -> None:
    """Holds after one projection's weights and biases change."""
    ours, theirs = ENCODERS[name](), ENCODERS[name]()
    prepare(ours)
    assert fused(ours) == PRODUCTS.get(name, 3)
    found = []
    for _ in range(2):
        made, expected = call(ours, 77), call(theirs, 77)
        assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
        found.append(made)
        for module in (ours, theirs):
            for called, weight in module.named_parameters():
                if re.search(r"v_proj|\.v\.|up_proj|wi_1", called):
                    weight.add_(0.1)
    assert (found[1] - found[0]).abs().max() > 0.01


@torch.no_grad()
@pytest.mark.parametrize("name", ["t5", "mt5", "qwen2", "qwen3", "mistral"])
def test_fused_encoders_are_recorded(name: str) -> None:
    """Replays with another text, between which all intermediate tensors are overwritten."""
    module, ids = ENCODERS[name](), torch.arange(12)[None]
    prepare(module)
    fuse_projections(module)

    def hidden() -> Tensor:
        return last_state(module, ids)

    weights = [*module.parameters(), *module.buffers()]
    recording = Tapes(strict=True).record(hidden, [ids, *weights])
    ids.add_(50)
    recording.replay()
    assert torch.equal(recording.outputs.clone(), hidden())


@torch.no_grad()
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ENCODERS)
def test_in_half_precision_it_errs_no_more_than_transformers(name: str, dtype: torch.dtype) -> None:
    """Compares root mean square errors against float64 with the same rounded weights, over several
    texts.
    """
    eager = ENCODERS[name]().to(dtype)
    exact, made = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    prepare(made)
    fuse_projections(made)

    def error(module: Any) -> float:
        apart = [call(module, tokens).double() - call(exact, tokens) for tokens in TOKENS]
        return float(torch.cat(apart).square().mean().sqrt())

    assert 0 < error(made) <= 1.2 * error(eager)


@torch.no_grad()
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_loras_are_patched_into_projections_that_lie_side_by_side(family: Any) -> None:
    from test_adapters_weight_set import loras

    def patched(together: bool) -> tuple[Tensor, Tensor, Tensor]:
        encoder = recipes(family)[1].encoders[0].encoder
        module = ModelStore().text_encoder(encoder, "cpu", torch.float32)
        if together:
            assert fused(module) == module.config.num_hidden_layers
        plain = call(module, 77)
        WeightSets(module).use(loras(family, 0.7, -0.4), ("clip", "clip_l"))
        layer = getattr(module, "text_model", module).encoder.layers[0].self_attn
        return plain, layer.q_proj.weight, call(module, 77)

    (_, weight, expected), (plain, other, made) = patched(False), patched(True)
    assert torch.equal(weight, other) and not torch.equal(made, plain)
    assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


def test_unknown_activations_and_decoders_are_reported() -> None:
    with torch.device("meta"):
        module = t5(T5EncoderModel, T5Config, dense_act_fn="quick_gelu")
    assert unprepared(module) == {"T5DenseGatedActDense, activation QuickGELUActivation": 3}
    with torch.device("meta"):
        module = T5ForConditionalGeneration(T5Config(d_model=16, d_ff=32, num_layers=2)).eval()
    assert unprepared(module) == {"T5Block, decoder": 2}


@torch.no_grad()
def test_infinite_activations_in_float16_are_clamped_like_in_transformers() -> None:
    module = t5(T5EncoderModel, T5Config).to(torch.float16)
    for block in module.encoder.block:
        block.layer[0].SelfAttention.o.weight.mul_(1e4)
        block.layer[1].DenseReluDense.wo.weight.mul_(1e2)
    expected = call(module, 12)
    prepare(module)
    assert expected.isfinite().all() and expected.max() == 64512  # the nearest to 65504 - 1000
    assert torch.equal(call(module, 12), expected)


def test_dropout_keeps_the_library_s_forward() -> None:
    module = bert().train()
    assert unprepared(module) == {"BertSelfOutput, dropout": 3, "BertOutput, dropout": 3}


def test_a_plan_for_a_gpu_names_unprepared_blocks_of_text_encoders(tmp_path: Path) -> None:
    make_pipeline(tmp_path, "sd35", 1, with_t5=True)
    config = tmp_path / "text_encoder_3" / "config.json"
    changed = config.read_text().replace("gated-gelu", "gated-relu").replace("gelu_new", "relu")
    config.write_text(changed)
    case = Case("test", tmp_path, "euler", 2, latent=torch.zeros(1, 16, 8, 8))
    gpu = Device("cuda:0", 1e12, 1e12, torch_name="cuda:0")
    program = plan_region(sampler_region(case), Target((gpu,), batching=False))
    texts = {one.id for one in program.before if stage_of(one).encodes_text}
    assert texts and texts <= program.unprepared.keys()
    for name in texts:
        (reason,) = program.unprepared[name]  # CLIP is prepared
        assert reason.endswith(" T5DenseGatedActDense, activation ReLU")
