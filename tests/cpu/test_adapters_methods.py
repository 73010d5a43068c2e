"""LoRA methods give the same rows in parts as at once, and are linear in strength. No temporary
tensor is larger than the computed rows.
"""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import random
from torch.utils._python_dispatch import TorchDispatchMode

from katz_graph.adapters.methods import methods

OUT, IN, RANK, KERNEL = 12, 8, 2, (3, 3)
SHAPE = (OUT, IN, *KERNEL)
FLAT = IN * 9
SHAPES = {
    "LoRA": {"lora_A": (RANK, IN, *KERNEL), "lora_B": (OUT, RANK, 1, 1)},
    "LoCon": {
        "lora_A": (RANK, IN, 1, 1),
        "lora_B": (OUT, RANK, 1, 1),
        "lora_mid": (RANK, RANK, *KERNEL),
    },
    "LoHa": {
        "hada_w1_a": (OUT, RANK),
        "hada_w1_b": (RANK, FLAT),
        "hada_w2_a": (OUT, RANK),
        "hada_w2_b": (RANK, FLAT),
    },
    "LoHa, Tucker": {
        "hada_w1_a": (RANK, OUT),
        "hada_w1_b": (RANK, IN),
        "hada_w2_a": (RANK, OUT),
        "hada_w2_b": (RANK, IN),
        "hada_t1": (RANK, RANK, *KERNEL),
        "hada_t2": (RANK, RANK, *KERNEL),
    },
    "LoKr, whole": {"lokr_w1": (3, 2), "lokr_w2": (4, 4, *KERNEL)},
    "LoKr": {"lokr_w1_a": (3, 1), "lokr_w1_b": (1, 2), "lokr_w2_a": (4, 2), "lokr_w2_b": (2, 36)},
    "LoKr, Tucker": {
        "lokr_w1": (3, 2),
        "lokr_w2_a": (RANK, 4),
        "lokr_w2_b": (RANK, 4),
        "lokr_t2": (RANK, RANK, *KERNEL),
    },
    "difference": {"diff": SHAPE},
}
MAGNITUDES = {
    "": {},
    "decomposed by output": {"dora_scale": (OUT, 1, 1, 1)},
    "decomposed by input": {"dora_scale": (1, IN, 1, 1)},
    "PEFT's magnitude": {"lora_magnitude_vector": (1, OUT, 1, 1)},
}
CASES = [(name, magnitude) for name in SHAPES for magnitude in MAGNITUDES]
strengths = st.floats(-2.0, 2.0, width=32)


def made(name, magnitude="", seed=0):
    shapes = SHAPES[name] | MAGNITUDES[magnitude]
    tensors = {
        key: random(*shape, seed=seed + number)
        for number, (key, shape) in enumerate(shapes.items())
    }
    return methods(tensors, lambda rank: 1.5 / rank if rank else 1.0)["weight"]


def changed(method, weight, strength):
    total = weight.clone()
    method.add_to(total, strength)
    return total


def close(one, other):
    return (one - other).norm() <= 1e-5 * other.norm().clamp_min(1.0)


@pytest.mark.parametrize(("name", "magnitude"), CASES)
@settings(max_examples=20, deadline=None)
@given(strength=strengths, cut=st.integers(0, OUT), seed=st.integers(0, 5))
def test_rows_apart_are_the_rows_of_the_whole(name, magnitude, strength, cut, seed):
    method, weight = made(name, magnitude, seed), random(*SHAPE, seed=seed + 50)
    assert method.fits(SHAPE) and not method.fits((OUT, IN + 1, *KERNEL))
    assert method.by_rows == (magnitude != "decomposed by input")
    whole = changed(method, weight, strength)
    if method.by_rows:
        for rows in (slice(0, cut), slice(cut, None)):
            part = weight[rows].clone()
            method.add_to(part, strength, rows)
            assert close(part, whole[rows])


