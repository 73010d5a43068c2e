"""Derives what a request has yet to compute, for its device's thread: rows, share keys and planned
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

from katz_graph.executor.worker.device_program import DeviceProgram
from katz_graph.ir.program import EvaluationRun, Instruction


class Outlook:
    """Derives facts of the loop from a device program. `rows`: of its largest call; `keys`: the
    share keys of all calls; `expected`: by key, the planned seconds of its calls by ROW_BUCKETS;
    `runs`: of its evaluations.
    """

    def __init__(self, share: DeviceProgram) -> None:
        program = share.program
        self._calls = {
            segment.name: segment.calls for segment in chain.from_iterable(program.segments)
        }
        every = [call for calls in self._calls.values() for call in calls]
        self.rows = program.shape[0] * max((len(call.operations) for call in every), default=1)
        self.keys = frozenset(call.shares for call in every) - {""}
        planned = program.prediction.evaluations if program.prediction else ()
        planned = planned or (0.0,) * len(program.schedule)
        self._seconds = [*accumulate(reversed((*planned, 0.0)))][::-1]
        self.runs = program.runs
        self.expected = share.seconds

    def seconds(self, first: int, end: int | None = None) -> float:
        """Returns the planned seconds of evaluations `first` to `end`, without `end`; None: to the
        end of the loop.
        """
        return self._seconds[first] - (0.0 if end is None else self._seconds[end])

    def run(self, evaluation: int) -> EvaluationRun | None:
        """Returns the run of an evaluation; None if the plan has none."""
        for run in self.runs:
            if evaluation < run.number:
                return run
            evaluation -= run.number
        return None

    def upcoming(self, instructions: Iterable[Instruction]) -> Sequence[str] | None:
        """Returns the share keys of the calls up to the next `end`; None if there is other work
        than an evaluation before it.
        """
        keys: list[str] = []
        for instruction in instructions:
            if instruction.kind in ("weights", "prepare"):
                return None
            if instruction.kind == "run":
                keys += (call.shares for call in self._calls[instruction.target])
            elif instruction.kind == "end":
                break
        return keys
