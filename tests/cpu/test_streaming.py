"""Weights go from files to a device tensor by tensor, with little host memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from single_files import checkpoint
from tiny_models import control_recipe, recipes
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from katz_graph.host import transfer
from katz_graph.host.transfer import Ring
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore

SIZE = 1000  # bytes of a buffer


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(7, 211),
        torch.randn(500),
        torch.randn(40, 30).T,
        torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last),
        torch.randn(33, 77).to(torch.bfloat16),
        torch.randn(90, 90).to(torch.float8_e4m3fn),
        torch.arange(77)[None],
        torch.tensor(3.5),
        torch.zeros(0, 4),
    ],
    ids=lambda tensor: f"{list(tensor.shape)}-{tensor.dtype}",
)
def test_tensors_through_small_buffers_arrive_unchanged(tensor: Tensor) -> None:
    ring = Ring(torch.device("cpu"), SIZE)
    for _ in range(2):
        made = ring(tensor)
        assert made.dtype == tensor.dtype and made.is_contiguous()
        assert torch.equal(made.to(torch.float64), tensor.to(torch.float64))


class OnHost(TorchDispatchMode):
    """Counts host bytes that operations allocate, current and peak."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        given = {_storage(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and not one.is_meta and _storage(one) not in given:
                self.bytes += one.untyped_storage().nbytes()
        return made


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_model_of_another_device_takes_no_memory_of_the_host(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights for the meta device are never on the host, except for staging buffers and tensors
    with another layout in the file.
    """
    monkeypatch.setattr(transfer, "RING_BYTES", SIZE)
    model, clip, vae = recipes("sd1") if kind == "folder" else pipeline_recipes(checkpoint("sd1"))
    store, half = ModelStore(), torch.float16
    control = control_recipe("sd1").control_net
    for load in (
        lambda: store.network(model.network, "meta", half),
        lambda: store.text_encoder(clip.encoders[0].encoder, "meta", half),
        lambda: store.vae(vae.vae, "meta", half),
        lambda: store.controlnet(control, "meta", half),
    ):
        with OnHost() as host:
            module = load()
        assert all(weight.is_meta for weight in (*module.parameters(), *module.buffers()))
        assert all(weight.dtype == half for weight in module.parameters())
        assert host.bytes < 2 * SIZE + 0.1 * sum(one.nbytes for one in module.parameters())


def test_loading_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Diffusers warns of each module's cast."""
    store = ModelStore()
    model, _, vae = recipes("sd1")
    store.network(model.network, "cpu", torch.float32)
    store.vae(vae.vae, "cpu", torch.float32)
    assert caplog.records == []
