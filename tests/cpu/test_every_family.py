"""Nodes that touch noise, levels or latents, with a model of every family, give the values of the
family's path, x = x0 + σ noise or x = (1 - σ) x0 + σ noise.

The networks predict 0, so that the denoised prediction is known: x itself, or x / (σ² + 1) for
v-prediction.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    AutoencoderKLQwenImage21,
    DDPMScheduler,
)
from node_calls import registry
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pixel_unshuffle

from katz_graph.core.errors import KatzError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import ConditioningEntry, ModelRecipe, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.models.family import families, family_of
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import bare_context, local_engine

SEED, SIDE = 5, 8
LAST_LAYERS = ("conv_out.", "proj_out.", "all_final_layer.2-1.linear.", "final_layer.linear.")


@dataclass(frozen=True)
class Trained:
    """Published training parameters: scale and shift of the latents, and the shift of a flow's
    levels (None for other paths).
    """

    scale: float | tuple[float, ...]  # one, or one for each channel
    shift: float | tuple[float, ...] = 0.0
    channels: int = 4
    flow: float | None = None
    predicts_v: bool = False


VAES: Mapping[Kind, Any] = {
    "qwen_image": AutoencoderKLQwenImage,
    "krea2": AutoencoderKLQwenImage,
    "qwen_image_21": AutoencoderKLQwenImage21,
    "anima": AutoencoderKLQwenImage,
}
"""VAEs of frames."""


def of_statistics(kind: Kind, channels: int, flow: float) -> Trained:
    """Takes the published values, which are diffusers' defaults."""
    published = inspect.signature(VAES[kind].__init__).parameters
    scale = tuple(1 / one for one in published["latents_std"].default)
    return Trained(scale, tuple(published["latents_mean"].default), channels, flow)


TRAINED: Mapping[Kind, Trained] = {
    "sd1": Trained(0.18215),
    "sd35": Trained(1.5305, 0.0609, 16, 3.0),
    "flux": Trained(0.3611, 0.1159, 16, 3.1581929),  # e^1.15
    "z_image": Trained(0.3611, 0.1159, 16, 3.0),
    "hunyuan_dit": Trained(0.13025, predicts_v=True),
    "qwen_image": of_statistics("qwen_image", 16, 3.1581929),
    "krea2": of_statistics("krea2", 16, 3.1581929),
    "qwen_image_21": of_statistics("qwen_image_21", 64, 1.9937155),  # e^0.69
    "anima": of_statistics("anima", 16, 3.0),
    "klein": Trained(1.0, 0.0, 128, 7.5383248),  # e^2.02
}


@dataclass(frozen=True)
class Setting:
    """Holds a family's model and runs nodes with it."""

    kind: Kind
    trained: Trained
    folder: Path
    engine: DeviceEngine

    @property
    def model(self) -> ModelRecipe:
        return pipeline_recipes(self.folder)[0]

    @property
    def texts(self) -> dict[str, Any]:
        text = (ConditioningEntry(Prompt(pipeline_recipes(self.folder)[1], "sand")),)
        return {"positive": text, "negative": text}

    def run(self, nodes: Mapping[str, NodeCall], output: int = 0) -> Any:
        graph = Graph(dict(nodes))
        result = run_graph(graph, bare_context(self.engine), ResultCache("none"), targets=["out"])
        result.raise_failures()
        return result.outputs["out"][output]

    def samples(self, node: str, /, **inputs: Any) -> Tensor:
        samples: Tensor = self.run({"out": NodeCall(node, inputs)})["samples"]
        return samples

    def picture(self) -> Tensor:
        return drawn(self.trained.channels, seed=9)

    def empty(self, channels: int) -> Tensor:
        """Returns an empty latent of the model's channels, or of 4 for a picture of that size."""
        # an EmptyLatentImage has cells of 8 pixels
        side = SIDE * self.model.latent.factor // 8 if channels == 4 else SIDE
        return torch.zeros(1, channels, side, side)

    def noise(self, seed: int = SEED) -> Tensor:
        return drawn(self.trained.channels, seed)

    def normalised(self, latent: Tensor) -> Tensor:
        return (latent - of_channels(self.trained.shift)) * of_channels(self.trained.scale)

    def restored(self, x: Tensor) -> Tensor:
        return x / of_channels(self.trained.scale) + of_channels(self.trained.shift)

    def noised(self, x0: Tensor, noise: Tensor, sigma: float) -> Tensor:
        return (x0 if self.trained.flow is None else (1 - sigma) * x0) + sigma * noise

    def finished(self, x: Tensor, sigma: float) -> Tensor:
        return self.restored(x if self.trained.flow is None else x / (1 - sigma))

    def stepped(self, x: Tensor, sigmas: list[float]) -> Tensor:
        """Takes Euler steps of a zero network."""
        for sigma, after in pairwise(sigmas):
            denoised = x / (sigma**2 + 1) if self.trained.predicts_v else x
            x = x + (x - denoised) / sigma * (after - sigma)
        return x

    def painted(self, latent: Tensor, noise: Tensor, sigmas: list[float]) -> Tensor:
        """Returns a sampler's result for a non-empty latent, starting below the highest level."""
        x = self.noised(self.normalised(latent), noise, sigmas[0])
        return self.finished(self.stepped(x, sigmas), sigmas[-1])

    def levels(self, steps: int = 4, first: int = 1) -> list[float]:
        """Returns `simple` levels: every n-th entry, from the end."""
        table = self.table()
        spread = [table[-(1 + int(i * len(table) / steps))] for i in range(steps)]
        return [*spread, 0.0][first:]

    def table(self) -> list[float]:
        shift = self.trained.flow
        if shift is not None:
            discrete = self.kind in ("sd35", "z_image", "anima")
            count = 1000 if discrete else 10_000
            times = torch.arange(1, count + 1, dtype=torch.float64) / count
            return (shift * times / (1 + (shift - 1) * times)).tolist()
        config = json.loads((self.folder / "scheduler/scheduler_config.json").read_text())
        products = DDPMScheduler.from_config(config).alphas_cumprod.double()
        return ((1 - products) / products).sqrt().tolist()


