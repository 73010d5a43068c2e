"""Declares the messages between server and runner, and makes plain data of them and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_args

from pydantic import TypeAdapter

from katz_graph.core.errors import KatzError
from katz_graph.web.options import RunnerStart
from katz_graph.web.runner_client.facts import (
    CheckedPrompt,
    DrawnWorkflow,
    PackFacts,
    PlannedGraph,
    RunnerFacts,
    Stats,
    TextSizes,
    WrittenOut,
)

RECORD = "record"


def record(kind: type[Any], mode: str = "python") -> Mapping[str, Any]:
    """Marks a field that holds a record, which travels as a dictionary and is validated when it
    arrives.
    """
    return {RECORD: (TypeAdapter(kind), mode)}


@dataclass(frozen=True, slots=True)
class Order:
    """Holds all that a runner needs for a job: `prompt` in API format, checked already; `extra` is
    the client's `extra_data`.
    """

    id: str
    prompt: Mapping[str, Any]
    targets: tuple[str, ...]
    client: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


CHOICES = "katz"
"""Names what in `extra` a job chose itself of how it runs, as `PlanChanges.said` gives it."""

ORDER: TypeAdapter[Order] = TypeAdapter(Order)


# to the runner


@dataclass(frozen=True, slots=True)
class Start:
    """Gives the runner its options: the first message."""

    start: RunnerStart = field(metadata=record(RunnerStart, "json"))


@dataclass(frozen=True, slots=True)
class Prepare:
    """Has a process that will be the next runner import what it needs: comes before `Start`."""

    start: RunnerStart = field(metadata=record(RunnerStart, "json"))


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a `Pong`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the runner and its jobs."""


@dataclass(frozen=True, slots=True)
class Run:
    """Hands a job over; `Taken` answers, and events follow. Holds the order as plain data: one that
    is malformed is still a job's, and fails it.
    """

    job: str
    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels a job."""

    job: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Says that a job's end is on record: its files stay, whatever happens to the runner."""

    job: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """Is answered by `Answer` or `Refused` of the same number; `answer` reads what that holds.
    `said` names the question in messages. `runs_packs`: code of packs runs for it, which may end
    the runner. `origin`: the address that asks; addresses take turns.
    """

    said: ClassVar[str] = "the question"
    runs_packs: ClassVar[bool] = False
    answer: ClassVar[TypeAdapter[Any]] = TypeAdapter(Any)
    origin: str = ""


@dataclass(frozen=True)
class Check(Question):
    """Asks whether a prompt can run; see `web.runner.checking`."""

    said: ClassVar[str] = "the check of the prompt"
    runs_packs: ClassVar[bool] = True
    answer: ClassVar[TypeAdapter[CheckedPrompt]] = TypeAdapter(CheckedPrompt)
    document: Any
    targets: Sequence[str] | None


@dataclass(frozen=True)
class Draw(Question):
    """Asks for a workflow of any other format as editors open it."""

    answer: ClassVar[TypeAdapter[DrawnWorkflow]] = TypeAdapter(DrawnWorkflow)
    document: Any


@dataclass(frozen=True)
class CountTokens(Question):
    """Asks how long the prompts of a document are."""

    answer: ClassVar[TypeAdapter[TextSizes]] = TypeAdapter(TextSizes)
    document: Any


@dataclass(frozen=True)
class Unfold(Question):
    """Asks for a sampler of a document as the nodes of its step."""

    answer: ClassVar[TypeAdapter[WrittenOut]] = TypeAdapter(WrittenOut)
    document: Any
    node: str


@dataclass(frozen=True)
class MakePlan(Question):
    """Asks for the plans of a checked prompt, in place of an earlier question of this client.
    `packs`: nodes of packs may run for it. `changes`: what it is planned for in place of what jobs
    have, as `PlanChanges.said` gives it.
    """

    said: ClassVar[str] = "the request for plans"
    answer: ClassVar[TypeAdapter[PlannedGraph]] = TypeAdapter(PlannedGraph)
    prompt: Mapping[str, Any]
    targets: Sequence[str]
    client: str | None
    packs: bool
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GetPacks(Question):
    """Asks for the packs that were found, and what is wrong with them."""

    answer: ClassVar[TypeAdapter[tuple[PackFacts, ...]]] = TypeAdapter(tuple[PackFacts, ...])


@dataclass(frozen=True)
class GetScripts(Question):
    """Asks for the folders of packs' scripts for the editor, by pack."""


@dataclass(frozen=True)
class GetTemplate(Question):
    """Asks for a workflow that comes with the package, or None."""

    name: str


@dataclass(frozen=True)
class GetObjectInfo(Question):
    """Asks for the JSON of all node types, or of one."""

    name: str | None


@dataclass(frozen=True)
class Free(Question):
    """Has models unloaded and results dropped as soon as no job runs."""

    unload_models: bool
    free_memory: bool


@dataclass(frozen=True)
class GetStats(Question):
    """Asks for the runner's figures."""

    answer: ClassVar[TypeAdapter[Stats]] = TypeAdapter(Stats)


# from the runner


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a ping."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Says that the runner takes jobs."""

    facts: RunnerFacts = field(metadata=record(RunnerFacts))


@dataclass(frozen=True, slots=True)
class Failed:
    """Says why the runner ends; `is_input`: what the operator gave is wrong."""

    message: str
    is_input: bool
    devices: Sequence[str]


@dataclass(frozen=True, slots=True)
class Taken:
    """Says that a job counts as begun."""

    job: str


@dataclass(frozen=True, slots=True)
class WornOut:
    """Asks to be replaced once its jobs have ended, by a runner without these devices."""

    message: str
    devices: Sequence[str]


@dataclass(frozen=True, slots=True)
class Happened:
    """Reports an event of a job, as plain data: one that is malformed is still the job's."""

    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers a question."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """Says why a question has no answer."""

    message: str


ToRunner = (
    Prepare
    | Start
    | Ping
    | Stop
    | Run
    | Cancel
    | Keep
    | Check
    | Draw
    | CountTokens
    | Unfold
    | MakePlan
    | GetPacks
    | GetScripts
    | GetTemplate
    | GetObjectInfo
    | Free
    | GetStats
)
FromRunner = Pong | Ready | Failed | Taken | WornOut | Happened | Answer | Refused
KINDS = {kind.__name__: kind for kind in (*get_args(ToRunner), *get_args(FromRunner))}


class MalformedMessage(KatzError):
    """A message is of no known kind, or has other fields than its kind."""


def to_plain(message: ToRunner | FromRunner) -> tuple[str, dict[str, Any]]:
    """Returns a message's kind, and its fields as plain data."""
    body = {}
    for one in fields(message):
        adapter, mode = one.metadata.get(RECORD, (None, ""))
        value = getattr(message, one.name)
        body[one.name] = value if adapter is None else adapter.dump_python(value, mode=mode)
    return type(message).__name__, body


def from_plain(kind: Any, body: Any) -> ToRunner | FromRunner:
    """Makes a message of its kind and fields. MalformedMessage where that cannot be."""
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
