"""Declares the messages between server and runner, and converts them to plain data and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import TypeAdapter

from katz_graph.core.errors import KatzError
from katz_graph.ipc.heartbeat import Ping, Pong, Stop
from katz_graph.web.options import RunnerStart
from katz_graph.web.runner_client.facts import (
    CheckedPrompt,
    OpenedWorkflow,
    PackFacts,
    PlannedGraph,
    RunnerFacts,
    Stats,
    TextSizes,
    WrittenOut,
)

RECORD = "record"
Reply = TypeVar("Reply")


def record(kind: type[Any], mode: str = "python") -> Mapping[str, Any]:
    """Marks a field that holds a dataclass, sent as a dictionary and validated on arrival."""
    return {RECORD: (TypeAdapter(kind), mode)}


@dataclass(frozen=True, slots=True)
class Order:
    """Describes a job for the runner: the validated `prompt` in API format, and the client's
    `extra_data` in `extra`. `due`: seconds since the epoch until which the job should end; None: no
    due time. `share`: the client's address and id; clients get equal shares of devices.
    `seconds_after`: by the end node of a sampler, those predicted from its last evaluation to the
    end of the job.
    """

    id: str
    prompt: Mapping[str, Any]
    targets: tuple[str, ...]
    client: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    due: float | None = None
    share: str = ""
    seconds_after: Mapping[str, float] = field(default_factory=dict)


CHOICES = "katz"
"""The key in `extra` of the plan changes that a job chose, as `PlanChanges.overrides` returns them.
"""

ORDER: TypeAdapter[Order] = TypeAdapter(Order)


# to the runner


@dataclass(frozen=True, slots=True)
class Start:
    """Passes options to the runner. Must be the first message, or follow `Prepare`."""

    start: RunnerStart = field(metadata=record(RunnerStart, "json"))


@dataclass(frozen=True, slots=True)
class Prepare:
    """Makes a standby process do the next runner's imports. Precedes `Start`."""

    start: RunnerStart = field(metadata=record(RunnerStart, "json"))


@dataclass(frozen=True, slots=True)
class Run:
    """Hands a job over. The runner answers with `Taken`, followed by events. The order is plain
    data, so that a malformed one still fails its job.
    """

    job: str
    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    job: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Reports that a job's end is on record: the runner must not delete its files."""

    job: str


@dataclass(frozen=True, kw_only=True)
class Question(Generic[Reply]):
    """Asks a question, answered by `Answer` or `Refused` with the same number. `Reply`: the type
    of the answer.
    """

    # names the question in error messages
    description: ClassVar[str] = "the question"
    # the question runs pack code, which may crash the runner
    runs_packs: ClassVar[bool] = False
    # validates the value of `Answer`
    answer: ClassVar[TypeAdapter[Any]] = TypeAdapter(Any)
    # address of the asking client; addresses take turns
    origin: str = ""


@dataclass(frozen=True)
class Check(Question[CheckedPrompt]):
    """Asks whether a prompt can run; see `web.runner.checking`. Addresses take turns."""

    description: ClassVar[str] = "the check of the prompt"
    runs_packs: ClassVar[bool] = True
    answer: ClassVar[TypeAdapter[CheckedPrompt]] = TypeAdapter(CheckedPrompt)
    document: Any
    targets: Sequence[str] | None


@dataclass(frozen=True)
class Draw(Question[OpenedWorkflow]):
    """Asks for a workflow of any format in the editor's format."""

    answer: ClassVar[TypeAdapter[OpenedWorkflow]] = TypeAdapter(OpenedWorkflow)
    document: Any


@dataclass(frozen=True)
class CountTokens(Question[TextSizes]):
    """Asks for the token counts of a document's prompts."""

    answer: ClassVar[TypeAdapter[TextSizes]] = TypeAdapter(TextSizes)
    document: Any


@dataclass(frozen=True)
class Unfold(Question[WrittenOut]):
    """Requests the nodes that replace a document's sampler."""

    answer: ClassVar[TypeAdapter[WrittenOut]] = TypeAdapter(WrittenOut)
    document: Any
    node: str


