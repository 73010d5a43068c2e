"""Prepared blocks of FLUX.1, Stable Diffusion 3 and 3.5 and their ControlNets equal diffusers'
forwards: on a CPU bit for bit; with a GPU's fused projections within float rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers_made import forward, inputs

from katz_graph.executor.recorded.recorder import NOT_DECLARED, Recorder
from katz_graph.ir.values import Tokens
from katz_graph.models.loading import fill
from katz_graph.models.prepare import fuse_projections, prepare, unprepared
from katz_graph.models.prepared.joint import joined
from katz_graph.models.projections import Fusible
from katz_graph.models.stage_registry import stage
from katz_graph.testing.random_models import (
    Kind,
    draw_controlnet,
    draw_network,
    kinds,
    make_pipeline,
)
from katz_graph.testing.requests import local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, region
from katz_graph.testing.tapes import Tapes

ALONE = {  # SD3.5 large's ControlNets have blocks of picture tokens only
    "joint_attention_dim": None,
    "pos_embed_max_size": None,
    "pos_embed_type": None,
    "use_pos_embed": False,
    "force_zeros_for_pooled_projection": False,
    "qk_norm": None,
}
NETWORKS: tuple[Kind, ...] = ("sd3", "sd35", "flux", "qwen_image")
ROTATED = "flux", "qwen_image"
CHANGED = "to_k", "add_v", "proj_mlp", "norm1.linear", "img_mod"
BATCH, REFERENCE, STEPS = 2, 5, 3  # rows of a call, seed, steps of a request

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def network_call(module: Any, seed: int = 4) -> Tensor:
    made: Tensor = forward(module, *inputs(module, BATCH, module.dtype, seed))
    return made


def control_call(module: Any, seed: int = 4) -> Tensor:
    """Returns a ControlNet's residuals, in one row."""
    name = type(module).__name__
    kind: Kind = "flux" if name == "FluxControlNetModel" else "sd35"
    step, text = inputs(draw_network(kind, 3), BATCH, module.dtype, seed)
    time = step.timestep.float()
    if kind == "sd35":
        hint = torch.randn(step.x.shape, generator=torch.Generator().manual_seed(REFERENCE))
        hidden, x = text.hidden, step.model_input
        if module.config.joint_attention_dim is None:
            hidden, draw = None, torch.Generator().manual_seed(seed)
            x = torch.randn(BATCH, 15, 32, generator=draw).to(module.dtype)
        given = (x, hint.to(module.dtype), 0.7, hidden, text.pooled, time)
        residuals = module(*given, return_dict=False)[0]
    else:
        hint = torch.randn(BATCH, 15, 64, generator=torch.Generator().manual_seed(REFERENCE))
        packed = diffusers.FluxPipeline._pack_latents(step.model_input, BATCH, 16, 6, 10)
        double, single = module(
            packed,
            hint.to(module.dtype),
            encoder_hidden_states=text.hidden,
            pooled_projections=text.pooled,
            timestep=time,
            img_ids=diffusers.FluxPipeline._prepare_latent_image_ids(
                BATCH, 3, 5, "cpu", torch.float32
            ),
            txt_ids=torch.zeros(text.hidden.shape[1], 3),
            guidance=text.guidance,
            return_dict=False,
        )
        residuals = (*double, *single)
    return torch.cat([one.flatten() for one in residuals])


