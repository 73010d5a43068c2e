"""Reports evaluations that the device has completed, while later evaluations are enqueued."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from katz_graph.core.devices import format_name, wider
from katz_graph.core.errors import RunError
from katz_graph.core.events import Previewed, Progress
from katz_graph.executor.worker.stream import Reading, Stream
from katz_graph.ir.program import EvaluationPoint, Program
from katz_graph.node.types import Context


@dataclass(frozen=True, slots=True)
class _Enqueued:
    evaluation: int
    is_finite: Reading
    preview: Reading | None


class RunAhead:
    """Holds evaluations that the device may not have completed. `dtype`: the dtype of its
    computations.
    """

    def __init__(
        self, program: Program, stream: Stream, context: Context, dtype: torch.dtype
    ) -> None:
        self._program, self._stream, self._context = program, stream, context
        self._dtype = dtype
        self._enqueued: deque[_Enqueued] = deque()
        self._reported = -math.inf  # time of the last report

    def add(self, evaluation: int, prediction: Tensor, preview: Tensor | None) -> None:
        """Adds an enqueued evaluation: its prediction, and a preview [h, w, 3] to show."""
        read = self._stream.read
        # in half the operations of `torch.isfinite`: NaN - NaN and inf - inf are NaN
        is_finite = read((prediction - prediction == 0).all())
        shown = None if preview is None else read(preview)
        self._enqueued.append(_Enqueued(evaluation, is_finite, shown))

    def wait(self, last: bool) -> None:
        """Waits until no more evaluations are pending than the stream allows; after the `last` one,
        until none is. Reports completed evaluations, at the context's interval. Raises RunError if
        a prediction is not finite.
        """
        name, schedule = self._program.name, self._program.schedule
        while len(self._enqueued) > (0 if last else self._stream.ahead):
            ended = self._enqueued.popleft()
            if not ended.is_finite():
                raise self._not_finite(schedule[ended.evaluation])
            if ended.preview is not None:
                self._context.report(Previewed(name, ended.preview()))
            done, now = ended.evaluation + 1, time.perf_counter()
            # each report wakes threads of this process and of the driver
            if done == len(schedule) or now - self._reported >= self._context.progress_interval:
                self._context.report(Progress(name, done, len(schedule), evaluations=True))
                self._reported = now

    def _not_finite(self, point: EvaluationPoint) -> RunError:
        more_range = wider(format_name(self._dtype))
        ways_out = ", ".join(filter(None, (more_range, "another VAE", "a lower guidance")))
        return RunError(
            f"node {self._program.name}: the latent became NaN or infinite in step "
            f"{point.step + 1} (evaluation {point.index + 1} of {len(self._program.schedule)}); "
            f"try {ways_out}"
        )
