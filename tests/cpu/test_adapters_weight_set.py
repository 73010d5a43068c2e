"""Weight sets: originals plus all deltas, rounded once, at fixed addresses; exact restoration of
the originals.
"""

import copy
import gc
import math
import random
import weakref
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, assert_same, lora, lora_file, pipeline_folder, recipes, snapshot
from torch.utils._python_dispatch import TorchDispatchMode

from katz_graph.adapters.encoders import text_parts
from katz_graph.adapters.fit import fit
from katz_graph.adapters.lora import read_lora
from katz_graph.core.errors import InputError, RunError
from katz_graph.core.recipe import ClipRecipe, Lora, Prompt
from katz_graph.executor.weights import originals, weight_set
from katz_graph.executor.weights.originals import Originals
from katz_graph.executor.weights.weight_set import WeightSetCache, WeightSets
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.kernels.lora_patch import MAX_ONEDNN_RANK, lora_patch, prepared
from katz_graph.kernels.patches import Delta, Patch
from katz_graph.models.families.unet.family import FAMILY as UNETS
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.store import ModelStore

TYPES = [torch.float16, torch.bfloat16, torch.float32]
MADE = (
    {"rank": 3, "alpha": 2.0, "naming": "peft", "seed": 1},
    {"rank": 5, "alpha": 5.0, "naming": "kohya", "seed": 2},
    {"rank": 1, "alpha": 0.5, "naming": "diffusers", "seed": 3},
)


def parts_of(clip):
    """Lists each text encoder's parts of LoRA files."""
    return list(text_parts(one.encoder for one in clip.encoders))


def loras(family, *strengths):
    return tuple(
        lora(family, strength, **made) for strength, made in zip(strengths, MADE, strict=False)
    )


