"""No route of `/openapi.json` answers valid requests or wrong bodies with a server error."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from web_server import ScriptedRunner

from katz_graph.files.folders import Folders
from katz_graph.packs import load_registry
from katz_graph.web.app import build
from katz_graph.web.http.connections import HttpServer, listen, url
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.store import JobStore
from katz_graph.web.options import ServeOptions
from katz_graph.web.runner.checking import check_prompt
from katz_graph.web.runner_client.messages import Check, Question
from katz_graph.web.serve import assemble

EXAMPLES = 3  # per route and mode; a search with 8 found nothing more


class CheckingRunner(ScriptedRunner):
    """Checks prompts like the real runner. Jobs end as soon as they start."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._folders = Folders(paths=False)
        self._registry, _ = load_registry((), self._folders)
        self._limits = arguments[0].limits

    async def run(self, job: Job, seconds_after: object = None) -> None:
        await super().run(job)
        self.end(job.id)

    async def ask(self, question: Question[Any]) -> Any:
        if not isinstance(question, Check):
            return await super().ask(question)
        return check_prompt(
            question.document, question.targets, self._registry, self._folders, self._limits
        )


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Runs a server in a thread."""
    listening = listen("127.0.0.1", 0)
    folders = {name: tmp_path / name for name in ("data", "input", "output")}
    for folder in folders.values():
        folder.mkdir()

    async def serve() -> None:
        store = JobStore.open(folders["data"])
        state = assemble(replace(ServeOptions(), **folders), store, CheckingRunner)  # type: ignore[arg-type]
        await state.jobs.start()
        servers.append(
            (asyncio.get_running_loop(), HttpServer(build(state), state.options.limits.connections))
        )
        await servers[0][1].serve(sockets=[listening])
        await state.jobs.close()
        await store.close()

    servers: list[tuple[asyncio.AbstractEventLoop, HttpServer]] = []
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    yield url("127.0.0.1", listening.getsockname()[1])
    loop, server = servers[0]
    loop.call_soon_threadsafe(server.end)
    thread.join(20)
    listening.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_a_server_s_error(address: str, tmp_path: Path, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", wait_for_schema=10)
    before = set(tmp_path.iterdir())
    statuses: Counter[int] = Counter()
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # wrong parameters are tested by hand, because generating them takes most of a minute
        asked += 1

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.seed(5)
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def never_fails(case: schemathesis.Case) -> None:
            answer = case.call()
            statuses[answer.status_code] += 1
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)

        try:
            never_fails()
        except hypothesis.errors.Unsatisfiable:
            assert mode is GenerationMode.NEGATIVE  # a form, in which every text is valid
    assert asked > (30 if mode is GenerationMode.POSITIVE else 8)
    assert statuses[200 if mode is GenerationMode.POSITIVE else 400] > asked, statuses
    assert set(tmp_path.iterdir()) == before
