"""Draws a progress bar per sampler, counted in model evaluations. Draws nothing outside a terminal
or notebook.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console, RenderableType
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

from katz_graph.core import events

COUNT_WIDTH = 24  # characters for a node's name and its number of evaluations, with spaces
RATE_WIDTH = 26  # characters for evaluations per second and remaining time
MIN_BAR_WIDTH, MAX_BAR_WIDTH = 6, 40


class _Rate(ProgressColumn):
    """Shows evaluations per second."""

    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else f"{task.speed:.1f} it/s", style="progress.data.speed")


def _columns(width: int) -> Iterator[ProgressColumn]:
    """Yields the columns that fit into one terminal line of this width."""
    has_rate = width >= COUNT_WIDTH + RATE_WIDTH + MIN_BAR_WIDTH
    bar_width = width - COUNT_WIDTH - (RATE_WIDTH if has_rate else 0)
    yield TextColumn("{task.description}", markup=False)
    if bar_width >= MIN_BAR_WIDTH:
        yield BarColumn(bar_width=min(MAX_BAR_WIDTH, bar_width))
    yield MofNCompleteColumn()
    if has_rate:
        yield from (_Rate(), TimeRemainingColumn())


class EvaluationProgress(AbstractContextManager["EvaluationProgress"]):
    """Draws a bar for each sampler until it is closed."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            *_columns(console.width),
            console=console,
            disable=not (console.is_terminal or console.is_jupyter),
        )
        self._tasks: dict[str, int] = {}

    def renderable(self) -> RenderableType:
        """Returns the bars as a rich renderable."""
        return self._progress.get_renderable()

    def __enter__(self) -> EvaluationProgress:
        return self

    def __exit__(self, *_: object) -> None:
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
    """Yields the given listener of a run, or for True a progress bar on standard error."""
    if progress is True:
        with EvaluationProgress(Console(stderr=True)) as bar:
            yield bar.listen
    else:
        yield progress or None
