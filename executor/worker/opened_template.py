"""Opens the templates of a worker's store for its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from katz_graph.core.messages import first_line
from katz_graph.executor.templates.store import Fill, TemplateStore
from katz_graph.executor.worker.stream import Reading, Stream
from katz_graph.executor.worker.template_loads import Template
from katz_graph.ir.region import local_name
from katz_graph.ir.reuse import TemplateUse

log = logging.getLogger("katz_graph")

PENDING = 2  # noise levels whose activations may wait for being stored


def open_template(
    store: TemplateStore,
    stream: Stream,
    threads: Executor,
    use: TemplateUse,
    wake: Callable[[], None],
) -> Template:
    """Opens the template of a request, to read it or to fill it. `threads`: store what it fills."""
    if use.fills:
        return FilledTemplate(store, stream, use, threads, wake)
    return ReadTemplate(store, use.key)


def layer_name(operation: str, layer: str) -> str:
    """Names the tensor of an operation's layer in a store, alike for all workflows."""
    return f"{local_name(operation)}/{layer}"


class ReadTemplate:
    """Reads a template, which stays in the store until `close`. Without it, every layer computes
    all tokens.
    """

    def __init__(self, store: TemplateStore, name: str) -> None:
        self._use = ExitStack()
        self._found = self._use.enter_context(store.use(name))

    @property
    def ready(self) -> bool:
        return True

    def read(self, number: int, operation: str, layer: str) -> Tensor | None:
        name = layer_name(operation, layer)
        if self._found is None or name not in self._found.layers(number):
            return None
        try:
            return self._found.read(number, name)
        except (OSError, SafetensorError) as error:
            log.warning("a template cannot be read any more: %s", first_line(error))
            self._found = None
            return None

    def write(self, number: int, operation: str, outputs: Mapping[str, Tensor]) -> None:
        raise AssertionError("a request that reads a template fills none")

    @property
    def completed(self) -> bool:
        return True

    @property
    def abandoned(self) -> bool:
        return False

    def close(self) -> None:
        self._use.close()


class FilledTemplate:
    """Stores the activations that a request computes, on `threads`, one noise level at a time. They
    are copied to the host while later work of the device runs.
    """

    def __init__(
        self,
        store: TemplateStore,
        stream: Stream,
        use: TemplateUse,
        threads: Executor,
        wake: Callable[[], None],
    ) -> None:
        levels = max(use.numbers, default=-1) + 1
        self._fill: Fill | None = store.begin_fill(use.key, levels, dict(use.details))
        self._stream, self._threads, self._wake = stream, threads, wake
        self._number = -1  # of the noise level that is being computed
        self._stored: set[int] = set()
        self._outputs: dict[str, Reading] = {}
        self._pending: list[Future[bool]] = []
        self._end: Future[bool] | None = None

    @property
    def ready(self) -> bool:
        """Returns whether the activations of a further noise level may be computed."""
        self._pending = [future for future in self._pending if not future.done()]
        return len(self._pending) < PENDING

    def read(self, number: int, operation: str, layer: str) -> Tensor | None:
        raise AssertionError("a request that fills a template reads none")

    def write(self, number: int, operation: str, outputs: Mapping[str, Tensor]) -> None:
        if number != self._number:
            self._store_level()
            self._number = number
        # a sampler may evaluate a noise level twice
        if self._fill is not None and self._fill.active and number not in self._stored:
            self._outputs |= {
                # later work may overwrite the memory of a recorded call
                layer_name(operation, layer): self._stream.read(
                    output.clone() if output.is_cuda else output
                )
                for layer, output in outputs.items()
            }

    @property
    def completed(self) -> bool:
        """Returns whether the template is available, or was abandoned."""
        if self._fill is None:
            return True
        if self._end is None:
            self._store_level()
            self._end = self._submitted(self._finish, self._fill, [*self._pending])
        return self._end.done()

    @property
    def abandoned(self) -> bool:
        return self._end is None and (self._fill is None or not self._fill.active)

    def close(self) -> None:
        if self._fill is not None:
            self._threads.submit(self._fill.abandon)  # unless it is finished

    @staticmethod
    def _finish(fill: Fill, pending: Sequence[Future[bool]]) -> bool:
        wait(pending)
        return fill.finish()

    def _submitted(self, act: Callable[..., bool], *arguments: Any) -> Future[bool]:
        future = self._threads.submit(act, *arguments)
        future.add_done_callback(lambda _: self._wake())
        return future

    def _store_level(self) -> None:
        if self._fill is not None and self._outputs:
            self._stored.add(self._number)
            put = self._submitted(self._put, self._fill, self._number, self._outputs)
            self._pending.append(put)
        self._outputs = {}

    @staticmethod
    def _put(fill: Fill, number: int, outputs: Mapping[str, Reading]) -> bool:
        return fill.put(number, {layer: output() for layer, output in outputs.items()})
