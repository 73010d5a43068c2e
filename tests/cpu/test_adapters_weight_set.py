"""Weight sets: originals plus all deltas, rounded once; restored bit for bit; addresses never change."""

import random

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from tiny_models import FAMILIES, assert_same, lora, lora_file, pipeline_folder, recipes, snapshot

from katz_graph.adapters.lora import fit, read_lora
from katz_graph.errors import InputError
from katz_graph.executor.weight_set import WeightSets
from katz_graph.models.load import ModelStore

TYPES = [torch.float16, torch.bfloat16, torch.float32]
MADE = (
    {"rank": 3, "alpha": 2.0, "naming": "peft", "seed": 1},
    {"rank": 5, "alpha": 5.0, "naming": "kohya", "seed": 2},
    {"rank": 1, "alpha": 0.5, "naming": "diffusers", "seed": 3},
)


def loras(family, *strengths):
    return tuple(lora(family, strength, **made) for strength, made in zip(strengths, MADE, strict=False))


def load_unet(family, dtype=torch.float32):
    return ModelStore().unet(recipes(family)[0].unet, "cpu", dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_set_is_the_formula_rounded_once(family, dtype):
    module = load_unet(family, dtype)
    before = snapshot(module)
    chosen = loras(family, 0.7, -0.4, 1.3)
    assert WeightSets(module).use(chosen) > 0
    files = [(fit(read_lora(one.file), "unet", dict(module.named_parameters())), one.strength) for one in chosen]
    changed = 0
    for name, weight in module.named_parameters():
        total = before[name].double()
        for fitted, strength in files:
            if name in fitted:
                factors = fitted[name]
                total += (
                    strength
                    * factors.alpha
                    / factors.rank
                    * (factors.up.double().flatten(1) @ factors.down.double().flatten(1)).view(total.shape)
                )
                changed += 1
        torch.testing.assert_close(
            weight.double(), total.to(dtype).double(), rtol=2 * torch.finfo(dtype).eps, atol=1e-5 if dtype == torch.float32 else 1e-4
        )
    assert changed == 3 * len(files[0][0])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_hundred_switches_leave_no_trace(dtype):
    module = load_unet("sdxl", dtype)
    sets, before = WeightSets(module), snapshot(module)
    addresses = {name: weight.data_ptr() for name, weight in module.named_parameters()}
    choice = random.Random(0)
    reached: dict[tuple, dict] = {}
    for _ in range(100):
        chosen = tuple(choice.sample(loras("sdxl", 0.5, 1.0, -2.0), choice.randint(0, 3)))
        sets.use(chosen)
        assert sets.resident == chosen
        if chosen in reached:
            assert_same(module, reached[chosen])
        reached[chosen] = snapshot(module)
    assert len(reached) > 10
    sets.use(())
    assert_same(module, before)
    assert {name: weight.data_ptr() for name, weight in module.named_parameters()} == addresses


def test_order_is_the_order_of_the_graph_and_differs_only_by_rounding():
    module = load_unet("sd1", torch.float16)
    sets, (first, second) = WeightSets(module), loras("sd1", 0.9, 0.8)
    sets.use((first, second))
    one = snapshot(module)
    sets.use((second, first))
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(weight, one[name], rtol=2e-3, atol=1e-6)


def test_strength_zero_is_none_and_what_is_resident_costs_nothing():
    module = load_unet("sd1")
    sets, before = WeightSets(module), snapshot(module)
    assert sets.use(loras("sd1", 0.0, 0.0)) == 0.0
    assert_same(module, before)
    first, second = loras("sd1", 1.0, 0.0)
    sets.use((first,))
    assert sets.use((first, second)) == 0.0
    assert sets.use((first,)) == 0.0
    twice = snapshot(module)
    assert sets.use((first, first)) > 0.0  # a LoRA may stand twice in a graph
    assert any(not torch.equal(value, twice[name]) for name, value in module.state_dict().items())


def test_only_touched_weights_are_kept():
    module = load_unet("sd1")
    sets = WeightSets(module)
    sets.use(loras("sd1", 1.0))
    assert 0 < len(sets._originals) < len(dict(module.named_parameters()))
    assert all(kept.device.type == "cpu" for kept in sets._originals.values())


@pytest.mark.parametrize("resident", [(), (1.0,)])
def test_a_lora_that_does_not_fit_changes_nothing(resident):
    module = load_unet("sd1")
    sets = WeightSets(module)
    sets.use(loras("sd1", *resident))
    before, wanted = snapshot(module), sets.resident
    with pytest.raises(InputError, match="made for another architecture"):
        sets.use((*loras("sd1", 0.3), lora("sdxl")))
    assert_same(module, before)
    assert sets.resident == wanted


def test_a_failure_in_the_middle_restores_the_base(monkeypatch):
    module = load_unet("sd1")
    sets, before = WeightSets(module), snapshot(module)
    original, calls = WeightSets._write, []

    def fail_later(self, name, deltas):
        calls.append(name)
        if len(calls) == 20:
            raise MemoryError
        original(self, name, deltas)

    monkeypatch.setattr(WeightSets, "_write", fail_later)
    with pytest.raises(MemoryError):
        sets.use(loras("sd1", 1.0))
    assert_same(module, before)
    assert sets.resident == ()
    monkeypatch.undo()
    sets.use(loras("sd1", 1.0))
    sets.use(())
    assert_same(module, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_encoders_follow_the_same_rule(family):
    store, clip = ModelStore(), recipes(family)[1]
    for part, recipe in zip(("text_encoder", "text_encoder_2"), clip.encoders, strict=False):
        module = store.text_encoder(recipe.encoder, "cpu", torch.float16)
        sets, before = WeightSets(module, part), snapshot(module)
        sets.use(loras(family, 0.5, 0.7))
        assert any(not torch.equal(value, before[name]) for name, value in module.state_dict().items())
        sets.use((lora(family, text_encoder=False),))  # touches the UNet only
        assert_same(module, before)
        sets.use(())
        assert_same(module, before)


@pytest.mark.parametrize("naming", ["diffusers", "peft", "kohya"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_what_diffusers_merges(family, naming):
    kind = StableDiffusionXLPipeline if family == "sdxl" else StableDiffusionPipeline
    theirs = kind.from_pretrained(pipeline_folder(family))
    path = lora_file(family, naming=naming)
    theirs.load_lora_weights(path.parent, weight_name=path.name)
    theirs.fuse_lora(lora_scale=0.7)
    theirs.unload_lora_weights()
    module = load_unet(family)
    WeightSets(module).use((lora(family, 0.7, naming=naming),))
    assert_same(module, theirs.unet.state_dict())
    store, clip = ModelStore(), recipes(family)[1]
    for part, recipe in zip(("text_encoder", "text_encoder_2"), clip.encoders, strict=False):
        encoder = store.text_encoder(recipe.encoder, "cpu", torch.float32)
        WeightSets(encoder, part).use((lora(family, 0.7, naming=naming),))
        assert_same(encoder, getattr(theirs, part).state_dict())
