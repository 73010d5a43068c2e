"""Explains why a node ran: the differences from the previous run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.messages import show
from katz_graph.executor.graph.signature import Signature, Unsignable, value_token


@dataclass(frozen=True, slots=True)
class History:
    """Records the inputs to the cache key of each node of the file in one run."""

    calls: Mapping[str, NodeCall] = field(default_factory=dict)
    # only of required nodes
    signatures: Mapping[str, Signature | None] = field(default_factory=dict)
    fingerprints: Mapping[str, Any] = field(default_factory=dict)
    unsigned: Mapping[str, str] = field(default_factory=dict)  # reasons for missing signatures


def explain(identifier: str, now: History, before: History, policy: str) -> str:
    """Explains in one phrase why a node ran; `policy` is the cache policy."""
    if identifier not in before.signatures:
        return "new"
    call, former = now.calls[identifier], before.calls[identifier]
    if call.type != former.type:
        return f"the type changed from {former.type}"
    changes = list(_changes(call, former, now, before))
    if now.signatures.get(identifier) is None:
        changes.append(
            "never cached: "
            f"{now.unsigned.get(identifier) or 'its result does not depend on its inputs alone'}"
        )
    elif not _equal(now.fingerprints.get(identifier), before.fingerprints.get(identifier)):
        changes.append("data outside the graph has changed")
    return "; ".join(changes) or f"its result was not cached (cache policy {policy})"


def _changes(call: NodeCall, former: NodeCall, now: History, before: History) -> Iterator[str]:
    for name in dict.fromkeys((*call.inputs, *former.inputs)):
        if name not in former.inputs:
            yield f"input {name} is new"
        elif name not in call.inputs:
            yield f"input {name} was removed"
        else:
            new, old = call.inputs[name], former.inputs[name]
            if isinstance(new, Link) != isinstance(old, Link):
                yield f"input {name} is {'linked' if isinstance(new, Link) else 'a value'} now"
            elif not isinstance(new, Link):
                if not _equal(new, old):
                    yield f"input {name} changed from {show(old)} to {show(new)}"
            elif (now.signatures.get(new.node), new.output) != (
                before.signatures.get(old.node),
                old.output,
            ):
                yield (
                    f"input {name} changed"
                    if new == old
                    else f"input {name} is linked to another output"
                )


def _equal(one: Any, other: Any) -> bool:
    try:
        return value_token(one) == value_token(other)
    except Unsignable:
        return False