Made = tuple[Callable[[], Any], Callable[..., Tensor], int]
"""Makes a module, calls it, and counts its blocks."""
MODULES: dict[str, Made] = {
    "sd3": (lambda: draw_network("sd3", 3), network_call, 3),
    "sd35": (lambda: draw_network("sd35", 3), network_call, 3),
    "flux": (lambda: draw_network("flux", 3), network_call, 5),
    "qwen_image": (lambda: draw_network("qwen_image", 3), network_call, 3),
    "sd3 control": (lambda: draw_controlnet("sd3", 4, 2), control_call, 2),
    "sd35 control": (lambda: draw_controlnet("sd35", 4, 2), control_call, 2),
    "sd35 large control": (lambda: draw_controlnet("sd35", 4, 2, **ALONE), control_call, 2),
    "flux control": (lambda: draw_controlnet("flux", 4, 2), control_call, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_on_a_processor_it_is_diffusers_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    make, call, blocks = MODULES[name]
    module = make().to(dtype)
    expected = call(module)
    assert not unprepared(module)
    prepare(module)
    assert sum(isinstance(one, Fusible) for one in module.modules()) == blocks
    assert torch.equal(call(module), expected)


@pytest.mark.parametrize("name", MODULES)
def test_with_fused_projections_it_is_diffusers_within_rounding(name: str) -> None:
    """Holds after weights and biases of single projections change."""
    make, call, _ = MODULES[name]
    ours, theirs = make(), make()
    prepare(ours)
    fuse_projections(ours)
    found = []
    for _ in range(2):
        made, expected = call(ours), call(theirs)
        assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
        found.append(made)
        changed = 0
        for module in (ours, theirs):
            for path, weight in module.named_parameters():
                if any(part in path for part in CHANGED):
                    weight.add_(0.05)
                    changed += 1
        assert changed >= 4 * 2
    assert (found[1] - found[0]).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MODULES)
def test_in_half_precision_it_errs_no_more_than_diffusers(name: str, dtype: torch.dtype) -> None:
    """Compares root mean square errors against float64 with the same rounded weights, over several
    inputs.
    """
    make, call, _ = MODULES[name]
    eager = make().to(dtype)
    exact, made = copy.deepcopy(eager).double(), copy.deepcopy(eager)
    prepare(made)
    fuse_projections(made)

    def error(module: nn.Module) -> float:
        apart = [call(module, seed).double() - call(exact, seed) for seed in (4, 5, 6, 7)]
        return float(torch.cat([one.flatten() for one in apart]).square().mean().sqrt())

    assert 0 < error(made) <= 1.2 * error(eager)


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("sd35", lambda block: block.set_chunk_feed_forward(1), "feed-forward in chunks"),
        (
            "sd3",
            lambda block: block.attn.set_processor(
                diffusers.models.attention_processor.AttnProcessor()
            ),
            "attention processor AttnProcessor",
        ),
    ],
)
def test_blocks_with_other_options_keep_their_forward_and_are_reported(
    kind: Kind, change: Callable[[Any], None], reason: str
) -> None:
    module = draw_network(kind, 3)
    change(module.transformer_blocks[1])
    assert unprepared(module) == {f"JointTransformerBlock, {reason}": 1}
    prepare(module)
    assert [isinstance(one, Fusible) for one in module.transformer_blocks] == [True, False, True]


@pytest.mark.parametrize("kind", ["sd35", "flux"])
def test_full_size_models_have_the_same_shapes_and_operations(kind: Kind) -> None:
    made = kinds()[kind]
    values = {**made.configuration(2), **made.published, "num_layers": 2}
    if kind == "flux":
        values["num_single_layers"] = 2
    with torch.device("meta"):
        module = getattr(diffusers, made.network)(**values).eval()
    hidden, text = (torch.empty(1, count, module.inner_dim, device="meta") for count in (4096, 512))
    embedding = hidden[:, 0]
    width = module.config.attention_head_dim
    fixed = (torch.empty(1, 4608, width, device="meta"),) * 2
    given = {
        "features": Tokens(hidden, text, embedding, None),  # type: ignore[arg-type]
        "fixed": fixed if kind == "flux" else (),
        "first_block": 0,
        "last_block": -1,
    }
    counts = []
    for _ in range(2):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            (tokens,) = stage("transformer_blocks").computed(module, given)
        counts.append((tokens.hidden.shape, counter.get_total_flops()))
        prepare(module)
        fuse_projections(module)
    assert counts[0] == counts[1] and counts[0][1] > 1e11


