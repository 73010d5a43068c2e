"""Records calls as CUDA graphs that share one memory pool. Outputs are copied out after each
replay, so no recording reads memory that another one writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from katz_graph.executor.recorded.trace import Watch
from katz_graph.host.garbage import uncollected

SHARE = 1 / 8  # of the device's memory, the budget of recordings


class CudaGraphs:
    """Implements `Backend` for one device; does not use the device before the first call. Records
    and replays on the current stream, which must not be the default stream, and on which eager
    calls must have initialized the libraries. Other threads may use the device during a recording.
    """

    strict = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._broken: list[torch.cuda.CUDAGraph] = []
        self._unused: list[torch.cuda.CUDAGraph] = []  # of failed recordings

    @cached_property
    def room(self) -> float:
        return SHARE * float(torch.cuda.mem_get_info(self._device)[1])

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def record(self, call: Callable[[], Any], given: Iterable[Tensor]) -> CudaGraph:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            with (
                torch.cuda.device(self._device),
                uncollected(),  # freeing a graph aborts a recording
                torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"),
                Watch(given),  # entered last, so that it does not see torch's setup of the capture
            ):
                before = torch.cuda.memory_reserved(self._device)
                outputs = call()
        except RuntimeError:
            self._unused.append(graph)  # later recordings may use its memory in the pool
            self._end(graph)
            raise
        return CudaGraph(graph, outputs, torch.cuda.memory_reserved(self._device) - before)

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """Cleans up torch's state after the device aborted a recording. Otherwise the pool accepts
        no recording, queries of the graph fail, and random numbers cannot be drawn.
        """
        number = self._device.index or 0
        try:
            torch._C._cuda_endAllocateToPool(number, self._pool)
        except RuntimeError:
            return  # torch has ended the recording already
        self._broken.append(graph)
        self._leave_pool()
        generator = torch.cuda.default_generators[number]
        generator.graphsafe_set_state(generator.clone_state())

    def drop(self) -> None:
        """Uses a new pool for later recordings, because a stream's recordings share library memory
        in the first recording's pool (pytorch#193402).
        """
        self._unused.clear()
        self._leave_pool()

    def _leave_pool(self) -> None:
        self.__dict__.pop("_pool", None)


class CudaGraph:
    """Implements `Recording`."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Any, size: int) -> None:
        self._graph, self.outputs, self.size = graph, outputs, size

    def replay(self) -> None:
        self._graph.replay()

    def taken(self) -> None:
        """Does nothing: the next replay may overwrite the outputs, on the same stream."""
