"""Provides a server of real parts over a runner that executes nothing: a test ends its jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from katz_graph.core.errors import InputError
from katz_graph.formats.ui_open import editor_document
from katz_graph.packs import load_registry
from katz_graph.web.app import build
from katz_graph.web.events import Ended, EndStatus, JobError, JobEvent, Started
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.store import JobStore
from katz_graph.web.options import Limits, ServeOptions
from katz_graph.web.runner_client.facts import (
    CheckedPrompt,
    DeviceFacts,
    DeviceStats,
    OpenedWorkflow,
    PackFacts,
    PlannedGraph,
    RunnerFacts,
    Stats,
    TextSizes,
    WrittenOut,
)
from katz_graph.web.runner_client.messages import (
    Check,
    CountTokens,
    Draw,
    Free,
    GetObjectInfo,
    GetPacks,
    GetScripts,
    GetTemplate,
    MakePlan,
    Question,
    Unfold,
)
from katz_graph.web.serve import assemble
from katz_graph.web.state import State

ADDRESS = "http://127.0.0.1:8188"
GRAPH = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 8}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
}


class ScriptedRunner:
    """Accepts jobs and holds them until `end`. `refusal`: the answer of `check` instead of
    acceptance.
    """

    def __init__(
        self,
        options: ServeOptions,
        on_event: Callable[[JobEvent], None],
        lost: Callable[[Sequence[str], str], None],
    ) -> None:
        self._on_event = on_event
        self.ready, self.restarts = True, 0
        self.facts = RunnerFacts((DeviceFacts("cpu", "cpu"),), 3, torch="2.11.0")
        self.taken: list[Job] = []
        self.cancelled: list[str] = []
        self.checked: list[Any] = []
        self.freed: list[tuple[bool, bool]] = []
        self.refusal: CheckedPrompt | None = None
        self.planned: list[MakePlan] = []
        self.plans = PlannedGraph()
        self.sizes: TextSizes = {}
        self.written = WrittenOut(error="there is no step")
        self.web: dict[str, str] = {}
        self.found: tuple[PackFacts, ...] = ()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(self, job: Job, seconds_after: object = None) -> None:
        self.taken.append(job)
        self._on_event(JobEvent(job.id, Started(time.time())))

    async def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        self._on_event(JobEvent(job_id, Ended("cancelled", time.time())))

    def keep_files(self, job_id: str) -> None: ...

    def end(
        self,
        job_id: str,
        error: JobError | None = None,
        outputs: Mapping[str, Any] | None = None,
        cached: tuple[str, ...] = (),
    ) -> None:
        """Ends a job with files or with an error."""
        status: EndStatus = "failed" if error else "completed"
        ended = Ended(
            status, time.time(), error, outputs or {}, seconds={"total": 0.5}, cached=cached
        )
        self._on_event(JobEvent(job_id, ended))

    async def ask(self, question: Question[Any]) -> Any:
        match question:
            case Check(document, targets):
                self.checked.append(document)
                return self.refusal or CheckedPrompt(
                    prompt=document,
                    targets=tuple(targets or ["2"]),
                    refused=(),
                    error=None,
                    node_errors={},
                    notes=(),
                    workflow=None,
                )
            case Draw(document):
                registry, _ = load_registry()
                try:
                    return OpenedWorkflow(*editor_document(document, registry))
                except InputError as error:
                    return OpenedWorkflow(error=str(error))
            case GetPacks():
                return self.found
            case CountTokens():
                return self.sizes
            case Unfold():
                return self.written
            case MakePlan():
                self.planned.append(question)
                return self.plans
            case GetObjectInfo(name):
                return await self.object_info(name)
            case GetScripts():
                return self.web
            case GetTemplate(name):
                return {"nodes": []} if name == "txt2img" else None
            case Free(unload_models, free_memory):
                self.freed.append((unload_models, free_memory))

    async def object_info(self, name: str | None) -> bytes:
        info = {"EmptyImage": {"name": "EmptyImage"}, "SaveImage": {"name": "SaveImage"}}
        return json.dumps(
            info if name is None else {name: info[name]} if name in info else {}
        ).encode()

    async def stats(self) -> Stats:
        return Stats(
            (
                DeviceStats(
                    "cpu",
                    "cpu",
                    None,
                    1000,
                    400,
                    controlnet_hits=7,
                    lora_merges=3,
                    model_evictions=2,
                ),
            ),
            worker_restarts=2,
        )


class Served:
    def __init__(self, client: httpx.AsyncClient, state: State) -> None:
        self.client, self.state = client, state
        self.runner: ScriptedRunner = state.runner  # type: ignore[assignment]

    async def submit(self, **body: Any) -> str:
        """Queues the graph; returns the job's id."""
        answer = await self.client.post("/prompt", json={"prompt": GRAPH, **body})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["prompt_id"])

    async def settled(self, condition: Any) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)

    async def finished(self, job_id: str) -> dict[str, Any]:
        """Waits for a job's history entry and returns it."""
        async with asyncio.timeout(5):
            while True:
                history = (await self.client.get(f"/history/{job_id}")).json()
                if history:
                    return dict(history[job_id])
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, limits: Limits | None = None, **options: Any
) -> AsyncIterator[Served]:
    """Runs a server on a separate data folder, assembled as `katz serve` does it. By default its
    runner has one job at a time.
    """
    folders = {name: folder / name for name in ("data", "input", "output")}
    settings = ServeOptions(**folders, limits=limits or Limits())
    settings = replace(settings, **{"jobs_at_once": 1, **options})
    store = JobStore.open(settings.data)
    state = assemble(settings, store, ScriptedRunner)  # type: ignore[arg-type]
    await state.jobs.start()
    transport = httpx.ASGITransport(build(state), raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            yield Served(client, state)
    finally:
        await state.jobs.close()
        await store.close()


def run(
    folder: Path,
    scenario: Callable[[Served], Awaitable[Any]],
    limits: Limits | None = None,
    **options: Any,
) -> Any:
    """Runs a scenario with a server and returns its result."""

    async def main() -> Any:
        async with serving(folder, limits, **options) as server:
            return await scenario(server)

    return asyncio.run(main())