def of_channels(values: float | tuple[float, ...]) -> Tensor:
    return torch.tensor(values).reshape(-1, 1, 1)


def drawn(channels: int, seed: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(1, channels, SIDE, SIDE, generator=generator)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    """Makes pipelines whose networks predict 0."""
    made: dict[Kind, Path] = {}

    def make(kind: Kind) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            make_pipeline(made[kind], kind, 1)
            (weights,) = made[kind].glob("[ut]*e[tr]/diffusion_pytorch_model.safetensors")
            tensors = load_file(weights)
            last = [name for name in tensors if name.startswith(LAST_LAYERS)]
            assert last
            save_file(tensors | {name: tensors[name] * 0.0 for name in last}, weights)
        return made[kind]

    return make


@pytest.fixture(scope="module")
def engine(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(batching=False, cache=costs) as opened:
        yield opened


@pytest.fixture(params=TRAINED)
def family(
    request: pytest.FixtureRequest, silent: Callable[[Kind], Path], engine: DeviceEngine
) -> Setting:
    return Setting(request.param, TRAINED[request.param], silent(request.param), engine)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_there_is_a_model_of_every_family(silent: Callable[[Kind], Path]) -> None:
    found = {family_of(pipeline_recipes(silent(kind))[0].network).title for kind in TRAINED}
    assert {one.title for one in families()} <= found


READ_A_MODEL = {
    "AddNoise",
    "BasicScheduler",
    "BetaSamplingScheduler",
    "DiffusersSampler",
    "DiffusersStepBegin",
    "EditTemplate",
    "KSampler",
    "KSamplerAdvanced",
    "SDTurboScheduler",
    "SamplerCustom",
    "SamplerCustomAdvanced",
    "SigmasStepBegin",
    "StepBegin",
    "VAEDecode",
    "VAEDecodeTiled",
    "VAEEncode",
    "VAEEncodeForInpaint",
    "VAEEncodeTiled",
    # these put encoded pictures in conditionings: test_nodes_vae.py
    "InpaintModelConditioning",
    "InstructPixToPixConditioning",
    # encodes prompts with pictures of one family: test_qwen_image_21.py
    "TextEncodeQwenImage21",
}


@pytest.mark.defect(2)
def test_every_node_between_models_and_noise_is_tried_here() -> None:
    """A new node that reads a model and touches noise, levels or latents needs a test here."""
    touched = {"LATENT", "NOISE", "SIGMAS"}
    found = set()
    for name, kind in registry().items():
        reads = {port.socket for port in kind.inputs.values() if not port.knob}
        gives = {output.socket for output in kind.outputs}
        if reads & {"MODEL", "GUIDER", "VAE"} and (reads | gives) & touched:
            found.add(name)
    assert found == READ_A_MODEL


# Noise


@pytest.mark.defect(2)
@pytest.mark.parametrize("sigmas", [[0.7], [0.75, 0.6, 0.05], [0.05, 0.75]])
def test_noise_is_added_on_the_models_path(family: Setting, sigmas: list[float]) -> None:
    level = abs(sigmas[0] - sigmas[-1]) if len(sigmas) > 1 else sigmas[0]
    picture = family.picture()
    noisy = family.run(
        {
            "noise": NodeCall("RandomNoise", {"noise_seed": SEED}),
            "out": NodeCall(
                "AddNoise",
                {
                    "model": family.model,
                    "noise": Link("noise", 0),
                    "sigmas": torch.tensor(sigmas),
                    "latent_image": {"samples": picture},
                },
            ),
        }
    )["samples"]
    expected = family.noised(family.normalised(picture), family.noise(), level)
    assert_same(noisy, family.restored(expected))


def with_noise(family: Setting, latent: Mapping[str, Any], noise: str, level: float) -> Tensor:
    samples: Tensor = family.run(
        {
            "noise": NodeCall(noise, {"noise_seed": SEED} if noise == "RandomNoise" else {}),
            "out": NodeCall(
                "AddNoise",
                {
                    "model": family.model,
                    "noise": Link("noise", 0),
                    "sigmas": torch.tensor([level]),
                    "latent_image": latent,
                },
            ),
        }
    )["samples"]
    return samples


@pytest.mark.defect(2)
def test_an_empty_latent_with_noise_is_noise_alone(family: Setting) -> None:
    """Zeros, with any number of channels, are no picture and are not shifted."""
    for latent in map(family.empty, (4, family.trained.channels)):
        assert_same(
            with_noise(family, {"samples": latent}, "RandomNoise", 0.8),
            family.restored(family.noise() * 0.8),
        )


@pytest.mark.defect(2)
def test_without_noise_the_latent_moves_along_the_path(family: Setting) -> None:
    moved = with_noise(family, {"samples": family.picture()}, "DisableNoise", 0.25)
    share = 1.0 if family.trained.flow is None else 0.75
    assert_same(moved, family.restored(family.normalised(family.picture()) * share))


@pytest.mark.defect(2)
def test_a_batch_keeps_the_draws_of_its_samples(family: Setting) -> None:
    picture, channels = family.picture(), family.trained.channels
    generator = torch.Generator("cpu").manual_seed(SEED)
    draws = [torch.randn(1, channels, SIDE, SIDE, generator=generator) for _ in range(3)]
    batch = {"samples": picture.repeat(2, 1, 1, 1), "batch_index": [2, 0]}
    noise = torch.cat([draws[2], draws[0]])
    expected = family.noised(family.normalised(batch["samples"]), noise, 0.4)
    assert_same(with_noise(family, batch, "RandomNoise", 0.4), family.restored(expected))


@pytest.mark.defect(2)
def test_noise_above_the_path_of_a_flow_is_refused(family: Setting) -> None:
    if family.trained.flow is None:
        expected = family.normalised(family.picture()) + family.noise() * 14.6
        noisy = with_noise(family, {"samples": family.picture()}, "RandomNoise", 14.6)
        torch.testing.assert_close(noisy, family.restored(expected), rtol=1e-5, atol=1e-3)
    else:
        with pytest.raises(KatzError, match=r"expected levels from 1.*got 14\.6"):
            with_noise(family, {"samples": family.picture()}, "RandomNoise", 14.6)


# Levels


@pytest.mark.defect(2)
def test_schedulers_give_the_levels_that_the_model_was_trained_on(family: Setting) -> None:
    common = {"model": family.model, "steps": 4}
    whole = family.run({"out": NodeCall("BasicScheduler", {**common, "scheduler": "simple"})})
    assert whole.tolist() == pytest.approx(family.levels(first=0), rel=1e-5)
    part = {**common, "scheduler": "simple", "denoise": 0.5}
    half = family.run({"out": NodeCall("BasicScheduler", part)})
    assert half.tolist() == pytest.approx(family.levels(8, first=4), rel=1e-5)
    # Beta(1, 1) is flat
    uniform = {**common, "alpha": 1.0, "beta": 1.0}
    even = family.run({"out": NodeCall("BetaSamplingScheduler", uniform)})
    table = family.table()
    expected = [table[round((1 - i / 4) * (len(table) - 1))] for i in range(4)]
    assert even.tolist() == pytest.approx([*expected, 0.0], rel=1e-5)


@pytest.mark.defect(2)
def test_turbos_levels_are_tenths_of_a_thousand_timesteps(family: Setting) -> None:
    """FLUX, Z-Image, Qwen-Image, Krea 2 and Anima have no such steps, as their times are 0 to 1."""
    levels = family.run({"out": NodeCall("SDTurboScheduler", {"model": family.model, "steps": 2})})
    if family.kind in ("flux", "z_image", "klein", *VAES):
        with pytest.raises(KatzError, match="expected levels from 1"):
            family.samples("SamplerCustom", **custom(family, levels))
        return
    # a flow's table begins at 1, of a thousand; the other at timestep 0
    first, second = (998, 898) if family.trained.flow else (999, 899)
    expected = [family.table()[first], family.table()[second], 0.0]
    assert levels.tolist() == pytest.approx(expected, rel=1e-5)


# Samplers


def custom(family: Setting, sigmas: Tensor, **changed: Any) -> dict[str, Any]:
    sampler = registry()["KSamplerSelect"].run(bare_context(family.engine), {})[0]
    given = {"model": family.model, **family.texts, "cfg": 1.0, "noise_seed": SEED}
    latent = {"samples": family.picture()}
    return {**given, "sampler": sampler, "sigmas": sigmas, "latent_image": latent, **changed}


def asked(family: Setting, **changed: Any) -> dict[str, Any]:
    given = {"model": family.model, **family.texts, "steps": 4, "cfg": 1.0, "scheduler": "simple"}
    return {**given, "latent_image": {"samples": family.picture()}, **changed}


@pytest.mark.defect(2)
def test_all_samplers_mix_the_picture_with_noise_of_their_level(family: Setting) -> None:
    sigmas = family.levels(8, first=4)
    expected = family.painted(family.picture(), family.noise(), sigmas)
    assert_same(family.samples("KSampler", **asked(family, seed=SEED, denoise=0.5)), expected)
    knobs = {"noise_seed": SEED, "steps": 8, "start_at_step": 4}
    assert_same(family.samples("KSamplerAdvanced", **asked(family, **knobs)), expected)
    levels = torch.tensor(sigmas)
    assert_same(family.samples("SamplerCustom", **custom(family, levels)), expected)


def test_an_edit_template_changes_nothing_unless_cached_edits_are_allowed(family: Setting) -> None:
    sigmas = family.levels(8, first=4)
    expected = family.painted(family.picture(), family.noise(), sigmas)
    inputs = asked(family, seed=SEED, denoise=0.5, model=Link("template", 0))
    texts = {"positive": family.texts["positive"], "negative": family.texts["positive"]}
    template = {"model": family.model, "latent": {"samples": family.picture()}, **texts}
    found = family.run(
        {"template": NodeCall("EditTemplate", template), "out": NodeCall("KSampler", inputs)}
    )
    assert_same(found["samples"], expected)


@pytest.mark.defect(2)
def test_two_halves_of_a_schedule_are_the_whole(family: Setting) -> None:
    """With SplitSigmas or KSamplerAdvanced, the latent in between keeps its noise."""
    sigmas = family.levels(6, first=2)
    expected = family.painted(family.picture(), family.noise(), sigmas)
    between = family.painted(family.picture(), family.noise(), sigmas[:3])
    nodes = {
        "split": NodeCall("SplitSigmas", {"sigmas": torch.tensor(sigmas), "step": 2}),
        "none": NodeCall("DisableNoise", {}),
        "noise": NodeCall("RandomNoise", {"noise_seed": SEED}),
        "sampler": NodeCall("KSamplerSelect", {}),
        "guider": NodeCall(
            "BasicGuider", {"model": family.model, "conditioning": family.texts["positive"]}
        ),
    }
    given = {"guider": Link("guider", 0), "sampler": Link("sampler", 0)}
    first = {"noise": Link("noise", 0), "sigmas": Link("split", 0)}
    first["latent_image"] = {"samples": family.picture()}
    second = {"noise": Link("none", 0), "sigmas": Link("split", 1), "latent_image": Link("a", 0)}
    nodes["a"] = NodeCall("SamplerCustomAdvanced", given | first)
    nodes["out"] = NodeCall("SamplerCustomAdvanced", given | second)
    assert_same(family.run(nodes)["samples"], expected)
    assert_same(family.run({**nodes, "out": nodes["a"]})["samples"], between)

    part = {"steps": 6, "end_at_step": 4, "start_at_step": 2}
    noisy = asked(family, **part, noise_seed=SEED, return_with_leftover_noise="enable")
    half = family.samples("KSamplerAdvanced", **noisy)
    assert_same(half, between)
    rest = {"steps": 6, "start_at_step": 4, "add_noise": "disable"}
    latent = {"samples": half}
    again = family.samples("KSamplerAdvanced", **asked(family, **rest, latent_image=latent))
    assert_same(again, expected)


@pytest.mark.defect(2)
def test_an_empty_latent_begins_with_noise_alone(family: Setting) -> None:
    """The run starts at the highest level. Paths other than a flow's start with variance 1 + σ²."""
    sigmas = family.levels(2, first=0)
    start = (1 + sigmas[0] ** 2) ** 0.5 if family.trained.flow is None else 1.0
    x = family.stepped(family.noise() * start, sigmas)
    latent = {"samples": family.empty(4)}
    found = family.samples("KSampler", **asked(family, seed=SEED, steps=2, latent_image=latent))
    torch.testing.assert_close(found, family.finished(x, 0.0), rtol=1e-4, atol=1e-3)


@pytest.mark.defect(2)
def test_outside_of_a_mask_the_picture_stays(family: Setting) -> None:
    mask = torch.zeros(1, 64, 64)
    mask[..., :32] = 1.0
    latent = {"samples": family.picture()}
    nodes = {
        "masked": NodeCall("SetLatentNoiseMask", {"samples": latent, "mask": mask}),
        "out": NodeCall(
            "KSampler",
            asked(family, seed=SEED, denoise=0.5, latent_image=Link("masked", 0)),
        ),
    }
    found = family.run(nodes)["samples"]
    assert_same(found[..., 4:], family.picture()[..., 4:])
    expected = family.painted(family.picture(), family.noise(), family.levels(8, first=4))
    assert_same(found[..., :4], expected[..., :4])


@pytest.mark.defect(2)
def test_diffusers_schedulers_are_refused_for_flows(family: Setting) -> None:
    """They add noise to the latent, whatever the model predicts."""
    given = asked(family, seed=SEED, guidance_scale=1.0, strength=0.5)
    del given["cfg"], given["scheduler"]
    if family.trained.flow is not None:
        with pytest.raises(KatzError, match=r"DiffusersSampler: .* is a flow"):
            family.samples("DiffusersSampler", **given)
    else:
        assert family.samples("DiffusersSampler", **given).isfinite().all()


# VAEs


@pytest.mark.defect(2)
def test_latents_on_wires_are_the_vaes_own(family: Setting) -> None:
    frames, packed = family.kind in VAES, family.kind == "klein"
    coder = VAES.get(family.kind, AutoencoderKLFlux2 if packed else AutoencoderKL)
    vae = coder.from_pretrained(family.folder / "vae")
    recipe = pipeline_recipes(family.folder)[2]
    picture = torch.rand(1, 64, 64, 3, generator=torch.Generator("cpu").manual_seed(1))
    if family.kind == "qwen_image_21":  # opaque pictures
        picture = torch.nn.functional.pad(picture, (0, 1), value=1.0)
    with torch.no_grad():
        pixels = picture.movedim(-1, 1) * 2 - 1
        latent = vae.encode(pixels[:, :, None] if frames else pixels).latent_dist.mode()
        decoded = vae.decode(latent).sample
        mean, made = (one[:, :, 0] if frames else one for one in (latent, decoded))
        if packed:
            mean = vae.bn.eval()(pixel_unshuffle(mean, 2))
        shown = (made.movedim(1, -1) / 2 + 0.5).clamp(0, 1)
    given = {"pixels": picture, "vae": recipe}
    mask = {"mask": torch.zeros(1, 64, 64)}
    for name, more in ("VAEEncode", {}), ("VAEEncodeTiled", {}), ("VAEEncodeForInpaint", mask):
        torch.testing.assert_close(
            family.samples(name, **given, **more), mean, rtol=1e-4, atol=1e-4
        )
    for name in ("VAEDecode", "VAEDecodeTiled"):
        decode = NodeCall(name, {"samples": {"samples": mean}, "vae": recipe})
        torch.testing.assert_close(family.run({"out": decode}), shown, rtol=1e-4, atol=1e-4)
