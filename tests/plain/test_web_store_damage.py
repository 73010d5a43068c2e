"""A damaged job store keeps readable records and counts lost ones; no loss is silent, and no
content is quoted.

Each line of `DAMAGES` is a way to damage a file. `KATZ_DAMAGES=1000` tries more.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from web_jobs import ended, graph, job

from katz_graph.core.errors import RunError
from katz_graph.web.jobs.checksums import tables
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.records import KEYS, SCHEMA, StoredFile
from katz_graph.web.jobs.store import FILE, JobStore

pytestmark = pytest.mark.defect(30)
PRIVATE = "a text that nobody else may read"
JOBS = 24
PAGE = 4096


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def zero_sector(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data)) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))


def zero_page(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) // PAGE) * PAGE
    data[at : at + PAGE] = bytes(PAGE)


def scramble(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    end = min(len(data), at + chance.randrange(1, 64))
    data[at:end] = chance.randbytes(end - at)


def cut_off(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def copy_page(data: bytearray, chance: random.Random) -> None:
    source, target = (chance.randrange(len(data) // PAGE) * PAGE for _ in range(2))
    data[target : target + PAGE] = data[source : source + PAGE]


def flip_many(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(2, 30)):
        flip(data, chance)


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip,
    zero_sector,
    zero_page,
    scramble,
    cut_off,
    copy_page,
    flip_many,
)


async def fill(store: JobStore) -> None:
    """Fills a store with jobs, some of them ended, and all other records."""
    for number in range(JOBS):
        prompt = graph(text=f"{PRIVATE} {number} " + "lorem ipsum " * (5 * number))
        made = job(f"job-{number}", float(number), number, prompt=prompt, client=f"c{number % 3}")
        await store.add(made, key=f"key-{number}", digest="d")
        await store.wrote(made.id, [StoredFile("temp", f"{number}.png", 7)])
        if number % 3:
            outputs = {"1": {"images": [{"filename": f"{PRIVATE} {number}.png", "type": "temp"}]}}
            await store.finish(ended(made, 2000.0 + number, outputs=outputs), [])
            await store.keep_report(made.id, b"report" * number)
    await store.set_flag("paused", True)


async def content(store: JobStore) -> dict[str, Job]:
    return {each.id: each for each in (*await store.unfinished(), *await store.history())}


def rest(file: Path) -> Mapping[str, list[Any]]:
    """Returns the rows of all tables except `jobs`."""
    with closing(sqlite3.connect(file)) as connection:
        return {
            table.name: sorted(
                connection.execute(f"select {', '.join(table.columns)} from {table.name}")
            )
            for table in tables(connection, KEYS)
            if table.name != "jobs"
        }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    store = JobStore.open(folder)
    asyncio.run(fill(store))
    asyncio.run(store.close())
    return folder / FILE


def opened(folder: Path) -> tuple[dict[str, Job], tuple[str, ...]]:
    """Opens a store as a server does, and reads all jobs."""
    store = JobStore.open(folder)
    try:
        return asyncio.run(content(store)), store.notes
    finally:
        asyncio.run(store.close())


def check(folder: Path, before: Mapping[str, Job], other: Mapping[str, list[Any]]) -> str:
    """Opens a damaged store; returns the outcome."""
    try:
        found, notes = opened(folder)
    except RunError as refused:
        assert "\n" not in str(refused) and PRIVATE not in str(refused) and FILE in str(refused)
        return "refused"
    lines = "\n".join(notes)
    assert PRIVATE not in lines and all(found[id] == before[id] for id in found)
    if len(found) == len(before) and rest(folder / FILE) == other:
        return "whole" if not notes else "told"
    assert notes, "something was lost in silence"
    if (counted := re.search(r"saved ([\d,]+) of ([\d,]+) jobs", lines)) is not None:
        saved, of = (int(number.replace(",", "")) for number in counted.groups())
        assert saved == len(found) and saved <= of <= len(before)
    else:
        assert "it is not new" in lines or "log" in lines or "saved " in lines
        assert not found or "log" in lines
    again, silent = opened(folder)
    assert again == found and not silent, "what was rescued is a sound store"
    return "rescued"


def test_no_damage_is_silent_or_quotes_a_prompt(whole: Path, tmp_path: Path) -> None:
    before, other = opened(whole.parent)[0], rest(whole)
    assert len(before) == JOBS
    data, outcomes = whole.read_bytes(), dict[str, int]()
    for seed in range(int(os.environ.get("KATZ_DAMAGES", 2 * len(DAMAGES)))):
        chance = random.Random(seed)
        damage = DAMAGES[seed % len(DAMAGES)]
        damaged = bytearray(data)
        damage(damaged, chance)
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / FILE).write_bytes(damaged)
        try:
            outcome = check(folder, before, other)
        except BaseException as error:
            error.add_note(f"{damage.__name__}, seed {seed}")
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(folder)
    print(outcomes)
    assert outcomes["rescued"] > outcomes.get("refused", 0)


def test_a_changed_letter_of_a_prompt_loses_that_job_and_is_reported(
    whole: Path, tmp_path: Path
) -> None:
    data = whole.read_bytes()
    assert data.count(f"{PRIVATE} 9 ".encode()) == 1
    (tmp_path / FILE).write_bytes(data.replace(f"{PRIVATE} 9 ".encode(), f"{PRIVATE} 8 ".encode()))
    found, (note,) = opened(tmp_path)
    assert "job-9" not in found and len(found) == JOBS - 1
    assert f"saved {JOBS - 1} of {JOBS} jobs" in note and "1 rows of jobs" in note
    damaged = [path for path in tmp_path.iterdir() if ".damaged-" in path.name]
    assert len(damaged) == 1 and damaged[0].name in note


def test_an_old_empty_file_is_reported_and_a_new_one_is_not(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    found, (note,) = opened(tmp_path)
    assert not found and "empty, though it is not new" in note
    assert opened(tmp_path / "new") == ({}, ())


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert opened(tmp_path) == ({}, ())
    (tmp_path / FILE).unlink()
    found, (note,) = opened(tmp_path)
    assert not found and "missing from a folder that had one" in note
    assert opened(tmp_path) == ({}, ())


def logged(folder: Path) -> None:
    """Makes a store as a killed server leaves it: the jobs are in the log."""
    source = folder / "lives"
    store = JobStore.open(source)
    try:
        for number in range(6):
            asyncio.run(store.add(job(f"job-{number}", order=number)))
        for path in source.glob(f"{FILE}*"):
            shutil.copy(path, folder / path.name)
    finally:
        asyncio.run(store.close())


@pytest.mark.parametrize("where", [17, 40, 56, 2000, -100], ids=str)
def test_a_damaged_log_is_reported(tmp_path: Path, where: int) -> None:
    logged(tmp_path)
    log = tmp_path / f"{FILE}-wal"
    data = bytearray(log.read_bytes())
    data[where] ^= 64
    log.write_bytes(data)
    found, notes = opened(tmp_path)
    assert len(found) < 6 and "log cannot be read" in notes[0]


def test_a_log_of_a_killed_server_is_taken_in_whole(tmp_path: Path) -> None:
    logged(tmp_path)
    found, notes = opened(tmp_path)
    assert len(found) == 6 and not notes


def test_rows_that_are_damaged_while_it_is_open_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = JobStore.open(tmp_path)
    asyncio.run(fill(store))
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("update jobs set prompt = ? where id = 'job-1'", (PRIVATE,))
        other.execute("update jobs set result = x'ff' where id = 'job-2'")
        other.commit()
    history = asyncio.run(store.history())
    asyncio.run(store.close())
    assert {each.id for each in history} == {
        f"job-{number}" for number in range(JOBS) if number % 3 and number not in (1, 2)
    }
    assert caplog.text.count("damaged and left out") == 2 and PRIVATE not in caplog.text


def earlier(file: Path, reports: bool) -> None:
    """Makes a store of version 1; the earliest had no reports."""
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            SCHEMA.replace(" origin text,", "")
            .replace(" checksum integer,", "")
            .replace(", checksum integer)", ")")
        )
        connection.execute(
            "insert into jobs (id, status, number, place, created, crashes, targets, extra, prompt)"
            " values ('old', 'pending', 1.0, 1, 1.0, 0, '[\"1\"]', '{}', '{}')"
        )
        if not reports:
            connection.execute("drop table reports")
        connection.execute("pragma user_version = 1")
        connection.commit()


@pytest.mark.parametrize("reports", [False, True])
def test_a_store_of_an_earlier_version_is_taken_over(tmp_path: Path, reports: bool) -> None:
    earlier(tmp_path / FILE, reports)
    found, notes = opened(tmp_path)
    assert list(found) == ["old"] and not notes


def test_turn_order_survives_a_restart(tmp_path: Path) -> None:
    store = JobStore.open(tmp_path)
    asyncio.run(store.add(replace(job("a"), origin="10.0.0.7")))
    asyncio.run(store.close())
    assert opened(tmp_path)[0]["a"].origin == "10.0.0.7"
