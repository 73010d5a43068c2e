"""Serves `/models`, `/embeddings` and `/experiment/models`: the names of model files."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.core.errors import InputError
from katz_graph.files.folders import PRESENT, SAME_AS, Folders
from katz_graph.files.picture_kinds import PICTURE_ENDINGS
from katz_graph.web.files.paths import file_state
from katz_graph.web.http.file_responses import stored_file
from katz_graph.web.http.responses import Refusal, json_answer, json_text
from katz_graph.web.routes.documented import answers, refusals
from katz_graph.web.state import State

PRESENT_NAMES = {kind: name for name, kind in PRESENT.items()}
LIST_MAX_AGE_S = 10.0  # maximum age of a list of files
PREVIEW_ENDINGS = (*(f".preview{ending}" for ending in PICTURE_ENDINGS), *PICTURE_ENDINGS)


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["models"])
    folders = state.folders
    lists = FileLists(folders)

    @routes.get("/embeddings", responses=answers("names without endings") | refusals())
    async def embeddings() -> Response:
        names = await asyncio.to_thread(folders.choices, "embeddings")
        return json_answer([name.rpartition(".")[0] or name for name in names])

    @routes.get("/models", responses=answers("kinds of models") | refusals())
    async def kinds() -> Response:
        return json_answer(await asyncio.to_thread(_kinds, folders))

    @routes.get("/models/{folder}", responses=answers("names of one kind") | refusals(404))
    async def names(folder: str) -> Response:
        return json_answer(
            await asyncio.to_thread(lambda: list(folders.choices(known_kind(folders, folder))))
        )

    @routes.get(
        "/experiment/models",
        responses=answers("kinds of models and their folders' names") | refusals(),
    )
    async def kinds_with_folders() -> Response:
        return json_answer(
            await asyncio.to_thread(lambda: [_described(folders, kind) for kind in _kinds(folders)])
        )

    @routes.get(
        "/experiment/models/{folder}", responses=answers("files of one kind") | refusals(404)
    )
    async def files(folder: str) -> Response:
        content = await asyncio.to_thread(lambda: lists.of(known_kind(folders, folder)))
        return Response(content, media_type="application/json")

    @routes.get(
        "/experiment/models/preview/{folder}/{index}/{name:path}",
        response_class=Response,
        responses=refusals(404),
    )
    async def preview(request: Request, folder: str, index: int, name: str) -> Response:
        return await stored_file(
            request, await asyncio.to_thread(_picture_of, folders, folder, name)
        )

    return routes


@dataclass(frozen=True, slots=True)
class _CachedList:
    files: Mapping[str, Path]
    taken: float
    content: bytes


class FileLists:
    """Serializes the files of each kind of models as JSON. Caches a list while its folders are
    unchanged, but only for LIST_MAX_AGE_S, because files may also grow in place.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._cache: dict[str, _CachedList] = {}

    def of(self, kind: str) -> bytes:
        files, now = self._folders.files(kind), time.monotonic()
        cached = self._cache.get(kind)
        if cached is None or cached.files is not files or now - cached.taken > LIST_MAX_AGE_S:
            content = json_text(list(_described_files(self._folders, kind, files))).encode()
            cached = self._cache[kind] = _CachedList(files, now, content)
        return cached.content


def known_kind(folders: Folders, name: str) -> str:
    """Returns a kind of models by its current or an older name. Raises Refusal 404 for an unknown
    kind.
    """
    kind = SAME_AS.get(name, name)
    if kind not in folders.kinds():
        raise Refusal(404, "no such model type")
    return kind


def _kinds(folders: Folders) -> list[str]:
    return [PRESENT_NAMES.get(kind, kind) for kind in folders.kinds()]


def _described(folders: Folders, kind: str) -> dict[str, Any]:
    return {"name": kind, "folders": [path.name for path in folders.searched(kind)]}


def _described_files(
    folders: Folders, kind: str, files: Mapping[str, Path]
) -> Iterator[dict[str, Any]]:
    searched = folders.searched(kind)
    known: dict[Path, tuple[int, Set[str]]] = {}  # by folder: index, models with a picture
    for name, path in sorted(files.items()):
        try:
            state = path.stat()
        except OSError:  # deleted after it was listed
            continue
        if (folder := path.parent) not in known:
            known[folder] = _index_of(folder, searched), _pictured_in(folder)
        index, pictured = known[folder]
        yield {
            "name": name,
            "pathIndex": index,
            "modified": state.st_mtime,
            "created": state.st_ctime,
            "size": state.st_size,
            "has_preview": path.stem in pictured,
        }


def _index_of(folder: Path, searched: Sequence[Path]) -> int:
    return next((index for index, root in enumerate(searched) if folder.is_relative_to(root)), 0)


def _pictured_in(folder: Path) -> Set[str]:
    """Returns the names, without endings, of models with a picture in their folder."""
    try:
        with os.scandir(folder) as entries:
            pictures = [
                entry.name
                for entry in entries
                if entry.name.endswith(PREVIEW_ENDINGS) and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return frozenset()
    return {
        name.removesuffix(ending)
        for name in pictures
        for ending in PREVIEW_ENDINGS
        if name.endswith(ending)
    }


def _picture_of(folders: Folders, kind: str, name: str) -> Path:
    try:
        model = folders.resolve(known_kind(folders, kind), name)
    except InputError as error:
        raise Refusal(404, str(error)) from None
    for ending in PREVIEW_ENDINGS:
        path = model.with_name(model.stem + ending)
        if file_state(path) is not None:
            return path
    raise Refusal(404, "no picture next to the model's file")
