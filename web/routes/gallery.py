"""Serves `/katz/files`: users' files, newest first, the jobs that wrote them, and the trash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.web.files.listing import Entry, FolderIndex, pixels
from katz_graph.web.files.paths import NAME_BYTES, folder_of
from katz_graph.web.files.trash import restore, trash
from katz_graph.web.http.answers import FilePage, ListedFile, MovedFile, MovedFiles
from katz_graph.web.http.bodies import FilesBody
from katz_graph.web.http.reading import read_body
from katz_graph.web.http.responses import json_answer
from katz_graph.web.jobs.job import Job, workflow_id
from katz_graph.web.jobs.retention import shown_by
from katz_graph.web.routes.documented import answers, refusals, takes
from katz_graph.web.state import State

MAX_PAGE_FILES = 200  # files per page
AT_ONCE = 2  # concurrently read folders
JOBS = 2_000  # jobs searched for the writers of a page's files
MOVED = answers("the files that were moved", MovedFiles) | refusals(403, 409, 503, 507)
CLOCKS = 2.0  # maximum clock difference, in seconds, between jobs and the file system


def router(state: State) -> APIRouter:
    routes = APIRouter(prefix="/katz", tags=["files"])
    reading, moving = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)

    @routes.get("/files", responses=answers("a page of files", FilePage) | refusals())
    async def files(
        type: Literal["input", "output"] = "output",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE_FILES)] = 50,
        after: Annotated[
            str, Query(max_length=NAME_BYTES + 32, description="`next` of the previous page")
        ] = "",
    ) -> Response:
        """List files, newest first, without temporary ones."""
        folder = folder_of(state.folders, type)
        async with reading:
            index = state.listings[type]
            found, sizes = await asyncio.to_thread(_found, index, folder, limit, after)
        jobs: Sequence[Job] = ()
        if found and type == "output":
            jobs = await state.jobs.between(
                found[-1].modified - CLOCKS, found[0].modified + CLOCKS, JOBS
            )
        writers = _writers(jobs)
        page = FilePage(
            tuple(
                ListedFile(
                    entry.name,
                    type,
                    entry.bytes,
                    entry.modified,
                    size and size[0],
                    size and size[1],
                    *_writer(entry, writers.get(entry.name, ())),
                )
                for entry, size in zip(found, sizes, strict=False)
            ),
            found[limit - 1].cursor if len(found) > limit else None,
        )
        return json_answer(asdict(page))

    @routes.post("/files/trash", openapi_extra=takes(FilesBody), responses=MOVED)
    async def discard(request: Request) -> Response:
        """Move files to the trash, from which they can be restored."""
        return await moved(request, trash)

    @routes.post("/files/restore", openapi_extra=takes(FilesBody), responses=MOVED)
    async def bring_back(request: Request) -> Response:
        """Restore files from the trash, by their names in the trash."""
        return await moved(request, restore)

    async def moved(request: Request, move: Callable[[Path, str], str | None]) -> Response:
        body = await read_body(request, FilesBody)

        folder = folder_of(state.folders, body.type)

        def all_moved() -> tuple[MovedFile, ...]:
            done = ((name, move(folder, name)) for name in body.names)
            return tuple(MovedFile(name, now) for name, now in done if now is not None)

        async with moving:
            found = await asyncio.to_thread(all_moved)
        return json_answer(asdict(MovedFiles(found)))

    return routes


def _found(
    index: FolderIndex, folder: Path, limit: int, after: str
) -> tuple[list[Entry], list[tuple[int, int] | None]]:
    """Returns the files of a page and one more, and the sizes in pixels of the page's files."""
    found = index.newest(limit + 1, after)
    return found, [pixels(folder / entry.name) for entry in found[:limit]]


def _writers(jobs: Sequence[Job]) -> Mapping[str, Sequence[tuple[Job, str]]]:
    """Maps each file of the output folder to the jobs that show it, each with its node."""
    found: dict[str, list[tuple[Job, str]]] = {}
    for job in jobs:
        for node, file in shown_by(job.result) if job.result is not None else ():
            if file.place == "output":
                found.setdefault(file.path, []).append((job, node))
    return found


def _writer(
    entry: Entry, jobs: Sequence[tuple[Job, str]]
) -> tuple[str | None, str | None, str | None]:
    """Returns the job that ran when the file was written, its workflow and its node. Other jobs
    show the file from the cache.
    """
    ran = (
        (job.id, workflow_id(job), node)
        for job, node in jobs
        if (job.started or 0) - CLOCKS <= entry.modified <= (job.ended or 0) + CLOCKS
    )
    return next(ran, (None, None, None))
