"""Records calls as CUDA graphs, all in one pool of memory: since outputs are copied out, no
recording needs what another one writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from katz_graph.executor.recorded.trace import Watch
from katz_graph.host.garbage import uncollected

SHARE = 1 / 8  # of the device's memory, that recordings may take


class CudaGraphs:
    """Implements `Backend` for one device, of which nothing is asked before the first call. It
    records and replays on the stream that is current, which must not be the default one, on which
    nothing can be recorded: there libraries have set themselves up in eager calls before. Other
    threads may use the device while it records.
    """

    strict = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._broken: list[torch.cuda.CUDAGraph] = []
        self._unused: list[torch.cuda.CUDAGraph] = []  # of recordings that were refused

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
                uncollected(),  # what frees a graph breaks a recording off
                torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"),
                Watch(given),  # not what torch does as it begins
            ):
                before = torch.cuda.memory_reserved(self._device)
                outputs = call()
        except RuntimeError:
            self._unused.append(graph)  # it may hold what later recordings of its pool use
            self._end(graph)
            raise
        return CudaGraph(graph, outputs, torch.cuda.memory_reserved(self._device) - before)

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends what a recording that the device broke off leaves open in torch: its pool takes no
        other, the graph may still be asked about it, and nobody could draw random numbers.
        """
        number = self._device.index or 0
        try:
            torch._C._cuda_endAllocateToPool(number, self._pool)
        except RuntimeError:
            return  # torch has ended it
        self._broken.append(graph)
        self._leave_pool()
        generator = torch.cuda.default_generators[number]
        generator.graphsafe_set_state(generator.clone_state())

    def drop(self) -> None:
        """Begins a pool of its own for what is recorded from here on, as the library's memory that
        recordings of one stream share lies in the pool of the first (pytorch#193402).
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
