"""Renders a job in ComfyUI's formats: a queue item, a history entry, a row of `/api/jobs`. Never
includes the client's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katz_graph.files.urls import without_secrets
from katz_graph.formats.secrets import without_url_secrets
from katz_graph.web.jobs.job import FINISHED, Job, workflow_id

# kinds of outputs that an editor can show in its job list
PREVIEWABLE = ("images", "video", "audio", "3d")
# smaller integers are exact in the JSON of every language (RFC 8259, section 6)
EXACT = 2**53
# keys of `extra_data` that hold the client's id or secrets
PRIVATE = ("client_id", "auth_token_comfy_org", "api_key_comfy_org")


def milliseconds(seconds: float | None) -> int | None:
    """Converts seconds to milliseconds, ComfyUI's unit of time."""
    return None if seconds is None else int(seconds * 1000)


def place_number(job: Job) -> int | float:
    """Returns a job's number, as an integer if it is whole and clients can read it exactly."""
    whole = abs(job.number) < EXACT and job.number == int(job.number)
    return int(job.number) if whole else job.number


def public_extra(job: Job) -> dict[str, Any]:
    """Returns the client's extra data with the time of arrival. Removes the keys in PRIVATE and
    secrets in URLs.
    """
    extra = {key: value for key, value in job.extra.items() if key not in PRIVATE}
    shown: dict[str, Any] = without_url_secrets(extra)
    return shown | {"create_time": milliseconds(job.created)}


def queue_item(job: Job) -> list[Any]:
    """Builds `[number, prompt_id, prompt, extra_data, outputs_to_execute]`."""
    prompt = without_url_secrets(job.prompt)
    return [place_number(job), job.id, prompt, public_extra(job), list(job.targets)]


def history_entry(job: Job) -> dict[str, Any]:
    """Builds the `/history` entry of a finished job."""
    result = job.result
    return {
        "prompt": queue_item(job),
        "outputs": {} if result is None else without_url_secrets(result.outputs),
        "status": status_of(job),
        "meta": {} if result is None else result.meta,
    }


def status_of(job: Job) -> dict[str, Any]:
    """Builds `{status_str, completed, messages}`. The messages have the websocket's format."""
    done = job.status == "completed"
    return {
        "status_str": "success" if done else "error",
        "completed": done,
        "messages": [list(message) for message in _messages(job)],
    }


def _messages(job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    result = job.result
    if job.started is not None:
        started = {"prompt_id": job.id, "timestamp": milliseconds(job.started)}
        yield "execution_start", started
        if result is not None:
            yield "execution_cached", started | {"nodes": list(result.cached)}
    if result is None:
        return
    ended = {"prompt_id": job.id, "timestamp": milliseconds(result.at)}
    if result.status == "completed":
        yield "execution_success", ended
    elif result.status == "cancelled":
        node = interrupted_node(job)
        yield "execution_interrupted", ended | node | {"executed": list(result.executed)}
    else:
        yield "execution_error", error_of(job)


def error_of(job: Job) -> dict[str, Any]:
    """Builds the data of ComfyUI's `execution_error`, for HTTP and websockets."""
    result = job.result
    error = result.error if result is not None else None
    node, kind = (error.display or error.node, error.node_type) if error else ("", "")
    return {
        "prompt_id": job.id,
        "timestamp": milliseconds(job.ended if result is None else result.at),
        "executed": [] if result is None else list(result.executed),
        **shown_node(job, node, kind),
        "exception_message": without_secrets(error.message) if error else "the job failed",
        "exception_type": error.kind if error else "RunError",
        "traceback": [],
        "current_inputs": {},
        "current_outputs": [],
    }


def interrupted_node(job: Job, node: str = "", kind: str = "") -> dict[str, str]:
    """Returns `node_id` and `node_type` of the node that was running when a job was cancelled; of
    the given node if the job's result names none.
    """
    stopped = job.result.interrupted if job.result is not None else None
    if stopped is not None:
        node, kind = stopped.display, stopped.node_type
    return shown_node(job, node, kind)


def shown_node(job: Job, node: str, kind: str) -> dict[str, str]:
    """Returns `node_id` and `node_type` of a node. `kind` is the type if the node is not in the
    prompt.
    """
    call = job.prompt.get(node)
    return {
        "node_id": node,
        "node_type": str(call.get("class_type", kind)) if isinstance(call, Mapping) else kind,
    }


def summary(job: Job) -> dict[str, Any]:
    """Builds a row of `/api/jobs`."""
    outputs = job.result.outputs if job.result is not None else {}
    shown = list(_files(outputs))
    row: dict[str, Any] = {
        "id": job.id,
        "status": job.status,
        "priority": place_number(job),
        "create_time": milliseconds(job.created),
        "execution_start_time": milliseconds(job.started),
        "execution_end_time": milliseconds(job.ended),
        "outputs_count": sum(
            len(entries) for kinds in outputs.values() for entries in kinds.values()
        ),
        "previewable_outputs_count": len(shown),
        "preview_output": _preferred(shown),
        "workflow_id": workflow_id(job),
    }
    if job.status == "failed":
        row["execution_error"] = error_of(job)
    return {key: value for key, value in row.items() if value is not None}


def detail(job: Job) -> dict[str, Any]:
    """Builds `/api/jobs/{id}`: all data of one job."""
    outputs = job.result.outputs if job.result is not None else {}
    workflow = {"prompt": without_url_secrets(job.prompt), "extra_data": public_extra(job)}
    more = {"outputs": without_url_secrets(outputs), "workflow": workflow}
    return (
        summary(job)
        | more
        | ({"execution_status": status_of(job)} if job.status in FINISHED else {})
    )


def _files(outputs: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for node, kinds in outputs.items():
        for kind in PREVIEWABLE:
            for entry in kinds.get(kind, ()):
                if isinstance(entry, Mapping) and "filename" in entry:
                    yield {**entry, "nodeId": node, "mediaType": kind}


def _preferred(files: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns a saved file, or else the first preview."""
    return next(
        (file for file in files if file.get("type") == "output"), files[0] if files else None
    )
