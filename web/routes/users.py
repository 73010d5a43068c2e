"""Serves `/users`, `/settings`, `/userdata`: the settings and files of users."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.web.files.paths import NAME_BYTES
from katz_graph.web.files.users import LONGEST_NAME, UserFileEntry, UserFiles, Users
from katz_graph.web.http.answers import OthersThere
from katz_graph.web.http.bodies import Body, PresenceBody
from katz_graph.web.http.file_responses import stored_file
from katz_graph.web.http.preconditions import Precondition, tag_of
from katz_graph.web.http.reading import announced_bytes, read_body, read_json
from katz_graph.web.http.responses import Refusal, json_answer
from katz_graph.web.live.presence import Presence
from katz_graph.web.routes.documented import answers, refusals, takes
from katz_graph.web.state import State

MOVE = "move"
YES, NO = "true", "false"  # values of flags; editors also send `undefined`
ANY_JSON: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}
}
ANY_OBJECT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}
ANY_BYTES: dict[str, Any] = {
    "requestBody": {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    }
}

Name = Annotated[str, Query(max_length=NAME_BYTES)]
Flag = Annotated[str, Query(max_length=20)]


class NewUser(Body):
    username: str = Field(min_length=1, max_length=LONGEST_NAME)


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["users"])
    accounts = Users(
        state.data / "users", state.options.multi_user, state.options.limits.user_bytes
    )

    presence = Presence(time.monotonic)

    async def files_of(request: Request) -> UserFiles:
        return await asyncio.to_thread(accounts.files, request.headers.get("comfy-user"))

    @routes.get("/users", responses=answers("the users, if the server has several") | refusals())
    async def users() -> Response:
        if not accounts.several:
            return json_answer({"storage": "server", "migrated": True})
        return json_answer({"storage": "server", "users": await asyncio.to_thread(accounts.names)})

    @routes.post(
        "/users", openapi_extra=takes(NewUser), responses=answers("the new user's id") | refusals()
    )
    async def add_user(request: Request) -> Response:
        body = await read_body(request, NewUser)
        if not accounts.several:
            raise Refusal(400, "this server has one user; start it with --multi-user for more")
        if not body.username.isprintable() or not body.username.strip():
            raise Refusal(400, "username: expected printable characters")
        return json_answer(await accounts.add(body.username))

    @routes.post(
        "/katz/presence",
        openapi_extra=takes(PresenceBody),
        responses=answers("the other pages that have these files open", OthersThere) | refusals(),
    )
    async def others(request: Request) -> Response:
        """Report the files that a page has open: every 15 seconds, and none when it closes."""
        body = await read_body(request, PresenceBody)
        await files_of(request)  # refuses unknown users
        user = request.headers.get("comfy-user", "") if accounts.several else ""
        return json_answer({"files": presence.update(user, body.page, body.name, body.files)})

    @routes.get("/settings", responses=answers("all settings") | refusals())
    async def settings(request: Request) -> Response:
        return json_answer(await accounts.settings(await files_of(request)))

    @routes.post("/settings", openapi_extra=ANY_OBJECT, responses=answers("done") | refusals(507))
    async def set_several(request: Request) -> Response:
        files = await files_of(request)
        values = await read_json(request)
        if not isinstance(values, dict):
            raise Refusal(400, "the body is not a JSON object of settings")
        await accounts.set(files, values)
        return Response()

    @routes.get("/settings/{id:path}", responses=answers("the setting, or null") | refusals())
    async def setting(id: str, request: Request) -> Response:
        return json_answer((await accounts.settings(await files_of(request))).get(id))

    @routes.post(
        "/settings/{id:path}", openapi_extra=ANY_JSON, responses=answers("done") | refusals(507)
    )
    async def set_one(id: str, request: Request) -> Response:
        if not 0 < len(id) <= NAME_BYTES:
            raise Refusal(400, f"a setting's name must have 1 to {NAME_BYTES} characters")
        files = await files_of(request)
        await accounts.set(files, {id: await read_json(request)})
        return Response()

    @routes.get("/userdata", responses=answers("files in a folder") | refusals(404))
    async def listing(
        request: Request, dir: Name, recurse: Flag = "", full_info: Flag = "", split: Flag = ""
    ) -> Response:
        entries = await asyncio.to_thread(
            (await files_of(request)).entries, _some(dir), recurse == YES
        )
        if entries is None:
            raise Refusal(404, "folder not found")
        found = [entry for entry in entries if not entry.folder]
        if full_info == YES:
            return json_answer([_entry_json(entry) for entry in found])
        return json_answer(
            [[entry.name, *entry.name.split("/")] for entry in found]
            if split == YES
            else [entry.name for entry in found]
        )

    @routes.get("/v2/userdata", responses=answers("files and folders in a folder") | refusals(404))
    async def everything(request: Request, path: Name = "") -> Response:
        entries = await asyncio.to_thread((await files_of(request)).entries, path, True)
        if entries is None:
            raise Refusal(404, "folder not found")
        below = f"{path.strip('/')}/" if path.strip("/") else ""
        return json_answer(
            [_placed(entry, below) for entry in sorted(entries, key=lambda entry: not entry.folder)]
        )

    @routes.get("/userdata/{file:path}", response_class=Response, responses=refusals(404, 416))
    async def stored(file: str, request: Request) -> Response:
        files = await files_of(request)
        return await stored_file(request, await asyncio.to_thread(files.file, file))

    @routes.post(
        "/userdata/{file:path}",
        openapi_extra=ANY_BYTES,
        responses=answers("the file's name") | refusals(404, 409, 412, 507),
    )
    async def store(
        file: str, request: Request, overwrite: Flag = YES, full_info: Flag = ""
    ) -> Response:
        """Store a file, or rename one. `If-Match` with an ETag replaces only this version; `If-
        None-Match: *` stores only a new file.
        """
        files, check = await files_of(request), Precondition.of(request).check
        moved = _move(request)
        if moved is not None:
            saved = await accounts.move(files, *moved, overwrite != NO, check)
        else:
            saved = await accounts.store(
                files, file, request.stream(), overwrite != NO, check, announced_bytes(request)
            )
        return json_answer(
            _entry_json(saved.entry) if full_info == YES else saved.entry.name,
            headers={"ETag": tag_of(saved.state)},
        )

    @routes.delete(
        "/userdata/{file:path}",
        status_code=204,
        response_class=Response,
        responses=refusals(404, 412),
    )
    async def delete(file: str, request: Request) -> Response:
        check = Precondition.of(request).check
        await accounts.delete(await files_of(request), file, check)
        return Response(status_code=204)

    return routes


def _some(folder: str) -> str:
    if not folder:
        raise Refusal(400, "dir is empty: expected a folder")
    return folder


def _move(request: Request) -> tuple[str, str] | None:
    """Returns the old and new name in `/userdata/{file}/move/{to}`. Reads the raw path because only
    it preserves a '/' sent as %2F.
    """
    raw = request.scope.get("raw_path") or request.url.path.encode()
    parts = raw.decode("latin-1").partition("/userdata/")[2].split("/")
    return (unquote(parts[0]), unquote(parts[2])) if len(parts) == 3 and parts[1] == MOVE else None


def _entry_json(entry: UserFileEntry) -> dict[str, Any]:
    """Describes a file. Times are in milliseconds, as in ComfyUI."""
    return {
        "path": entry.name,
        "size": entry.size,
        "modified": int(entry.modified * 1e3),
        "created": int(entry.created * 1e3),
    }


def _placed(entry: UserFileEntry, below: str) -> dict[str, Any]:
    placed = {
        "name": entry.name.rpartition("/")[2],
        "path": below + entry.name,
        "type": "directory" if entry.folder else "file",
    }
    return placed if entry.folder else {**placed, "size": entry.size, "modified": entry.modified}
