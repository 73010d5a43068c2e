"""Provides nodes that compute almost nothing, a context for them, and helpers that build and run
their graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from katz_graph.core.errors import Cancelled
from katz_graph.core.events import NodeBlocked, NodeDone, NodeFailed, NodeStarted
from katz_graph.core.graph import Expansion, Graph, Link, NodeCall
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import GraphResult, run_graph
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.node import FileChoice, Node
from katz_graph.node.types import Context, NodeType
from katz_graph.node.wires import Anything, Boolean, Socket
from katz_graph.packs import Registry

Whole = Annotated[int, Socket("INT")]
Text = Annotated[str, Socket("STRING")]
Thing = Annotated[object, Socket("THING")]


class Number(Node, category="test"):
    """A whole number."""

    value: Annotated[int, Field(ge=-100, le=10_000, description="the number")] = 0

    def run(self) -> Whole:
        return self.value


class Add(Node, category="test"):
    """Adds two numbers."""

    def run(self, a: Whole, b: Whole = 0) -> Whole:
        return a + b


class Knobs(Node, category="test"):
    """One knob of each kind."""

    count: Annotated[int, Field(ge=1, le=10)] = 1
    ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    flag: bool = False
    text: str = ""
    mode: Literal["nearest", "bilinear", "bicubic"] = "nearest"

    def run(self) -> tuple[Whole, Text]:
        return self.count, f"{self.ratio} {self.flag} {self.text} {self.mode}"


class LoadFile(Node, category="test"):
    """A model by name."""

    name: Annotated[str, FileChoice("loras")]

    def run(self) -> Text:
        return self.name


class Echo(Node, category="test"):
    """Returns its input."""

    def run(self, value: Anything) -> Anything:
        return value


class MakeThing(Node, category="test"):
    """Makes a thing."""

    def run(self) -> Thing:
        return object()


class UseThing(Node, category="test", output=True):
    """Takes a thing."""

    def run(self, thing: Thing) -> None: ...


class Save(Node, category="test", output=True):
    """Warns of its input in place of saving a picture."""

    def run(self, value: Anything, context: Context) -> Anything:
        context.warn(repr(value))
        return value


class Choose(Node, category="test", lazy=("on_true", "on_false")):
    """Returns one of two inputs, and evaluates only that."""

    def needs(self, condition: bool, **available: object) -> tuple[str, ...]:
        return ("on_true",) if condition else ("on_false",)

    def run(
        self, condition: Boolean, on_true: Anything = None, on_false: Anything = None
    ) -> Anything:
        return on_true if condition else on_false


class Fail(Node, category="test"):
    """Raises the given error."""

    error: str = "ValueError"

    def run(self, value: Anything = None) -> Anything:
        errors: dict[str, BaseException] = {
            "ValueError": ValueError("shapes do not fit\nsecond line"),
            "MemoryError": MemoryError(),
            "full disk": OSError(28, "No space left on device", "/out/picture.png"),
            "KeyboardInterrupt": KeyboardInterrupt(),
            "exit": SystemExit(3),
        }
        raise errors[self.error]


class Countdown(Node, category="test"):
    """Expands to itself with a lower number until 0: a loop by expansion."""

    count: int = 0

    def run(self, value: Whole) -> Whole:
        if self.count == 0:
            return value
        inner = {
            "next": NodeCall("Add", {"a": value, "b": 1}),
            "again": NodeCall("Countdown", {"count": self.count - 1, "value": Link("next", 0)}),
        }
        return Expansion(Graph(inner), (Link("again", 0),))  # type: ignore[return-value]


TYPES = Registry(
    {
        kind.__name__: kind.describe()
        for kind in (
            Number,
            Add,
            Knobs,
            LoadFile,
            Echo,
            MakeThing,
            UseThing,
            Save,
            Choose,
            Fail,
            Countdown,
        )
    }
)


@dataclass
class RecordingContext:
    """Records the reports of nodes."""

    engine: Any = None
    folders: Folders = field(default_factory=Folders)
    types: Mapping[str, NodeType] = field(default_factory=dict)
    output_directory: Path = Path("output")
    metadata: Mapping[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    cancel_after: int | None = None
    asked: int = 0
    previews: bool = False
    progress_interval: float = 0.0
    acts: list[Callable[[], None]] = field(default_factory=list)
    arrival: float = 1.0

    def in_pack_code(self) -> AbstractContextManager[None]:
        return nullcontext()

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def warn(self, message: str) -> None:
        self.said.append(message)

    def wrote(self, path: Path) -> None: ...

    def report(self, event: object) -> None: ...

    def check_cancelled(self) -> None:
        self.asked += 1
        if self.cancel_after is not None and self.asked > self.cancel_after:
            raise Cancelled("cancelled")

    def wants_preview(self, node: str) -> bool:
        return self.previews

    def on_cancel(self, act: Callable[[], None]) -> Callable[[], None]:
        self.acts.append(act)
        return lambda: self.acts.remove(act)

    def cancel(self) -> None:
        self.cancel_after = 0
        for act in tuple(self.acts):
            act()


NodeEvent = NodeStarted | NodeDone | NodeBlocked | NodeFailed


def kind_of(event: NodeEvent) -> Literal["start", "done", "cached", "blocked", "failed"]:
    match event:
        case NodeStarted():
            return "start"
        case NodeBlocked():
            return "blocked"
        case NodeDone(cached=cached):
            return "cached" if cached else "done"
        case NodeFailed():
            return "failed"


@dataclass
class Ran:
    """Holds a finished run and its reports."""

    result: GraphResult
    events: list[NodeEvent]

    def nodes(self, kind: str) -> list[str]:
        return [event.node for event in self.events if kind_of(event) == kind]

    def why(self, node: str) -> str:
        return next(
            event.why
            for event in self.events
            if event.node == node and not isinstance(event, NodeStarted)
        )


def run(
    document: Mapping[str, Any] | Graph,
    cache: ResultCache | None = None,
    types: Registry = TYPES,
    **options: Any,
) -> Ran:
    """Runs an API document or a graph of trivial nodes."""
    graph = document if isinstance(document, Graph) else from_api(document)
    events: list[NodeEvent] = []
    context = options.pop("context", None) or RecordingContext()
    cache = ResultCache() if cache is None else cache
    context.types = types
    return Ran(run_graph(graph, context, cache, listener=events.append, **options), events)


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}
