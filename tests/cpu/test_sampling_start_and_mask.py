"""Noise, the start of a run, masks, and types of predictions."""

import math

import pytest
import torch

from katz_graph.core.errors import InputError
from katz_graph.ir.values import Step
from katz_graph.sampling.areas import LatentMask, fit_mask
from katz_graph.sampling.noise import AncestralNoise, initial_noise
from katz_graph.sampling.path import VarianceExploding
from katz_graph.sampling.prediction import scale_model_input, to_denoised

SHAPE = (3, 4, 6, 5)
TRAINED = VarianceExploding(14.6146)


def test_the_seed_alone_decides_the_noise() -> None:
    torch.manual_seed(1)
    first = initial_noise(SHAPE, 42)
    torch.manual_seed(2)
    assert torch.equal(first, initial_noise(SHAPE, 42))
    assert not torch.equal(first, initial_noise(SHAPE, 43))
    assert torch.equal(first, torch.randn(SHAPE, generator=torch.Generator("cpu").manual_seed(42)))


def test_seeds_reach_over_64_bits() -> None:
    assert torch.equal(
        AncestralNoise((2,), 2**64 - 1, "cpu")(torch.ones(()), torch.ones(())),
        initial_noise((2,), 0),
    )


def test_a_sample_taken_out_of_a_batch_keeps_its_noise() -> None:
    one_by_one = initial_noise(SHAPE, 7, (0, 1, 2))
    assert torch.equal(initial_noise((1, *SHAPE[1:]), 7, (2,)), one_by_one[2:])
    assert torch.equal(initial_noise(SHAPE, 7, (2, 0, 2)), one_by_one[[2, 0, 2]])
    assert torch.equal(initial_noise((1, *SHAPE[1:]), 7), one_by_one[:1])


@pytest.mark.parametrize("batch_index", [(0,), (0, 1, 2, 3), (0, -1, 2), ()])
def test_a_batch_index_of_another_length_is_refused(batch_index: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="batch of 3"):
        initial_noise(SHAPE, 7, batch_index)


def test_ancestral_noise_continues_one_generator_of_the_next_seed() -> None:
    source, sigma = AncestralNoise((2, 3), 9, "cpu"), torch.ones(())
    both = torch.cat([source(sigma, sigma).flatten(), source(sigma, sigma).flatten()])
    generator = torch.Generator("cpu").manual_seed(10)
    assert torch.equal(
        both, torch.cat([torch.randn((2, 3), generator=generator).flatten() for _ in range(2)])
    )


def test_the_start_from_the_top_has_unit_variance_for_the_model() -> None:
    noise, latent = initial_noise((1, 4, 8, 8), 0), torch.full((1, 4, 8, 8), 0.25)
    top = TRAINED.started(torch.zeros_like(noise), noise, 14.6146)
    torch.testing.assert_close(scale_model_input(top, 14.6146), noise)
    rounded = TRAINED.started(torch.zeros_like(noise), noise, 14.6146 * (1 - 5e-6))
    torch.testing.assert_close(scale_model_input(rounded, 14.6146), noise, rtol=1e-5, atol=1e-5)
    assert torch.equal(TRAINED.started(latent, noise, 3.0), latent + noise * 3)
    assert torch.equal(TRAINED.started(latent, noise, 20.0), latent + noise * math.sqrt(401))


def test_the_noise_of_a_zero_terminal_snr_start_is_scaled_in_float32() -> None:
    # σ² = 20419225.1 is 20419226 in float32; adding 1 is a tie of 20419226 and 20419228, rounded to
    # the latter.
    sigma = 4518.763671875
    ones = torch.ones(1, 4, 2, 2)
    assert torch.equal(
        VarianceExploding(sigma).started(torch.zeros_like(ones), ones, sigma),
        ones * math.sqrt(20419228),
    )
    assert not torch.equal(ones * math.sqrt(20419228), ones * math.sqrt(1 + sigma**2))


def step(x: torch.Tensor, sigma: float) -> Step:
    return Step.of(x, scale_model_input(x, sigma), sigma, 0)


def test_predictions_give_back_the_picture() -> None:
    """In the model's variables: z = a·picture + b·noise with a² + b² = 1, σ = b/a; ε = noise, v =
    a·noise - b·picture.
    """
    picture, noise = initial_noise(SHAPE, 1).double(), initial_noise(SHAPE, 2).double()
    for sigma in (0.03, 1.0, 14.6):
        a = 1 / math.sqrt(1 + sigma**2)
        b = sigma * a
        x = picture + sigma * noise
        torch.testing.assert_close(scale_model_input(x, sigma), a * picture + b * noise)
        for parametrisation, output in (
            ("epsilon", noise),
            ("v_prediction", a * noise - b * picture),
        ):
            denoised = to_denoised(output, step(x, sigma), parametrisation)  # type: ignore[arg-type]
            # the model's output is float32
            torch.testing.assert_close(denoised, picture, rtol=0, atol=1e-5)
        assert to_denoised(noise, step(x, sigma), "raw") is noise


def test_half_precision_outputs_become_float32() -> None:
    assert (
        to_denoised(
            torch.ones(SHAPE, dtype=torch.float16), step(torch.ones(SHAPE), 2.0), "epsilon"
        ).dtype
        == torch.float32
    )


def test_masks_of_any_layout_fit_the_latent() -> None:
    latent = torch.zeros(SHAPE)
    left = torch.zeros(48, 40)
    left[:, :16] = 1
    for layout in (left, left[None], left[None, None]):
        fitted = fit_mask(layout, latent)
        assert fitted.shape == (3, 1, 6, 5)
        assert torch.equal(fitted[2, 0, 3], torch.tensor([1.0, 1, 0, 0, 0]))
    two = fit_mask(torch.stack([left, 1 - left]), latent)
    assert torch.equal(two[0], two[2]) and torch.equal(two[1], 1 - two[0])


def test_a_mask_is_resized_bilinearly_and_stays_soft() -> None:
    # samples are between two pixels, so the border pixel is the mean of 1 and 0
    mask = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(4, 1)
    assert torch.equal(
        fit_mask(mask, torch.zeros(1, 4, 2, 2))[0, 0], torch.tensor([[0.5, 0.0], [0.5, 0.0]])
    )


def test_the_masked_part_is_the_original_for_the_model_and_after_it() -> None:
    latent, noise, x = (initial_noise(SHAPE, seed) for seed in (1, 2, 3))
    keep_right = torch.ones(6, 5)
    keep_right[:, 3:] = 0
    mask = LatentMask(keep_right, latent, noise, TRAINED)
    before, after = mask.before(x, 2.5), mask.after(x)
    assert torch.equal(before[..., 3:], (latent + noise * 2.5)[..., 3:]) and torch.equal(
        before[..., :3], x[..., :3]
    )
    assert torch.equal(after[..., 3:], latent[..., 3:]) and torch.equal(after[..., :3], x[..., :3])
