"""Serializes job events to ComfyUI's websocket messages: JSON texts `{"type", "data"}`, and
pictures with big-endian headers. Also lists the server's features.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.events import NodeDone, NodeStarted, PackMessage, Progress
from katz_graph.formats.strict_json import parse_json
from katz_graph.web.events import Cached, ClientEvent, EncodedPicture, Ended, Started
from katz_graph.web.http.job_views import error_of, interrupted_node, milliseconds
from katz_graph.web.http.responses import json_text
from katz_graph.web.jobs.job import Job
from katz_graph.web.live.channel import JobState, NodeProgress, QueueView, Snapshot
from katz_graph.web.live.outbox import ClientFrame, RateLimit
from katz_graph.web.options import Limits

PREVIEW, PREVIEW_WITH_METADATA = 1, 4  # types of binary messages
FORMATS = {"image/jpeg": 1, "image/png": 2}  # of pictures without metadata
STATES_RATE, STATES_BURST = 5.0, 5.0  # progress_state: at most ten in any second
STATES_SLACK = 0.1  # seconds that an overdue message waits for the next event, which sends it
STATES_NODES = 100  # number of nodes that count as one message


class ConventionChannel:
    """Sends ComfyUI's messages. `features` answers the client's feature flags. `clock` is in
    seconds.
    """

    def __init__(
        self, features: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._features, self._clock = features, clock
        self._spoken = self._metadata = False
        self._paces: dict[str, RateLimit] = {}
        # jobs whose nodes have changed since the last progress_state
        self._owed: dict[str, JobState] = {}
        self._shown: dict[str, str] = {}  # the last node reported as executing, by job
        self._started: set[str] = set()  # jobs reported as started

    def read(self, text: str) -> Iterator[ClientFrame]:
        """Answers the client's first text, `feature_flags`. Ignores later texts."""
        if self._spoken:
            return
        self._spoken = True
        try:
            message = parse_json(text)
        except InputError:
            return
        data = (
            message.get("data")
            if isinstance(message, Mapping) and message.get("type") == "feature_flags"
            else None
        )
        if isinstance(data, Mapping):
            self._metadata = data.get("supports_preview_metadata") is True
            yield _message("feature_flags", self._features)

    def greeting(self, snapshot: Snapshot) -> Iterator[ClientFrame]:
        yield _message("status", _status(snapshot.queue) | {"sid": snapshot.client})
        for job in snapshot.missed:
            assert job.result is not None
            if _is_reported(job.result, job.started):
                yield from self._end(job, job.result, snapshot.queue)
        for job in snapshot.jobs:
            state = snapshot.states.get(job.id)
            if state is not None and state.started is not None and not self._is_held_back(job):
                yield from self._so_far(job.id, state)

    def _is_held_back(self, job: Job) -> bool:
        """Returns whether reports of a job wait, because devices do not serve it yet and another
        job of this client is reported. Clients expect one job at a time: they show all progress at
        the job that started last.
        """
        return job.started is None and job.id not in self._started and bool(self._started)

    def _so_far(self, job: str, state: JobState) -> Iterator[ClientFrame]:
        """Reports a job that started earlier."""
        self._started.add(job)
        at = {"prompt_id": job, "timestamp": milliseconds(state.started)}
        yield _message("execution_start", at)
        cached = [node for node, known in state.nodes.items() if known.cached]
        yield _message("execution_cached", {"nodes": cached} | at)
        yield from self._states(job, state)
        for node in state.running:
            yield from self._executing(job, state.nodes[node].display)
        if state.preview is not None:
            yield self._picture(job, state.preview)

    def queue(self, client: str, queue: QueueView) -> Iterator[ClientFrame]:
        yield _message("status", _status(queue))

    def event(
        self, job: Job, event: ClientEvent, state: JobState, queue: Callable[[], QueueView]
    ) -> Iterator[ClientFrame]:
        if isinstance(event, PackMessage):  # a node may wait for the client's answer
            yield _message(event.type, event.data)
            return
        if isinstance(event, Started):
            self._forget(job.id)  # drops the state of a lost attempt
        is_in_state = not (
            isinstance(event, Ended) or (isinstance(event, EncodedPicture) and event.lasting)
        )
        if is_in_state and self._is_held_back(job):
            return
        if job.id not in self._started and not isinstance(event, Started) and state.started:
            yield from self._so_far(job.id, state)
            for node, known in state.nodes.items():
                yield from self._executed(job.id, node, known.display, known.ui)
            if is_in_state:
                return
        match event:
            case Started(at=at):
                self._started.add(job.id)
                yield _message(
                    "execution_start", {"prompt_id": job.id, "timestamp": milliseconds(at)}
                )
            case Cached(nodes=nodes, at=at):
                yield _message(
                    "execution_cached",
                    {"nodes": list(nodes), "prompt_id": job.id, "timestamp": milliseconds(at)},
                )
            case NodeStarted(display=display):
                yield from self._changed(job.id, state)
                yield from self._executing(job.id, display)
            case Progress(display=display, value=value, maximum=maximum):
                yield _message(
                    "progress",
                    {"value": value, "max": maximum, "prompt_id": job.id, "node": display},
                )
                yield from self._changed(job.id, state)
            case EncodedPicture():
                yield self._picture(job.id, event)
            case NodeDone(node=node, display=display, ui=ui, cached=cached):
                yield from self._executed(job.id, node, display, ui)
                if not cached:
                    yield from self._changed(job.id, state)
            case Ended() if _is_reported(event, state.started):
                if job.id in self._owed or event.status == "failed":
                    yield from self._states(job.id, state)
                yield from self._end(replace(job, result=event), event, queue(), state)
        if isinstance(event, Ended):
            self._forget(job.id)

    def due(self) -> float | None:
        waits = [self._pace(job).wait(_cost(state)) for job, state in self._owed.items()]
        return min(waits) + STATES_SLACK if waits else None

    def delayed_frames(self) -> Iterator[ClientFrame]:
        for job, state in tuple(self._owed.items()):
            yield from self._changed(job, state)

    def _executing(self, job: str, node: str) -> Iterator[ClientFrame]:
        if self._shown.get(job) != node:
            self._shown[job] = node
            yield _message("executing", {"node": node, "display_node": node, "prompt_id": job})

    def _executed(
        self, job: str, node: str, display: str, ui: Mapping[str, Any] | None
    ) -> Iterator[ClientFrame]:
        if ui is not None:
            yield _message(
                "executed",
                {"node": node, "display_node": display, "output": ui, "prompt_id": job},
            )

    def _forget(self, job: str) -> None:
        self._started.discard(job)
        for known in (self._paces, self._owed, self._shown):
            known.pop(job, None)

    def _changed(self, job: str, state: JobState) -> Iterator[ClientFrame]:
        if self._pace(job).take(_cost(state)):
            yield from self._states(job, state)
        else:
            self._owed[job] = state

    def _states(self, job: str, state: JobState) -> Iterator[ClientFrame]:
        self._owed.pop(job, None)
        if state.nodes:
            yield _message(
                "progress_state",
                {
                    "prompt_id": job,
                    "nodes": {id: _node(job, id, node) for id, node in state.nodes.items()},
                },
            )

    def _pace(self, job: str) -> RateLimit:
        if job not in self._paces:
            self._paces[job] = RateLimit(STATES_RATE, STATES_BURST, self._clock)
        return self._paces[job]

    def _picture(self, job: str, event: EncodedPicture) -> ClientFrame:
        if self._metadata:
            about = _identity(job, event.node, event.display) | {"image_type": event.media_type}
            text = json.dumps(about).encode()
            header = struct.pack(">II", PREVIEW_WITH_METADATA, len(text)) + text
        else:
            header = struct.pack(">II", PREVIEW, FORMATS.get(event.media_type, 1))
        return ClientFrame(header + event.image, "" if event.lasting else job)

    def _end(
        self, job: Job, ended: Ended, queue: QueueView, state: JobState | None = None
    ) -> Iterator[ClientFrame]:
        data: dict[str, Any] = {"prompt_id": job.id, "timestamp": milliseconds(ended.at)}
        if ended.status == "completed":
            yield _message("execution_success", data)
        elif ended.status == "failed":
            yield _message("execution_error", error_of(job))
        else:
            # a killed runner could not report the running node
            known = state.nodes[state.running[-1]] if state and state.running else NodeProgress("")
            node = interrupted_node(job, known.display, known.type)
            yield _message(
                "execution_interrupted", data | node | {"executed": list(ended.executed)}
            )
        yield _message("status", _status(queue))
        yield _message("executing", {"node": None, "prompt_id": job.id})