def test_text_and_picture_that_are_parts_of_one_tensor_are_not_copied() -> None:
    whole = torch.randn(2, 5, 4)
    text, picture = whole[:, :2], whole[:, 2:]
    assert joined(text, picture).data_ptr() == whole.data_ptr()
    for first, last in (
        (picture, text),
        (text.clone(), picture),
        (text, whole[:, 3:]),
        (text[:1], picture[1:]),
        (text, picture[..., [0, 1, 2, 3]]),
    ):
        assert torch.equal(joined(first, last), torch.cat([first, last], dim=1))


def turns() -> Tensor:
    """Draws cosines or sines of positions, equal for both values of a pair."""
    return torch.randn(1, 24, 8).repeat_interleave(2, dim=-1)


@pytest.mark.parametrize("kind", NETWORKS)
def test_blocks_with_fused_projections_are_recorded(kind: Kind) -> None:
    """Replays with other tokens, between which all intermediate tensors are overwritten."""
    module = draw_network(kind, 3)
    prepare(module)
    fuse_projections(module)
    hidden, text = torch.randn(BATCH, 15, 32), torch.randn(BATCH, 9, 32)
    embedding, rotary = torch.randn(BATCH, 32), turns()
    fixed = (rotary, rotary) if kind in ROTATED else ()
    tokens = Tokens(hidden, text, embedding, None)  # type: ignore[arg-type]
    given = {"features": tokens, "fixed": fixed, "first_block": 0, "last_block": -1}

    def call() -> Tensor:
        (made,) = stage("transformer_blocks").computed(module, given)
        return made.hidden

    weights = [*module.parameters(), *module.buffers()]
    recording = Tapes(strict=True).record(call, [hidden, text, embedding, *fixed, *weights])
    for _ in range(2):
        for one in (hidden, text, embedding):
            one.normal_()
        recording.replay()
        assert torch.equal(recording.outputs.clone(), call())


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_range_of_blocks_activates_its_embedding_once(kind: Kind) -> None:
    module = draw_network(kind, 3)
    hidden, text = torch.randn(BATCH, 15, 32), torch.randn(BATCH, 9, 32)
    rotary = turns()
    tokens = Tokens(hidden, text, torch.randn(BATCH, 32), None)  # type: ignore[arg-type]

    def run(*ranges: tuple[int, int]) -> Tensor:
        made = tokens
        for first, last in ranges:
            given = {"features": made, "first_block": first, "last_block": last}
            fixed = (rotary, rotary) if kind in ROTATED else ()
            (made,) = stage("transformer_blocks").computed(module, {**given, "fixed": fixed})
        return made.hidden

    expected = run((0, -1))
    prepare(module)
    fuse_projections(module)
    for ranges in ([(0, -1)], [(0, 0), (1, 1), (2, -1)]):
        with Operations() as operations:
            made = run(*ranges)
        assert operations.names.count("silu") == len(ranges)
        assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


class Operations(TorchDispatchMode):
    """Lists the names of operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(function._overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["sd35", "flux"])
def test_an_engine_records_fused_blocks_of_networks_and_controlnets(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads, samples and replays as on a GPU, with a CPU's arithmetic."""
    make_pipeline(tmp_path, kind, 5)
    draw_controlnet(kind, 6).save_pretrained(tmp_path / "controlnet")
    picture = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(3))
    noise = torch.zeros(1, 16, 8, 8)
    asked = Asked(tmp_path, kind, noise, STEPS, image=picture, strength=0.8)
    with local_engine() as engine:
        wanted = sample(engine, region(asked, 7, engine))
    monkeypatch.setattr(fill, "uses_kernels", lambda tensor: True)
    with local_engine() as engine:
        engine.models.compute = recorder = Recorder(Tapes(strict=True), eager=0)
        found = sample(engine, region(asked, 7, engine))
    assert recorder.use.replays > STEPS and recorder.use.eager.keys() <= {NOT_DECLARED}
    assert 0 < (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()
