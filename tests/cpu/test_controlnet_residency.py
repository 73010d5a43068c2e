"""ControlNets are evicted within a budget of bytes; other models stay."""

import pytest
import torch
from tiny_models import control_recipe, recipes

from katz_graph.core.errors import InputError
from katz_graph.models.loading.residency import NoRoom
from katz_graph.models.loading.store import ModelStore

CPU = ("cpu", torch.float32)
PARTS = [control_recipe("sd1", seed).control_net for seed in (10, 11, 12)]


def weights_bytes(module):
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


@pytest.fixture(scope="module")
def size():
    """Returns the bytes of one ControlNet."""
    return weights_bytes(ModelStore().controlnet(PARTS[0], *CPU))


def test_without_a_budget_all_stay(size):
    store = ModelStore()
    first = [store.controlnet(part, *CPU) for part in PARTS]
    assert [store.controlnet(part, *CPU) for part in PARTS] == first
    use = store.residents.control_net_use
    assert (use.hits, use.misses, use.evictions, use.resident_bytes) == (3, 3, 0, 3 * size)
    assert use.load_seconds > 0.0


def test_the_one_used_longest_ago_is_dropped_and_loaded_again(size):
    store = ModelStore(control_net_bytes=2 * size)
    first, second = (store.controlnet(part, *CPU) for part in PARTS[:2])
    expected = first.conv_in.weight.clone()
    assert store.controlnet(PARTS[2], *CPU) is first  # cached again
    assert store.controlnet(PARTS[1], *CPU) is second
    assert torch.equal(store.controlnet(PARTS[0], *CPU).conv_in.weight, expected)
    use = store.residents.control_net_use
    assert (use.hits, use.misses, use.evictions, use.resident_bytes) == (1, 4, 2, 2 * size)


def test_the_policy_is_chosen_by_name(size):
    """After three uses of the first, LFU evicts the second, LRU the first."""
    for policy, stays in (("lfu", 0), ("lru", 1)):
        store = ModelStore(control_net_bytes=2 * size, policy=policy)
        modules = [store.controlnet(PARTS[number], *CPU) for number in (0, 0, 0, 1)]
        store.controlnet(PARTS[2], *CPU)
        assert store.controlnet(PARTS[stays], *CPU) is modules[3 * stays]


def test_half_precision_takes_half_the_room(size):
    store = ModelStore(control_net_bytes=size)
    for part in PARTS[:2]:
        store.controlnet(part, "cpu", torch.bfloat16)
    assert store.residents.control_net_use.evictions == 0
    assert store.residents.control_net_use.resident_bytes == size


def test_controlnets_in_use_are_not_dropped(size):
    store = ModelStore(control_net_bytes=2 * size)
    with store.residents.using(store.controlnet_of(PARTS[0], *CPU)) as pinned:
        store.controlnet(PARTS[1], *CPU)
        store.controlnet(PARTS[2], *CPU)
        assert store.controlnet(PARTS[0], *CPU) is pinned
        with (
            store.residents.using(store.controlnet_of(PARTS[2], *CPU)),
            pytest.raises(NoRoom, match="models in use take"),
        ):
            store.controlnet(PARTS[1], *CPU)
    store.controlnet(PARTS[1], *CPU)
    assert store.residents.control_net_use.evictions == 2


def test_a_session_is_one_use_however_many_steps_it_has(size):
    store = ModelStore(control_net_bytes=2 * size, policy="lfu")
    with store.residents.using(store.controlnet_of(PARTS[0], *CPU)) as one:
        assert all(store.controlnet(PARTS[0], *CPU) is one for _ in range(20))
    for _ in range(2):
        with store.residents.using(store.controlnet_of(PARTS[1], *CPU)) as two:
            pass
    assert (store.residents.control_net_use.hits, store.residents.control_net_use.misses) == (1, 2)
    store.controlnet(PARTS[2], *CPU)
    assert store.controlnet(PARTS[1], *CPU) is two


def test_other_models_stay_and_take_none_of_the_budget(size):
    store = ModelStore(control_net_bytes=size)
    model, _, vae = recipes("sd1")
    unet, decoder = store.network(model.network, *CPU), store.vae(vae.vae, *CPU)
    for part in PARTS:
        store.controlnet(part, *CPU)
    assert store.network(model.network, *CPU) is unet
    assert store.vae(vae.vae, *CPU) is decoder


def test_one_that_exceeds_the_budget_alone_is_refused_by_name(size):
    with pytest.raises(
        InputError,
        match=rf"sd1-controlnet-10: takes {size:,} bytes alone, the budget is {size - 1:,} bytes",
    ):
        ModelStore(control_net_bytes=size - 1).controlnet(PARTS[0], *CPU)


def test_one_that_cannot_be_loaded_takes_no_room(size, monkeypatch):
    store = ModelStore(control_net_bytes=size)
    with monkeypatch.context() as broken:
        broken.setattr(
            "katz_graph.models.loading.store.tensors",
            lambda *_: (_ for _ in ()).throw(InputError("broken")),
        )
        with pytest.raises(InputError, match="broken"):
            store.controlnet(PARTS[0], *CPU)
    assert store.residents.control_net_use.resident_bytes == 0
    store.controlnet(PARTS[1], *CPU)