def _is_reported(ended: Ended, started: float | None) -> bool:
    """Returns whether to report an end: not if the job was cancelled before it started."""
    return started is not None or ended.status != "cancelled"


def _cost(state: JobState) -> float:
    return max(1.0, len(state.nodes) / STATES_NODES)


def _status(queue: QueueView) -> dict[str, Any]:
    return {"status": {"exec_info": {"queue_remaining": queue.remaining}}}


def _node(job: str, identifier: str, node: NodeProgress) -> dict[str, Any]:
    return {"value": node.value, "max": node.maximum, "state": node.status} | _identity(
        job, identifier, node.display
    )


def _identity(job: str, node: str, display: str) -> dict[str, Any]:
    """Identifies a node. An expansion's node has the expanded node as display node and parent."""
    parent = None if display == node else display
    return {
        "node_id": node,
        "prompt_id": job,
        "display_node_id": display,
        "parent_node_id": parent,
        "real_node_id": display,
    }


def _message(type: str, data: Any) -> ClientFrame:
    """Builds a message of JSON that every client can parse. Values that JSON lacks (NaN, a pack's
    own objects) become null.
    """
    return ClientFrame(json_text({"type": type, "data": data}, default=_nothing, skipkeys=True))


def _nothing(value: Any) -> None:
    return None


def features(limits: Limits) -> dict[str, Any]:
    """Returns the server's features by ComfyUI's names; `max_upload_size` is in bytes."""
    return {
        "supports_preview_metadata": True,
        "max_upload_size": limits.upload_bytes,
        "extension": {"manager": {"supports_v4": False}},
        "node_replacements": True,
        "assets": False,
    }
