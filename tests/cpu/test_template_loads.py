"""Layers wait for their own activations only, and a request that waits for many lets others run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from katz_graph.executor.worker.stream import HostStream
from katz_graph.executor.worker.template_loads import READERS, ActivationLoads
from katz_graph.ir.program import Call, Segment
from katz_graph.ir.reuse import TemplateUse

LAYERS = tuple("abcdefgh")
OUTPUT = torch.zeros(1, 2, 1)
CALL = Call(("unet",), "unet", "cpu", seconds=1.0)
SEGMENT = Segment("one", "cpu", (CALL,))


class Steps:
    """A template whose outputs arrive when they are permitted to."""

    ready = completed = True
    abandoned = False

    def __init__(self, absent: str = "") -> None:
        self._there, self._absent = {layer: threading.Event() for layer in LAYERS}, absent

    def arrive(self, layers: Iterable[str]) -> None:
        for layer in layers:
            self._there[layer].set()

    def read(self, number: int, operation: str, layer: str) -> Tensor | None:
        self._there[layer].wait()
        return None if layer == self._absent else OUTPUT + ord(layer)

    def write(self, number: int, operation: str, outputs: Mapping[str, Tensor]) -> None: ...

    def close(self) -> None: ...


@contextmanager
def loading(template: Steps, recorded: bool = False) -> Iterator[ActivationLoads]:
    program = cast(Any, SimpleNamespace(template=TemplateUse("", (0,)), reused={"unet": LAYERS}))
    with ThreadPoolExecutor(READERS) as threads:
        stream, cpu = HostStream(), torch.device("cpu")
        loads = ActivationLoads(program, template, stream, cpu, threads, lambda: None, recorded)
        loads.load(SEGMENT, 0)
        try:
            yield loads
        finally:
            template.arrive(LAYERS)


def test_a_layer_waits_for_its_own_output_and_one_that_cannot_be_read_is_absent() -> None:
    template = Steps(absent="b")
    with loading(template) as loads:
        cached = loads.taken(CALL, 0)
        assert cached is not None
        template.arrive("ab")
        assert "a" in cached.outputs and float(cached.outputs["a"].sum()) == 2 * ord("a")
        assert "b" not in cached.outputs and "none" not in cached.outputs
        assert loads.taken(CALL, 0) is None
    assert list(cached.outputs) == [layer for layer in LAYERS if layer != "b"]
    assert len(cached.outputs) == len(LAYERS) - 1


@pytest.mark.parametrize("recorded", [False, True])
def test_a_call_begins_when_the_rest_arrives_while_it_computes(recorded: bool) -> None:
    template = Steps()
    with loading(template, recorded) as loads:
        assert not loads.has(SEGMENT, 0)  # the speed is not known yet
        template.arrive("ab")
        while loads.use.bytes < 2 * OUTPUT.nbytes:
            pass
        # the other loads take far less than the second that the call computes
        assert loads.has(SEGMENT, 0) is not recorded
        # on a device that computes a million times as fast they do not
        assert not loads.has(SEGMENT, 0, pace=1e-6)
        template.arrive(LAYERS)
        while not loads.has(SEGMENT, 0, pace=0.0):
            pass
    assert loads.waited[0] > 0 and loads.use.waited == sum(loads.waited.values())
