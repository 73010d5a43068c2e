"""The effect of conditionings on a picture: texts joined, averaged and zeroed, several prompts,
masks, areas, reference latents.

With guidance 1 and one Euler step to sigma 0 the result is the denoised prediction, so that
predictions can be compared.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import call
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import (
    Area,
    Averaged,
    Concatenated,
    Conditioning,
    ConditioningEntry,
    Encoding,
    Given,
    Joined,
    MaskUse,
    Picture,
    Prompt,
    Sizes,
    Zeroed,
    digest,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.models import DeviceModels as LiveModels
from katz_graph.ir.values import TextEncoding
from katz_graph.models.families.unet.compute import concatenated_channels
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.text.evaluate import with_sizes
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.model_files import Models
from katz_graph.testing.requests import bind, local_engine, sample


@pytest.fixture(scope="module")
def engine(costs: Path) -> Iterator[DeviceEngine]:
    with local_engine(batching=True, cache=costs) as engine:
        yield engine


class Painter:
    """Evaluates a random SD1-shaped model once on a fixed latent, without noise."""

    def __init__(self, engine: DeviceEngine, models: Models) -> None:
        self.engine = engine
        self.model, self.clip, _ = pipeline_recipes(models.pipeline)
        self.latent = torch.randn(1, 4, 16, 24, generator=torch.Generator().manual_seed(1)) * 20

    def prompt(self, text: str, **fields: Any) -> ConditioningEntry:
        return ConditioningEntry(Prompt(self.clip, text), **fields)

    def predict(
        self, positive: Conditioning, negative: Conditioning = (), latent: Tensor | None = None
    ) -> Tensor:
        samples = self.latent if latent is None else latent
        begin = {
            "model": self.model,
            "latent_image": {"samples": samples},
            "steps": 1,
            "add_noise": False,
        }
        guidance = 3.0 if negative else 1.0
        expansion = expand_sampling("StepBegin", begin, self.model, positive, negative, guidance)
        region = bind(expansion.graph, expansion.outputs[0].node)
        return sample(self.engine, region)


@pytest.fixture
def painter(engine: DeviceEngine, sd1: Models) -> Painter:
    return Painter(engine, sd1)


def close(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


def test_texts_joined_averaged_zeroed_and_given(painter: Painter) -> None:
    encode = painter.engine.models.encode_text
    first, second = Prompt(painter.clip, "a red star"), Prompt(painter.clip, "a moon " * 80)
    with torch.no_grad():
        one, other = encode(first), encode(second)
        assert torch.equal(
            encode(Joined(first, second)).hidden, torch.cat([one.hidden, other.hidden], dim=1)
        )
        length = one.hidden.shape[1]
        assert close(
            encode(Averaged(first, second, 0.25)).hidden,
            0.25 * one.hidden + 0.75 * other.hidden[:, :length],
        )
        longer = encode(Averaged(second, first, 0.25)).hidden
        # the shorter one is padded with zeros
        assert close(longer[:, length:], 0.25 * other.hidden[:, length:])
        assert not encode(Zeroed(first)).hidden.any()
        assert torch.equal(encode(Given.of(one.hidden, None)).hidden, one.hidden)


@torch.no_grad()
@pytest.mark.parametrize(
    "mix",
    [
        lambda prompt, made: Joined(prompt, made),
        lambda prompt, made: Joined(made, prompt),
        lambda prompt, made: Averaged(prompt, made, 0.5),
        lambda prompt, made: Averaged(Zeroed(made), prompt, 0.5),
    ],
    ids=["prompt, given", "given, prompt", "average", "zeroed"],
)
def test_a_text_that_a_pack_made_is_mixed_with_a_prompt_on_its_device(
    mix: Callable[[Encoding, Encoding], Encoding], sdxl: Models
) -> None:
    """torch's meta device refuses mixed devices, as CUDA does. Values are checked in half precision
    on the CPU.
    """
    prompt, made = (
        Prompt(pipeline_recipes(sdxl.pipeline)[1], "a red star"),
        Given.of(torch.ones(1, 77, 80) / 3, torch.ones(1, 40) / 3),
    )
    assert encoded(mix(prompt, made), "meta").hidden.is_meta
    here = encoded(mix(prompt, made), "cpu")
    assert (
        here.hidden.dtype == torch.float16
        and here.pooled is not None
        and here.pooled.dtype == torch.float16
    )
    rounded = Given.of(made.hidden.half(), made.pooled.half())  # type: ignore[union-attr]
    assert torch.equal(here.hidden, encoded(mix(prompt, rounded), "cpu").hidden)


def encoded(encoding: Encoding, device: str) -> TextEncoding:
    return LiveModels(device, torch.float16).encode_text(encoding)


def test_two_prompts_are_the_mean_of_their_predictions(painter: Painter) -> None:
    first, second = painter.prompt("a red star"), painter.prompt("a blue moon", strength=3.0)
    expected = (painter.predict((first,)) + 3 * painter.predict((second,))) / 4
    assert close(painter.predict((first, second)), expected)


def test_as_many_prompts_as_users_have_regions(painter: Painter) -> None:
    """The 17 prompts are more than two nodes take. The late one starts after the one evaluation."""
    texts = ("a red star", "a blue moon", "sand")
    alone = [painter.predict((painter.prompt(text),)) for text in texts]
    strengths = [1.0 + number for number in range(17)]
    entries = [
        painter.prompt(texts[number % 3], strength=strength)
        for number, strength in enumerate(strengths)
    ]
    expected = sum(strength * alone[number % 3] for number, strength in enumerate(strengths)) / sum(
        strengths
    )
    assert close(painter.predict((*entries, painter.prompt("late", start_percent=0.9))), expected)


def test_masks_divide_the_picture(painter: Painter) -> None:
    left = torch.zeros(1, 16, 24)
    left[..., :12] = 1
    first, second = (
        painter.prompt(text, mask=MaskUse(Picture.of(mask)))
        for text, mask in (("a red star", left), ("a blue moon", 1 - left))
    )
    both = painter.predict((first, second))
    assert close(both[..., :12], painter.predict((painter.prompt("a red star"),))[..., :12])
    assert close(both[..., 12:], painter.predict((painter.prompt("a blue moon"),))[..., 12:])


def test_where_nothing_counts_the_prediction_is_zero(painter: Painter) -> None:
    left = torch.zeros(1, 16, 24)
    left[..., :12] = 1
    only = painter.predict((painter.prompt("a red star", mask=MaskUse(Picture.of(left))),))
    assert only[..., 12:].abs().max() <= 1e-6 * only[..., :12].abs().max()


def test_where_no_prompt_is_active_the_prediction_is_zero(painter: Painter) -> None:
    late = painter.prompt("late", start_percent=0.9)
    assert painter.predict((late,)).abs().max() <= 1e-6 * painter.latent.abs().max()


def test_in_an_area_the_model_sees_that_part_alone(painter: Painter) -> None:
    """The area's right border lies inside the picture and fades over a quarter of its 8 columns: 1
    in the seventh, 1/2 in the eighth.
    """
    whole, part = painter.prompt("sand"), painter.prompt("a red star", area=Area(0, 0, 16, 8))
    alone = painter.predict(
        (painter.prompt("a red star"),), latent=painter.latent[..., :8].contiguous()
    )
    everywhere = painter.predict((whole,))
    both = painter.predict((whole, part))
    assert close(both[..., :7], (everywhere[..., :7] + alone[..., :7]) / 2)
    assert close(both[..., 7], (everywhere[..., 7] + 0.5 * alone[..., 7]) / 1.5)
    assert close(both[..., 8:], everywhere[..., 8:])


def test_an_area_of_a_mask_is_the_box_around_it(painter: Painter) -> None:
    mask = torch.zeros(1, 16, 24)
    mask[:, 2:14, 8:20] = 1
    bounded = painter.prompt("a red star", mask=MaskUse(Picture.of(mask), bounds=True))
    alone = painter.predict(
        (painter.prompt("a red star"),), latent=painter.latent[..., 2:14, 8:20].contiguous()
    )
    assert close(painter.predict((bounded,))[..., 2:14, 8:20], alone)


def test_areas_work_on_both_sides_of_guidance(painter: Painter) -> None:
    """An area that covers everything changes nothing."""
    plain = painter.predict((painter.prompt("a red star"),), (painter.prompt("sand"),))
    area = Area(0, 0, 1, 1, relative=True)
    limited = painter.predict((painter.prompt("a red star", area=area),), (painter.prompt("sand"),))
    assert close(limited, plain)


def test_size_inputs_of_sdxl() -> None:
    encoding = TextEncoding(torch.zeros(2, 77, 8), torch.zeros(2, 8))
    assert with_sizes(encoding, None, 128, 64).sizes.tolist()[0] == [128, 64, 0, 0, 128, 64, 6]  # type: ignore[union-attr]
    sizes = with_sizes(encoding, Sizes(1024, 768, 8, 16, 512, 256), 128, 64).sizes
    assert sizes is not None and sizes.tolist() == [[1024, 768, 8, 16, 512, 256, 6]] * 2
    refiner = with_sizes(encoding, Sizes(1024, 768, aesthetic_score=2.5), 128, 64).sizes
    assert refiner is not None and refiner.tolist()[0] == [1024, 768, 0, 0, 1024, 768, 2.5]


@pytest.mark.parametrize(
    "node", ["ConditioningConcat", "ConditioningAverage", "ConditioningCombine"]
)
def test_conditionings_that_double_without_end_are_refused(node: str, painter: Painter) -> None:
    doubled: Any = (painter.prompt("a"),)
    first, second = (
        f"conditioning_{part}"
        for part in (("1", "2") if node == "ConditioningCombine" else ("to", "from"))
    )
    with pytest.raises(InputError, match="more than"):
        for _ in range(100):
            doubled = call(node, **{first: doubled, second: doubled})


def test_the_digest_of_a_recipe_does_not_keep_its_pictures() -> None:
    picture = Picture.of(torch.ones(1, 8, 8, 3))
    pixels = weakref.ref(picture.pixels)
    digest(Concatenated(picture))
    del picture
    gc.collect()
    assert pixels() is None


HALF = LatentSpace(4, 8, 0.5)


def test_extra_channels_of_an_inpainting_model() -> None:
    like = torch.zeros(2, 4, 4, 4)
    latent = torch.arange(64.0).view(1, 4, 4, 4)
    mask = torch.zeros(1, 32, 32)
    mask[:, :16] = 1
    seen = concatenated_channels(Concatenated(Picture.of(latent), Picture.of(mask)), 5, like, HALF)
    assert seen.shape == (2, 5, 4, 4)
    assert seen[1, 0].tolist() == [[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4]
    assert torch.equal(seen[:, 1:], (latent * 0.5).expand(2, 4, 4, 4))
    blank = concatenated_channels(Concatenated(), 5, like, HALF)
    assert bool((blank[:, 0] == 1).all()) and blank[0, 1:, 0, 0].tolist() == pytest.approx(
        [0.8223, -0.6876, 0.6364, 0.1380]
    )
    assert torch.equal(
        concatenated_channels(Concatenated(Picture.of(latent)), 4, like, HALF)[0], latent[0]
    )
    assert replace(Concatenated(), latent=Picture.of(latent)) == Concatenated(
        Picture.of(latent.clone())
    )
