"""Runs `katz submit`: renders a workflow on a server, with the progress, lines and exit codes of
`katz run`.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console
from rich.markup import escape

from katz_graph.api.devices import check_run_options
from katz_graph.api.prepare import first_seed, set_inputs, set_seed
from katz_graph.api.progress import EvaluationProgress
from katz_graph.cli.options import SubmitOptions
from katz_graph.cli.remote import RemoteServer, Unreachable, node_problems
from katz_graph.cli.session import check_writable
from katz_graph.cli.watch import Listener, follow, open_line
from katz_graph.core.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.core.events import NodeDone, Progress, Warned
from katz_graph.core.messages import listed, one_line, shorten
from katz_graph.files.folders import TEMP
from katz_graph.formats.api import to_api, with_defaults
from katz_graph.formats.object_info import from_object_info
from katz_graph.formats.read import read_workflow
from katz_graph.formats.signature import Signatures, signatures, unknown_types
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow
from katz_graph.host.garbage import imports_are_done
from katz_graph.packs import Registry, load_registry
from katz_graph.settings.environment import Settings
from katz_graph.web.events import ClientEvent, EncodedPicture, Ended, PlanMade

ATTEMPTS = 5  # to submit a workflow when connections drop
PAUSE = 1.0  # seconds between attempts
SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}


def submit(path: Path, options: SubmitOptions, as_json: bool) -> None:
    """Submits the workflow, waits for the job's end unless `no_wait` is set, and downloads its
    pictures.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    server = RemoteServer(options.server, options.token)
    settings = options.settings()
    if not options.no_wait:
        check_writable(settings.output, "--output")
    workflow, known, notes = _prepared(path, options, settings, server)
    for note in notes:
        console.print(escape(note))
    job, client = str(uuid.uuid4()), uuid.uuid4().hex
    watcher = _Watcher(server, job, settings.output, console)
    imports_are_done()  # from here on an interrupt has to cancel the job
    try:
        # Connect before the job starts, so that no event is missed.
        line = None if options.no_wait else open_line(server, client)
        with line or contextlib.nullcontext():
            answer = _handed_over(server, job, _body(options, workflow, known, job, client))
            refused = node_problems(answer.get("node_errors"))
            if line is None:
                print(json.dumps({"job": job, "number": answer.get("number")}) if as_json else job)
            else:
                with EvaluationProgress(console) as watcher.progress:
                    ended = follow(
                        server,
                        client,
                        line,
                        job,
                        Listener(watcher.listen, watcher.queued, watcher.say),
                    )
                watcher.fetch(ended)
                watcher.print_result(ended, first_seed(workflow.graph), as_json)
    except KeyboardInterrupt:
        with contextlib.suppress(KatzError):
            server.post(f"/api/jobs/{job}/cancel", {})
        raise Cancelled("cancelled") from None
    if refused:
        raise RunError("\n".join((*refused, "some outputs were refused")))


def _prepared(
    path: Path,
    options: SubmitOptions,
    settings: Settings,
    server: RemoteServer,
) -> tuple[Workflow, Signatures, list[str]]:
    """Returns the workflow with its overrides, and lines for the user. Queries the server for the
    input names of unknown node types.
    """
    registry, _ = load_registry(settings.packs, settings.folders())
    known, workflow = signatures(registry), read_workflow(path, registry)
    if unknown_types(workflow.graph, known):
        foreign = from_object_info(server.get("/object_info"))
        known, workflow = signatures(registry, foreign), read_workflow(path, registry, foreign)
    check_run_options(workflow.run)
    graph, notes = _overridden(options, workflow, registry)
    notes = [f"set {note}" for note in notes] + [f"warning: {note}" for note in workflow.notes]
    decided = [name for name in workflow.run if name != "seed"]
    if decided:
        notes.append(
            f"warning: run options that only the server can set were left out: {listed(decided)}"
        )
    if not workflow.is_prompt:
        graph = with_defaults(graph, registry)
    return replace(workflow, graph=graph), known, notes


def _overridden(
    options: SubmitOptions, workflow: Workflow, registry: Registry
) -> tuple[Any, list[str]]:
    graph, notes = set_inputs(workflow.graph, registry, options.sets)
    seed = options.seed if options.seed is not None else workflow.run.get("seed")
    if seed is None:
        return graph, notes
    graph, changed = set_seed(graph, registry, seed)
    return graph, [*notes, *changed]


def _body(
    options: SubmitOptions, workflow: Workflow, known: Signatures, job: str, client: str
) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": to_api(workflow.graph), "prompt_id": job, "client_id": client}
    # unused nodes may have dangling links, which the editor's format cannot express
    with contextlib.suppress(InputError):
        body["extra_data"] = {"extra_pnginfo": {"workflow": to_ui(workflow, known)}}
    if options.deadline is not None:
        body["deadline_seconds"] = options.deadline
    if options.priority is not None:
        body["number"] = options.priority
    return body


