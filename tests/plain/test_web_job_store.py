"""The job store keeps every confirmed record, whatever happens to process, disk and file."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from web_jobs import ended, graph, job

from katz_graph.core.errors import RunError
from katz_graph.web.events import JobError
from katz_graph.web.jobs.job import Job, result_as_data
from katz_graph.web.jobs.records import ENDED, StoredFile, as_text
from katz_graph.web.jobs.retention import drop_unfinished
from katz_graph.web.jobs.store import FILE, JobStore, open_folder
from katz_graph.web.jobs.writer import Writer

KILLS = 8


def with_store(folder: Path, use: Callable[[JobStore], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        store = JobStore.open(folder)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def add_finished(store: JobStore, count: int, **given: Any) -> None:
    jobs = [
        job(f"job-{index}", index, index, created=1000.0 + index, **given) for index in range(count)
    ]
    await asyncio.gather(*(store.add(each) for each in jobs))
    await asyncio.gather(*(store.finish(ended(each, 2000.0 + each.order), []) for each in jobs))


def test_a_job_comes_back_as_it_was(tmp_path: Path) -> None:
    prompt = graph(
        seed=2**64 - 1,
        whole=1,
        exact=1.0,
        flag=True,
        text="ä\0 \u2028",
        broken=math.inf,
        nothing=None,
        link=["2", 0],
    )
    submitted = job(
        "a",
        2.5,
        7,
        prompt=prompt,
        client="ann",
        extra={"extra_pnginfo": {"workflow": {"id": "w"}}},
        deadline=5.0,
        predicted=1.5,
    )
    outputs = {"1": {"images": [{"filename": "a.png", "score": math.nan}]}}
    finished = ended(
        submitted, error=None, outputs=outputs, executed=("1",), seconds={"total": 1.0}
    )

    async def write(store: JobStore) -> None:
        await store.add(submitted)
        assert await store.job("a") == submitted
        await store.finish(finished, [])

    with_store(tmp_path, write)
    read = with_store(tmp_path, lambda store: store.job("a"))
    assert read.prompt == prompt and [
        type(value) for value in read.prompt["1"]["inputs"].values()
    ] == [type(value) for value in prompt["1"]["inputs"].values()]
    assert (read.status, read.ended, read.number, read.order, read.client) == (
        "completed",
        1010.0,
        2.5,
        7,
        "ann",
    )
    assert math.isnan(read.result.outputs["1"]["images"][0]["score"]) and read.result.executed == (
        "1",
    )


def test_the_stored_form_of_a_result_does_not_change() -> None:
    text = (
        '{"job":"a","status":"failed","at":2.5,"error":{"kind":"RunError","message":"m","node":"3","node_type":"K",'
        '"display":"2"},"outputs":{"9":{"images":[{"filename":"a.png"}],"n":[NaN]}},"meta":{"9":{"node_id":"9",'
        '"parent_node":null}},"executed":["1","2"],"seconds":{"total":1.0},"predicted":3.5,"approximations":["stale"],'
        '"cached":["4"],"kind":"ended"}'
    )
    read = replace(job("a"), result=ENDED.validate_json(text))
    assert read.result is not None and read.result.error == JobError("RunError", "m", "3", "K", "2")
    assert as_text(result_as_data(read)) == text


def test_a_job_has_one_result_and_the_first_one_stays(tmp_path: Path) -> None:
    async def use(store: JobStore) -> None:
        await store.add(job("a"))
        assert await store.finish(ended(job("a")), [])
        assert not await store.finish(
            ended(job("a"), status="failed", error=JobError("RunError", "again")), []
        )
        await store.begin("a", 1.0)
        await store.retry("a", 1)
        found = await store.job("a")
        assert found is not None and (found.status, found.crashes) == ("completed", 0)
        assert await store.unfinished() == []

    with_store(tmp_path, use)


def test_an_operation_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    async def use(store: JobStore) -> None:
        jobs = [
            job(f"{index}", prompt=graph(text="\ud800") if index == 5 else graph())
            for index in range(10)
        ]
        answers = await asyncio.gather(*(store.add(each) for each in jobs), return_exceptions=True)
        assert [index for index, answer in enumerate(answers) if isinstance(answer, Exception)] == [
            5
        ]
        assert {each.id for each in await store.unfinished()} == {
            "0",
            "1",
            "2",
            "3",
            "4",
            "6",
            "7",
            "8",
            "9",
        }

    with_store(tmp_path, use)


def test_a_transaction_that_cannot_even_be_undone_does_not_end_the_writing() -> None:
    class Failing(sqlite3.Connection):
        faults = 2

        def rollback(self) -> None:
            if self.faults > 0:
                self.faults -= 1
                raise sqlite3.OperationalError("disk I/O error")
            super().rollback()

    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("release one")  # so that the writer's savepoint fails

    connection = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, factory=Failing
    )
    connection.execute("create table t (a)")
    writer = Writer(connection)
    for operation in (broken, lambda connection: connection.execute("insert into t values (1)")):
        with pytest.raises(sqlite3.Error):
            writer.ask(operation).result(5)
    with suppress(sqlite3.Error):  # finds the transaction open, and rolls it back
        writer.ask(lambda connection: None).result(5)
    writer.ask(lambda connection: connection.execute("insert into t values (2)")).result(5)
    assert writer.ask(lambda connection: connection.execute("select a from t").fetchall()).result(
        5
    ) == [(2,)]
    writer.close()


def test_an_idempotency_key_belongs_to_one_client_and_one_body(tmp_path: Path) -> None:
    async def use(store: JobStore) -> None:
        first = await store.add(job("a", client="ann"), "key", "body")
        assert first.job == job("a", client="ann") and not first.repeated
        again = await store.add(job("b", client="ann"), "key", "body")
        assert again.job is not None and (again.job.id, again.repeated) == ("a", True)
        assert (await store.add(job("c", client="ann"), "key", "another body")).taken == "key"
        other = await store.add(job("d", client="bob"), "key", "another body")
        assert other.job is not None and other.job.id == "d"
        assert (await store.add(job("a"))).taken == "id"
        await store.finish(ended(job("a")), [])
        await store.forget(["a"])
        assert (await store.add(job("e", client="ann"), "key", "body")).taken == "forgotten", (
            "a retry must not paint it again"
        )
        await store.forget_keys(2000.0)
        assert (await store.add(job("e", client="ann"), "key", "body")).job is not None

    with_store(tmp_path, use)


def test_history_in_pages(tmp_path: Path) -> None:
    async def use(store: JobStore) -> None:
        await add_finished(store, 10)
        await store.add(job("waits"))

        async def names(count: int | None, first: int) -> list[str]:
            return [each.id.removeprefix("job-") for each in await store.history(count, first)]

        assert await names(None, 0) == list("0123456789")
        assert await names(3, 2) == list("234")
        assert await names(100, 8) == list("89")
        assert await names(3, 10**30) == []
        assert await names(0, 0) == []

    with_store(tmp_path, use)


def test_jobs_are_listed_by_status_workflow_and_duration(tmp_path: Path) -> None:
    async def use(store: JobStore) -> None:
        document = {"extra_pnginfo": {"workflow": {"id": "w", "nodes": list(range(1000))}}}
        for index, seconds in enumerate((3.0, 1.0, 2.0)):
            each = job(
                f"{index}", created=1000.0 + index, started=1100.0, extra=document if index else {}
            )
            await store.add(each)
            await store.finish(
                ended(each, 1100.0 + seconds, "failed" if index == 2 else "completed"), []
            )
        await store.add(job("waits", created=1003.0))
        found, total = await store.listed((), None, "created_at", True, 2, 1)
        assert ([each.id for each in found], total) == (["2", "1"], 4)
        assert found[0].prompt == {} and found[0].extra == {
            "extra_pnginfo": {"workflow": {"id": "w"}}
        }
        found, total = await store.listed(
            ("completed", "failed"), None, "execution_duration", False, None, 0
        )
        assert ([each.id for each in found], total) == (["1", "2", "0"], 3)
        found, total = await store.listed(("completed",), "w", "created_at", False, 10, 0)
        assert ([each.id for each in found], total) == (["1"], 1)
        assert await store.listed(("cancelled",), None, "created_at", True, 10**30, 10**30) == (
            [],
            0,
        )

    with_store(tmp_path, use)


def test_a_file_that_another_job_shows_is_not_given_up(tmp_path: Path) -> None:
    shared, own = StoredFile("temp", "shared.png", 10), StoredFile("temp", "own.png", 5)

    async def use(store: JobStore) -> None:
        for id, files in (("a", [shared, own]), ("b", [shared])):
            await store.add(job(id))
            await store.wrote(id, [StoredFile("output", f"{id}.png")])
            await store.finish(ended(job(id)), files)
        await store.add(job("waits"))
        assert await store.oversized(24) == ["a"], "15 bytes of a besides 10 of b"
        assert await store.oversized(25) == []
        assert await store.forget(["a", "waits", "nobody"]) == [own]
        assert await store.forget(None) == [shared]
        assert [each.id for each in await store.unfinished()] == ["waits"]

    with_store(tmp_path, use)


def test_forgotten_jobs_give_their_room_back(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: add_finished(store, 300, prompt=graph(text="x" * 8000)))
    assert (tmp_path / FILE).stat().st_size > 2_000_000

    async def forget(store: JobStore) -> None:
        await store.forget(None)
        await store.shrink()

    with_store(tmp_path, forget)
    assert (tmp_path / FILE).stat().st_size < 200_000


def test_a_second_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("katz_graph.web.jobs.store.PATIENCE", 0.05)

    async def use(store: JobStore) -> None:
        with pytest.raises(
            RunError, match=r"another katz serve uses this data folder; .*--data"
        ) as raised:
            JobStore.open(tmp_path)
        assert "\n" not in str(raised.value)

    with_store(tmp_path, use)
    with_store(tmp_path, lambda store: store.unfinished())


def test_the_runner_of_a_killed_server_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    monkeypatch.setattr("katz_graph.web.jobs.store.RUNNER_PATIENCE", 0.05)
    with (
        FileLock(tmp_path / "runner.lock"),
        pytest.raises(RunError, match="runner of an earlier katz serve still runs"),
    ):
        JobStore.open(tmp_path)
    with_store(tmp_path, lambda store: store.unfinished())


@pytest.mark.parametrize(
    "content",
    [b"no database at all, but long enough to be one" * 100, b"SQLite format 3\0" + bytes(4096)],
)
def test_a_damaged_file_is_left_as_it_is_and_named_in_one_line(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(
        RunError, match=rf"{FILE}: the job store is damaged .*move it away"
    ) as raised:
        JobStore.open(tmp_path)
    assert "\n" not in str(raised.value)
    assert (tmp_path / FILE).read_bytes() == content


def test_a_page_that_is_damaged_while_it_is_open_is_an_error_in_one_line(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: add_finished(store, 200, prompt=graph(text="x" * 3000)))
    size = (tmp_path / FILE).stat().st_size

    async def use(store: JobStore) -> None:
        with (tmp_path / FILE).open("r+b") as file:
            file.seek(4096 * 2)
            file.write(os.urandom(size - 4096 * 2))
        with pytest.raises(RunError, match="damaged"):
            await store.history()

    with_store(tmp_path, use)


def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: store.add(job("a")))
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(
        RunError,
        match=r"another version of Katz Graph, or damaged \(schema version 99, expected 2\)",
    ):
        JobStore.open(tmp_path)


def test_a_full_disk_refuses_one_job_and_loses_none(tmp_path: Path) -> None:
    async def run() -> None:
        opened = open_folder(tmp_path)
        (pages,) = opened.writing.execute("pragma page_count").fetchone()
        opened.writing.execute(f"pragma max_page_count = {pages + 20}")
        store = JobStore(opened)
        accepted = []
        with pytest.raises(RunError, match="the disk is full"):
            for index in range(100):
                await store.add(job(f"{index}", prompt=graph(text="x" * 4000)))
                accepted.append(f"{index}")
        assert sorted(each.id for each in await store.unfinished()) == sorted(accepted) and accepted
        opened.writing.execute(f"pragma max_page_count = {pages + 1000}")
        assert (await store.add(job("later", prompt=graph(text="y" * 4000)))).job is not None, (
            "room again"
        )
        await store.close()

    asyncio.run(run())


def test_prompts_are_only_for_the_user_of_the_folder(tmp_path: Path) -> None:
    with_store(tmp_path, lambda store: store.add(job("a")))
    assert {
        path.name: path.stat().st_mode & 0o077
        for path in tmp_path.iterdir()
        if path.name.startswith(FILE)
    } == {FILE: 0}


def work_until_killed(folder: Path, log: int, first: int) -> None:
    """Until killed, adds jobs, finishes most and logs each once stored."""

    async def one(store: JobStore, index: int) -> None:
        id = f"{first}-{index}"
        await store.add(
            job(id, prompt=graph(text="x" * random.randrange(6000))), f"key-{id}", "body"
        )
        os.write(log, json.dumps(["added", id]).encode() + b"\n")
        if index % 5:
            await store.begin(id, 1.0)
            await store.wrote(id, [StoredFile("output", f"{id}.png")])
            if await store.finish(ended(job(id), outputs={"1": {"text": [id]}}), []):
                os.write(log, json.dumps(["finished", id]).encode() + b"\n")

    async def run() -> None:
        store = JobStore.open(folder)
        index = 0
        while True:
            await asyncio.gather(*(one(store, index + each) for each in range(20)))
            index += 20

    asyncio.run(run())


def crash(folder: Path, kills: int) -> tuple[list[str], list[str], list[Job], list[Job]]:
    """Returns the ids that killed processes logged as added and as finished, and the store's
    waiting and finished jobs.
    """
    context = multiprocessing.get_context("fork")
    log = folder / "log"
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for kill in range(kills):
            process = context.Process(target=work_until_killed, args=(folder, descriptor, kill))
            process.start()
            size, busy_until = log.stat().st_size + random.randrange(4_000), time.monotonic() + 5.0
            while log.stat().st_size <= size and time.monotonic() < busy_until:
                time.sleep(random.uniform(0.0, 0.004))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            assert process.exitcode == -signal.SIGKILL
    finally:
        os.close(descriptor)
    said = [json.loads(line) for line in log.read_text().splitlines()]

    async def read(store: JobStore) -> tuple[list[Job], list[Job]]:
        return await store.unfinished(), await store.history()

    waiting, finished = with_store(folder, read)
    return (
        [id for what, id in said if what == "added"],
        [id for what, id in said if what == "finished"],
        waiting,
        finished,
    )


def test_accepted_jobs_survive_kills_at_random_times(tmp_path: Path) -> None:
    accepted, done, waiting, finished = crash(tmp_path, KILLS)
    assert len(accepted) > 100 and len(done) > 50, "the processes lived long enough to do something"
    there = [each.id for each in (*waiting, *finished)]
    assert len(there) == len(set(there)) and set(accepted) <= set(there)
    assert set(done) <= {each.id for each in finished}
    assert all(
        each.result is not None and each.result.outputs == {"1": {"text": [each.id]}}
        for each in finished
    )


def test_only_abandoned_files_count_as_leftovers_of_a_killed_process(tmp_path: Path) -> None:
    folder = tmp_path / "output" / "a"
    folder.mkdir(parents=True)
    name = f".{'0a' * 16}.tmp"
    for path in (folder / name, folder / f"{name}x", folder / "x.tmp", tmp_path / name):
        path.write_bytes(b"half")
    drop_unfinished([tmp_path / "output", tmp_path / "none"], time.time() + 60)
    assert (folder / name).exists()
    drop_unfinished([tmp_path / "output", tmp_path / "none"], time.time() + 2 * 3600)
    assert {path.name for path in folder.iterdir()} == {f"{name}x", "x.tmp"}
    assert (tmp_path / name).exists()