@pytest.mark.parametrize(("name", "magnitude"), CASES)
@settings(max_examples=20, deadline=None)
@given(strength=strengths, seed=st.integers(0, 5))
def test_strength_moves_along_the_line_to_strength_one(name, magnitude, strength, seed):
    """Includes decomposed weights: unchanged at 0, trained at 1."""
    method, weight = made(name, magnitude, seed), random(*SHAPE, seed=seed + 50)
    trained = changed(method, weight, 1.0)
    assert not close(trained, weight)
    assert close(changed(method, weight, strength), weight + strength * (trained - weight))
    assert torch.equal(changed(method, weight, 0.0), weight)


@pytest.mark.parametrize(
    ("magnitude", "axis"),
    [("decomposed by output", 0), ("decomposed by input", 1), ("PEFT's magnitude", 0)],
)
@pytest.mark.parametrize("name", SHAPES)
def test_a_decomposed_weight_has_the_magnitudes_of_the_file(name, magnitude, axis):
    """Other LoRAs may have changed the weight."""
    method = made(name, magnitude)
    weight = changed(made("LoRA", seed=30), random(*SHAPE, seed=50), 0.8)
    others = [other for other in range(4) if other != axis]
    norms = torch.linalg.vector_norm(changed(method, weight, 1.0), dim=others)
    torch.testing.assert_close(norms, method.magnitude.abs(), rtol=1e-5, atol=0)


def test_a_row_of_zeros_has_no_direction():
    method = methods(
        {"lora_A": torch.ones(1, 4), "lora_B": torch.zeros(3, 1), "dora_scale": torch.ones(3, 1)},
        lambda rank: 1.0,
    )["weight"]
    weight = torch.ones(3, 4)
    weight[1] = 0
    expected = torch.full((3, 4), 0.5)
    expected[1] = 0
    torch.testing.assert_close(changed(method, weight, 1.0), expected)


TENSORS = sorted({key for shapes in (*SHAPES.values(), *MAGNITUDES.values()) for key in shapes})
sides = st.lists(st.integers(0, 3), max_size=5).map(tuple)


@settings(max_examples=300, deadline=None)
@given(
    shapes=st.one_of(
        st.dictionaries(st.sampled_from(TENSORS), sides, max_size=4),
        st.sampled_from(list(SHAPES.values())).flatmap(
            lambda known: st.fixed_dictionaries(dict.fromkeys(known, sides))
        ),
    ),
    weight=st.lists(st.integers(1, 3), min_size=2, max_size=4).map(tuple),
)
@example(shapes={"diff": (), "dora_scale": ()}, weight=(1, 1))
def test_tensors_of_any_shape_are_a_method_or_named(shapes, weight):
    """Fitting methods can be added to a weight."""
    try:
        found = methods({key: torch.ones(shape) for key, shape in shapes.items()}, lambda rank: 1.0)
    except ValueError as error:
        assert str(error).startswith("has ") and "\n" not in str(error)
        return
    for method in found.values():
        if method.fits(weight):
            assert changed(method, torch.ones(weight), 1.0).isfinite().all()


class Largest(TorchDispatchMode):
    """Records the size of the largest new tensor."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        known = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
            self.numbers = max(self.numbers, result.numel())
        return result


@pytest.mark.parametrize("name", ["LoRA", "LoCon", "difference"])
def test_no_temporary_is_larger_than_the_rows_that_are_computed(name):
    method, weight = made(name), random(*SHAPE, seed=50)
    half = len(weight) // 2
    with Largest() as largest:
        for rows in (slice(0, half), slice(half, len(weight))):
            method.add_to(weight[rows], 0.5, rows)
    assert largest.numbers <= weight.numel() // 2


def test_whole_factors_of_a_kronecker_product_have_no_scale():
    """LyCORIS writes an alpha for them, but ignores it."""
    assert made("LoKr, whole").rank == 0
    assert (made("LoKr, whole").scale, made("LoKr").scale) == (1.0, 0.75)
