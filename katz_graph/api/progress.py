"""Draws a progress bar per sampler, counted in model evaluations. Silent where neither a terminal
nor a notebook shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from katz_graph import events


class _Rate(ProgressColumn):
    """Shows evaluations a second."""

    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else f"{task.speed:.1f} it/s", style="progress.data.speed")


class EvaluationProgress(AbstractContextManager["EvaluationProgress"]):
    """Draws a bar for each sampler while it is open."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns, console=console, disable=not (console.is_terminal or console.is_jupyter)
        )
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> EvaluationProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def listen(self, event: events.Event) -> None:
        if isinstance(event, events.Progress) and event.evaluations:
            self.update(event.node, event.value, event.maximum)

    def update(self, node: str, value: int, maximum: int) -> None:
        if node not in self._tasks:
            self._progress.start()
            self._tasks[node] = self._progress.add_task(f"node {node}", total=maximum)
        self._progress.update(self._tasks[node], completed=value)  # type: ignore[arg-type]


@contextmanager
def listener(progress: events.Listener | bool | None) -> Iterator[events.Listener | None]:
    """Yields the listener of a run: the given one, or for True a bar on standard error."""
    if progress is True:
        with EvaluationProgress(Console(stderr=True)) as bar:
            yield bar.listen
    else:
        yield progress or None