def _handed_over(server: RemoteServer, job: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Submits the job and returns the answer. Retries if the connection drops before the answer;
    the idempotency key prevents the job from running twice.
    """
    for attempt in range(ATTEMPTS):
        try:
            answer = server.post("/prompt", body, {"Idempotency-Key": job})
        except Unreachable as error:
            if error.refused or attempt == ATTEMPTS - 1:
                raise
            time.sleep(PAUSE)
            continue
        if isinstance(answer, Mapping) and answer.get("prompt_id") == job:
            return answer
        break
    raise InputError(
        f"--server {server.root}: the response names no job; is that a Katz Graph server?"
    )


class _Watcher:
    """Prints a job's events, and collects the data of `--json`."""

    progress: EvaluationProgress

    def __init__(self, server: RemoteServer, job: str, output: Path, console: Console) -> None:
        self._server, self._job, self._output, self._console = server, job, output, console
        self._plans: dict[str, Any] = {}
        self._files: list[Path] = []
        self._place: int | None = None

    def say(self, message: str) -> None:
        self._console.print(escape(message))

    def queued(self, before: int) -> None:
        if before != self._place:
            self._place = before
            self.say(
                f"job {self._job} waits"
                + (
                    f" behind {before} other{'s' if before > 1 else ''}"
                    if before
                    else ", and is next"
                )
            )

    def listen(self, event: ClientEvent) -> None:
        match event:
            case Progress():
                self.progress.update(event.display, event.value, event.maximum)
            case PlanMade():
                self._plans[event.node] = event.plan
            case Warned():
                self._console.print(f"[yellow]warning:[/] {escape(event.message)}")
            case NodeDone(ui=ui) if ui is not None:
                for text in ui.get("text", ()):
                    self.say(str(text))
            case EncodedPicture(lasting=True):
                self._keep(event)

    def fetch(self, ended: Ended) -> None:
        """Downloads the files of output nodes. RunError for names outside of the output folder."""
        for entry in _files(ended.outputs):
            target = _free(self._local(entry))
            target.parent.mkdir(parents=True, exist_ok=True)
            self._server.download("/view", entry, target)
            self._files.append(target)

    def print_result(self, ended: Ended, seed: int | None, as_json: bool) -> None:
        """Prints the files and the job's time. Raises the job's error."""
        for file in self._files:
            self.say(f"wrote {file}")
        seconds = ended.seconds
        if ended.status == "completed" and ended.predicted is not None:
            sampling = seconds.get("prepare", 0.0) + seconds.get("denoise", 0.0)
            total = seconds.get("total", 0.0)
            self.say(
                f"sampling took {sampling:.2f} s, predicted {ended.predicted:.2f} s; the whole run "
                f"took {total:.2f} s"
            )
        if as_json:
            plans = list(self._plans.values())
            result = {
                "job": self._job,
                "outputs": [str(file) for file in self._files],
                "seed": seed,
                "seconds": dict(seconds),
            }
            planned = {
                "predicted_seconds": ended.predicted,
                "plan": plans[0] if len(plans) == 1 else plans,
            }
            print(json.dumps({**result, **planned, "approximations": list(ended.approximations)}))
        if ended.status == "cancelled":
            raise RunError(f"job {self._job} was cancelled on the server")
        if ended.status == "failed":
            raise RunError(ended.error.message if ended.error is not None else "the job failed")

    def _keep(self, event: EncodedPicture) -> None:
        """Writes a picture that a node sent instead of saving."""
        node = one_line(event.display).replace("/", "_")
        suffix = SUFFIXES.get(event.media_type, "png")
        target = _free(self._output / f"{self._job[:8]}_{node}.{suffix}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(event.image)
        self._files.append(target)

    def _local(self, entry: Mapping[str, str]) -> Path:
        parts = [*PurePosixPath(entry["subfolder"]).parts, entry["filename"]]
        if any(part in ("", ".", "..") or set(part) & set("/\\\0") for part in parts):
            raise RunError(
                f"the server names a file {one_line(shorten('/'.join(parts)))}, which is outside "
                "its folder"
            )
        return self._output.joinpath(*([TEMP] if entry["type"] == "temp" else []), *parts)


def _files(outputs: Mapping[str, Mapping[str, Sequence[Any]]]) -> Iterable[dict[str, str]]:
    """Yields the files among outputs, as query parameters of `/view`."""
    for kinds in outputs.values():
        for entries in kinds.values():
            for entry in entries:
                if (
                    isinstance(entry, Mapping)
                    and isinstance(entry.get("filename"), str)
                    and entry.get("type") in ("output", "temp")
                ):
                    yield {
                        "filename": entry["filename"],
                        "subfolder": str(entry.get("subfolder") or ""),
                        "type": entry["type"],
                    }


def _free(path: Path) -> Path:
    """Returns this path, or the path with a number appended if a file already exists there."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem} ({number})")
    return candidate