def load_unet(family, dtype=torch.float32):
    return ModelStore().network(recipes(family)[0].network, "cpu", dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_set_is_the_formula_rounded_once(family, dtype):
    module = load_unet(family, dtype)
    before = snapshot(module)
    chosen = loras(family, 0.7, -0.4, 1.3)
    assert WeightSets(module).use(chosen) > 0
    files = [
        (fit(read_lora(one.file), UNETS, dict(module.named_parameters())), one.strength)
        for one in chosen
    ]
    changed = 0
    for name, weight in module.named_parameters():
        total = before[name].double()
        for fitted, strength in files:
            if name in fitted:
                method = fitted[name]
                delta = method.product.left.double() @ method.product.right.double().flatten(1)
                total += strength * method.scale * delta.view(total.shape)
                changed += 1
        torch.testing.assert_close(
            weight.double(),
            total.to(dtype).double(),
            rtol=2 * torch.finfo(dtype).eps,
            atol=1e-5 if dtype == torch.float32 else 1e-4,
        )
    assert changed == 3 * len(files[0][0])


# both families: one projects by convolutions, the other by linear layers, as SDXL does
@pytest.mark.parametrize(
    ("family", "dtype"), [("sd2", torch.float16), ("sd1", torch.bfloat16), ("sd1", torch.float32)]
)
def test_a_hundred_switches_leave_no_trace(family, dtype):
    module = load_unet(family, dtype)
    sets, before = WeightSets(module), snapshot(module)
    addresses = {name: weight.data_ptr() for name, weight in module.named_parameters()}
    choice = random.Random(0)
    reached: dict[tuple, dict] = {}
    for _ in range(100):
        chosen = tuple(choice.sample(loras(family, 0.5, 1.0, -2.0), choice.randint(0, 3)))
        sets.use(chosen)
        assert sets.resident == tuple((one, ()) for one in chosen)
        if chosen in reached:
            assert_same(module, reached[chosen])
        else:
            reached[chosen] = snapshot(module)
    assert len(reached) > 10
    sets.use(())
    assert_same(module, before)
    assert {name: weight.data_ptr() for name, weight in module.named_parameters()} == addresses


@pytest.mark.parametrize("rank", [1, 3, 8, 64, MAX_ONEDNN_RANK, MAX_ONEDNN_RANK + 200])
def test_weights_are_rounded_after_each_operation(rank):
    """As in diffusers and PEFT, bit for bit, also if a weight is computed in blocks of rows."""
    generator = torch.Generator().manual_seed(rank)
    for shape in ((256, 1024), (77, 33), (1100, 64, 3, 3)):
        original = torch.randn(shape, generator=generator)
        first, second = (
            Delta(
                torch.randn(shape[0], rank, generator=generator),
                torch.randn(rank, *shape[1:], generator=generator),
                scale,
            )
            for scale in (0.8, -0.37)
        )
        expected = original
        for one in (first, second):
            product = torch.mm(one.up, one.down.flatten(1)).view(shape)
            expected = expected + product * one.scale
        made = torch.empty_like(original)
        lora_patch([Patch(made, original, (first, second))])
        assert torch.equal(made, expected)
        lora_patch([Patch(original, original, (first, second))])  # in place
        assert torch.equal(original, expected)


def test_order_is_the_order_of_the_graph_and_differs_only_by_rounding():
    module = load_unet("sd1", torch.float16)
    sets, (first, second) = WeightSets(module), loras("sd1", 0.9, 0.8)
    sets.use((first, second))
    one = snapshot(module)
    sets.use((second, first))
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(weight, one[name], rtol=2e-3, atol=1e-6)


def test_strength_zero_is_none_and_resident_loras_cost_nothing():
    module = load_unet("sd1")
    sets, before = WeightSets(module), snapshot(module)
    assert sets.use(loras("sd1", 0.0, 0.0)) == 0.0
    assert_same(module, before)
    first, second = loras("sd1", 1.0, 0.0)
    sets.use((first,))
    assert sets.use((first, second)) == 0.0
    assert sets.use((first,)) == 0.0
    twice = snapshot(module)
    assert sets.use((first, first)) > 0.0  # a graph may contain a LoRA twice
    assert any(not torch.equal(value, twice[name]) for name, value in module.state_dict().items())


def test_only_touched_weights_are_stored():
    module = load_unet("sd1")
    sets = WeightSets(module)
    sets.use(loras("sd1", 1.0))
    originals = sets.originals.tensors
    assert 0 < len(originals) < len(dict(module.named_parameters()))
    assert all(one.device.type == "cpu" for one in originals.values())


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


def test_a_set_that_comes_back_is_copied(monkeypatch):
    """The second use caches it, because few sets recur; the third copies."""
    module = load_unet("sd1")
    cache = WeightSetCache()
    sets, before = WeightSets(module, cache=cache), snapshot(module)
    first, second = loras("sd1", 1.0, 0.4)
    sets.use((first,))
    made = snapshot(module)
    sets.use((second,))
    assert cache.bytes == 0
    sets.use((first,))
    assert cache.bytes > 0
    sets.use((second,))
    monkeypatch.setattr(WeightSets, "_patch", lambda sets, *given: given[-1] and pytest.fail())
    sets.use((first,))
    assert_same(module, made)
    sets.use(())
    assert_same(module, before)
    cache.forget(sets)
    assert cache.bytes == 0


def test_cached_sets_stay_within_their_budget():
    module = load_unet("sd1")
    one = WeightSetCache()
    sets = WeightSets(module, cache=one)
    for _ in range(2):
        sets.use(loras("sd1", 1.0))
        sets.use(())
    size = one.bytes
    few = WeightSetCache(2.5 * size)
    sets = WeightSets(module, cache=few)
    choice = random.Random(1)
    for _ in range(60):
        sets.use((lora("sd1", choice.choice([0.1, 0.2, 0.3, 0.4, 0.5]), **MADE[0]),))
        assert few.bytes <= 2.5 * size
    assert few.bytes == 2 * size


def test_a_set_for_which_there_is_no_room_is_not_copied():
    module, copied = load_unet("sd1"), []

    class Weight(torch.Tensor):
        def clone(self, *given, **options):
            copied.append(self)
            return super().clone(*given, **options)

    cache = WeightSetCache(1000)
    for _ in range(3):
        cache.made("set", {"weight": next(module.parameters()).data.as_subclass(Weight)})
    assert not copied and cache.bytes == 0
    for _ in range(2):
        cache.made("small", {"weight": torch.ones(10).as_subclass(Weight)})
    assert len(copied) == 1 and cache.bytes == 40


def test_sets_are_cached_for_processors_only():
    for device, cached in (("cuda", 0), ("cpu", 40)):
        sets = DeviceModels(device)._cache
        for _ in range(2):
            sets.made("set", {"weight": torch.ones(10)})
        assert sets.bytes == cached


def test_a_weight_that_is_not_restored_is_found(monkeypatch):
    module = load_unet("sd1")
    sets = WeightSets(module)
    sets.use(loras("sd1", 1.0))
    next(iter(sets.originals.tensors.values())).flatten()[0] += 1
    with pytest.raises(RunError, match="differs from its weights"):
        sets.use(())


def test_a_failure_in_the_middle_restores_the_base(monkeypatch):
    module = load_unet("sd1")
    sets, before = WeightSets(module), snapshot(module)

    def fail_later(patches, send):
        def patch(strength):
            prepared(patches[:20])(strength)
            raise MemoryError

        return patch

    monkeypatch.setattr(weight_set, "prepared", fail_later)
    with pytest.raises(MemoryError):
        sets.use(loras("sd1", 1.0))
    assert_same(module, before)
    assert sets.resident == ()
    monkeypatch.undo()
    sets.use(loras("sd1", 0.8))
    sets.use(())
    assert_same(module, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_encoders_follow_the_same_rule(family):
    store, clip = ModelStore(), recipes(family)[1]
    for part, recipe in zip(parts_of(clip), clip.encoders, strict=True):
        module = store.text_encoder(recipe.encoder, "cpu", torch.float16)
        sets, before = WeightSets(module), snapshot(module)
        sets.use(loras(family, 0.5, 0.7), part)
        assert any(
            not torch.equal(value, before[name]) for name, value in module.state_dict().items()
        )
        sets.use((lora(family, text_encoder=False),), part)  # changes the UNet only
        assert_same(module, before)
        sets.use(())
        assert_same(module, before)


@pytest.mark.parametrize("naming", ["diffusers", "peft", "kohya"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_diffusers_merges(family, naming):
    kind = StableDiffusionXLPipeline if family == "sdxl" else StableDiffusionPipeline
    theirs = kind.from_pretrained(pipeline_folder(family))
    path = lora_file(family, naming=naming)
    theirs.load_lora_weights(path.parent, weight_name=path.name)
    theirs.fuse_lora(lora_scale=0.7)
    theirs.unload_lora_weights()
    module = load_unet(family)
    WeightSets(module).use((lora(family, 0.7, naming=naming),))
    assert_rounded_alike(module, theirs.unet.state_dict())
    store, clip = ModelStore(), recipes(family)[1]
    places = ("text_encoder", "text_encoder_2")
    for place, part, recipe in zip(places, parts_of(clip), clip.encoders, strict=False):
        encoder = store.text_encoder(recipe.encoder, "cpu", torch.float32)
        WeightSets(encoder).use((lora(family, 0.7, naming=naming),), part)
        assert_rounded_alike(encoder, getattr(theirs, place).state_dict())


def assert_rounded_alike(module, expected):
    """diffusers rounds the factors' product before the addition; we round only the sum."""
    for name, weight in module.state_dict().items():
        eps = torch.finfo(weight.dtype).eps
        scale = float(weight.abs().max())
        torch.testing.assert_close(weight, expected[name], rtol=eps, atol=eps * scale)


def second_encoder_only(folder):
    """Makes an SDXL LoRA with a part for the second text encoder only."""
    tensors = {
        key: value
        for key, value in load_file(lora_file("sdxl")).items()
        if key.startswith("text_encoder_2.")
    }
    save_file(tensors, folder / "second.safetensors")
    return Lora(file_identity(folder / "second.safetensors"), 1.0)


@pytest.mark.parametrize("alone_first", [True, False])
def test_a_text_encoder_takes_the_part_of_its_model_wherever_it_was_used_before(
    tmp_path, alone_first
):
    """The refiner's encoder is SDXL's second one: a worker loads it once for both models."""
    both = recipes("sdxl")[1].with_lora(second_encoder_only(tmp_path))
    alone = ClipRecipe(both.encoders[1:])
    used, fresh, plain = DeviceModels(), DeviceModels(), DeviceModels()
    if alone_first:
        used.encode_text(Prompt(alone, "a red square"))
    got = used.encode_text(Prompt(both, "a red square")).hidden
    assert torch.equal(got, fresh.encode_text(Prompt(both, "a red square")).hidden)
    assert not torch.equal(
        got, plain.encode_text(Prompt(recipes("sdxl")[1], "a red square")).hidden
    )
    after, before = (
        models.encode_text(Prompt(alone, "a red square")).hidden for models in (used, plain)
    )
    assert torch.equal(after, before)  # originals were saved once


def test_one_file_has_a_part_for_each_model(tmp_path):
    """A LoRA's `clip_l` and `clip_g` parts are different weight sets of one encoder."""
    tensors = load_file(lora_file("sdxl"))
    second = {key: value for key, value in tensors.items() if key.startswith("text_encoder_2.")}
    first = {
        key.replace("text_encoder_2.", "text_encoder."): -value for key, value in second.items()
    }
    save_file(first | second, tmp_path / "both.safetensors")
    wanted = (Lora(file_identity(tmp_path / "both.safetensors"), 1.0),)
    recipe = recipes("sdxl")[1].encoders[1].encoder
    modules = [ModelStore().text_encoder(recipe, "cpu", torch.float32) for _ in range(2)]
    sets = WeightSets(modules[0])
    sets.use(wanted, ("clip_l",))
    assert sets.use(wanted, ("clip_g",)) > 0
    WeightSets(modules[1]).use(wanted, ("clip_g",))
    assert_same(modules[0], snapshot(modules[1]))


def test_a_module_that_is_let_go_takes_its_originals_with_it():
    models = DeviceModels()
    models.patch(recipes("sd1")[0].with_lora(lora("sd1")))
    (sets,) = models._sets.values()
    originals = [weakref.ref(tensor) for tensor in sets.originals.tensors.values()]
    del sets
    assert originals
    models.store.residents.clear()
    gc.collect()
    assert not any(tensor() is not None for tensor in originals)


class Bus(TorchDispatchMode):
    """Records transfers between the host and torch's meta device: direction, bytes, and whether
    torch converted the dtype, which it does on the host.
    """

    def __init__(self):
        super().__init__()
        self.crossed = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.aten._foreach_copy_.default:
            for target, source in zip(*args[:2], strict=True):
                if source.device != target.device:
                    self.copied(source, target)
            return None
        if function is torch.ops.aten.copy_.default:
            return (
                self.copied(args[1], args[0])
                if args[0].device != args[1].device
                else function(*args, **kwargs)
            )
        if (
            function is torch.ops.aten._to_copy.default
            and kwargs.get("device", args[0].device) != args[0].device
        ):
            kind = kwargs.get("dtype") or args[0].dtype
            return self.copied(
                args[0], torch.zeros(args[0].shape, dtype=kind, device=kwargs["device"])
            )
        return function(*args, **kwargs)

    def copied(self, source, target):
        there = target if source.device.type == "cpu" else source
        self.crossed.append((target.device.type, there.nbytes, source.dtype != target.dtype))
        return target


def test_a_switch_sends_originals_and_factors_as_they_are_and_fetches_nothing(
    tmp_path, monkeypatch
):
    """The weights are in half precision on a device behind a bus."""
    monkeypatch.setenv("KATZ_CHECK_WEIGHTS", "0")  # the meta device has no values to compare
    halves = {key: value.half() for key, value in load_file(lora_file("sdxl")).items()}
    save_file(halves, tmp_path / "halves.safetensors", {"lora_adapter_metadata": "{}"})
    one, other = (
        Lora(file_identity(tmp_path / "halves.safetensors"), strength) for strength in (0.5, 0.8)
    )
    module = copy.deepcopy(load_unet("sdxl", torch.float16)).to("meta")
    sets = WeightSets(module)
    with Bus() as first:
        sets.use((one,))
    with Bus() as second:
        sets.use((other,))
    with Bus() as restored:
        sets.use(())
    weights = sum(original.nbytes for original in sets.originals.tensors.values())
    factors = sum(value.nbytes for key, value in halves.items() if key.startswith("unet."))
    assert not any(changed for bus in (first, second, restored) for *_, changed in bus.crossed)
    assert bytes_to(first, "cpu") == weights and bytes_to(first, "meta") == factors
    assert bytes_to(second, "cpu") == 0 and bytes_to(second, "meta") == weights + factors
    assert bytes_to(restored, "cpu") == 0 and bytes_to(restored, "meta") == weights


def test_originals_on_the_device_cross_the_bus_when_it_needs_the_room(monkeypatch):
    monkeypatch.setenv("KATZ_CHECK_WEIGHTS", "0")
    module = copy.deepcopy(load_unet("sdxl", torch.float16)).to("meta")
    sets = WeightSets(module, spare_memory=lambda: nullcontext(math.inf))
    one, other = loras("sdxl", 0.5)[0], loras("sdxl", 0.8)[0]
    with Bus() as made:
        sets.use((one,))
        sets.use((other,))
        factors = bytes_to(made, "meta") // 2
        sets.use(())
    assert bytes_to(made, "cpu") == 0 and bytes_to(made, "meta") == 2 * factors > 0
    weights = sets.originals.device_bytes
    with Bus() as returned:
        sets.originals.give_back(weights / 2)
    assert weights / 2 <= bytes_to(returned, "cpu") < 0.9 * weights
    assert sets.originals.device_bytes == weights - bytes_to(returned, "cpu")
    with Bus() as again:
        sets.use((one,))
        sets.use(())
    assert bytes_to(again, "meta") == factors + bytes_to(returned, "cpu")


@pytest.mark.parametrize("dtype", TYPES)
def test_originals_that_move_to_the_host_change_no_bit(dtype):
    module, alone = load_unet("sdxl", dtype), load_unet("sdxl", dtype)
    before = snapshot(module)
    sets, plain = WeightSets(module, spare_memory=lambda: nullcontext(math.inf)), WeightSets(alone)
    for number, chosen in enumerate((loras("sdxl", 0.5, 1.0), loras("sdxl", -0.3))):
        sets.use(chosen)
        plain.use(chosen)
        assert_same(module, snapshot(alone))
        sets.originals.give_back([sets.originals.device_bytes / 2, math.inf][number])
    assert sets.originals.device_bytes == 0
    sets.use(())
    assert_same(module, before)


def test_originals_that_cannot_move_to_the_host_still_count_and_can_move_later(monkeypatch):
    stored = Originals(lambda: nullcontext(math.inf))
    stored.keep({"first": torch.ones(4), "second": torch.ones(4)})
    with monkeypatch.context() as short:
        short.setattr(originals, "to_host", Mock(side_effect=[torch.ones(4), MemoryError]))
        with pytest.raises(MemoryError):
            stored.give_back(math.inf)
    assert stored.device_bytes == 16
    stored.give_back(math.inf)
    assert stored.device_bytes == 0


def bytes_to(bus, device):
    return sum(size for target, size, _ in bus.crossed if target == device)