@dataclass(frozen=True)
class MakePlan(Question[PlannedGraph]):
    """Asks for the plans of a checked prompt. Replaces the client's earlier question. `packs`: pack
    nodes may run for the plan. `changes`: plan changes that replace those of jobs, as
    `PlanChanges.overrides` returns them.
    """

    description: ClassVar[str] = "the request for plans"
    answer: ClassVar[TypeAdapter[PlannedGraph]] = TypeAdapter(PlannedGraph)
    prompt: Mapping[str, Any]
    targets: Sequence[str]
    client: str | None
    packs: bool
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GetPacks(Question[tuple[PackFacts, ...]]):
    """Asks for the installed packs and their problems."""

    answer: ClassVar[TypeAdapter[tuple[PackFacts, ...]]] = TypeAdapter(tuple[PackFacts, ...])


@dataclass(frozen=True)
class GetScripts(Question[Mapping[str, str]]):
    """Asks for the folders of packs' scripts for the editor, by pack."""


@dataclass(frozen=True)
class GetTemplate(Question[Mapping[str, Any] | None]):
    """Asks for a bundled workflow in the editor's format, or None if the name is unknown."""

    name: str


@dataclass(frozen=True)
class GetObjectInfo(Question[bytes]):
    """Asks for the JSON of all node types, or of one; `{}` for an unknown name."""

    name: str | None = None


@dataclass(frozen=True)
class Free(Question[None]):
    """Asks to unload models and drop results as soon as no job runs."""

    unload_models: bool
    free_memory: bool


@dataclass(frozen=True)
class GetStats(Question[Stats]):
    """Asks for the runner's statistics."""

    answer: ClassVar[TypeAdapter[Stats]] = TypeAdapter(Stats)


# from the runner


@dataclass(frozen=True, slots=True)
class Ready:
    """Reports that the runner takes jobs."""

    facts: RunnerFacts = field(metadata=record(RunnerFacts))


@dataclass(frozen=True, slots=True)
class Failed:
    """Reports why the runner ends. `is_input`: the operator's options are invalid."""

    message: str
    is_input: bool
    devices: Sequence[str]


@dataclass(frozen=True, slots=True)
class Taken:
    """Reports that a job counts as started."""

    job: str


@dataclass(frozen=True, slots=True)
class ReplaceRequested:
    """Asks to be replaced, after the current jobs end, by a runner without these devices."""

    message: str
    devices: Sequence[str]


@dataclass(frozen=True, slots=True)
class Happened:
    """Reports a job event as plain data, so that a malformed event still names its job."""

    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers a question."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """Reports why a question has no answer."""

    message: str


Command = Prepare | Start | Ping | Stop | Run | Cancel | Keep
ToRunner = Command | Question[Any]
FromRunner = Pong | Ready | Failed | Taken | ReplaceRequested | Happened | Answer | Refused
KINDS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (*get_args(Command), *Question.__subclasses__(), *get_args(FromRunner))
}


class MalformedMessage(KatzError):
    """Reports a message of an unknown kind, or with fields that do not match its kind."""


def to_plain(message: ToRunner | FromRunner) -> tuple[str, dict[str, Any]]:
    """Returns a message's kind and its fields as plain data."""
    body = {}
    for one in fields(message):
        adapter, mode = one.metadata.get(RECORD, (None, ""))
        value = getattr(message, one.name)
        body[one.name] = value if adapter is None else adapter.dump_python(value, mode=mode)
    return type(message).__name__, body


def from_plain(kind: Any, body: Any) -> ToRunner | FromRunner:
    """Builds a message from its kind and fields. Raises MalformedMessage if they are invalid."""
    try:
        wanted = KINDS[kind]
        records = {one.name: one.metadata[RECORD][0] for one in fields(wanted) if one.metadata}
        given = {
            name: records[name].validate_python(value) if name in records else value
            for name, value in body.items()
        }
        message: ToRunner | FromRunner = wanted(**given)
        return message
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise MalformedMessage(
            f"a message {kind!r} cannot be read: {type(error).__name__}: {error}"
        ) from None
