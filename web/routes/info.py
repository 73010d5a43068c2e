"""Serves node types, devices and features, and routes of ComfyUI's front end that are always empty
here.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import platform
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from katz_graph.web.files.paths import Place
from katz_graph.web.http.answers import ListedPack, PackList
from katz_graph.web.http.preconditions import is_known
from katz_graph.web.http.responses import Refusal, json_answer
from katz_graph.web.live.comfy_channel import features
from katz_graph.web.routes.documented import answers, refusals
from katz_graph.web.runner_client.facts import DeviceStats
from katz_graph.web.runner_client.manager import Runner
from katz_graph.web.runner_client.messages import GetObjectInfo, GetPacks
from katz_graph.web.state import State

CONVENTION = "0.33.0"  # the ComfyUI release whose protocol is implemented
FRESH = 1.0  # seconds that lists may lack new files; asking the runner takes 20 ms


@dataclass(slots=True)
class _NodeTypes:
    """Caches the JSON of all node types with its digest and compressed form, which are expensive to
    compute. `life` is the runner's `restarts` when it answered at `asked`.
    """

    plain: bytes = b""
    zipped: bytes = b""
    tag: str = ""
    life: int = -1
    asked: float = 0.0

    async def renew(self, runner: Runner) -> None:
        """Asks the runner, unless the current runner answered in the last FRESH seconds."""
        life, now = runner.restarts, time.monotonic()
        if life == self.life and now - self.asked < FRESH:
            return
        plain = await runner.ask(GetObjectInfo())
        if plain != self.plain:
            zipped = await asyncio.to_thread(gzip.compress, plain, 6)
            self.plain = plain
            self.zipped = zipped
            self.tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
        self.life, self.asked = life, now

    def answer(self, request: Request) -> Response:
        headers = {"ETag": self.tag, "Vary": "Accept-Encoding", "Cache-Control": "no-cache"}
        if is_known(request, self.tag):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                self.zipped,
                headers=headers | {"Content-Encoding": "gzip"},
                media_type="application/json",
            )
        return Response(self.plain, headers=headers, media_type="application/json")


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["info"])
    types = _NodeTypes()

    @routes.get("/object_info", responses=answers("all node types") | refusals(503))
    async def object_info(request: Request) -> Response:
        await types.renew(state.runner)
        return types.answer(request)

    @routes.get(
        "/object_info/{name:path}",
        responses=answers("one node type by its name, or an empty object") | refusals(503),
    )
    async def node_info(name: str) -> Response:
        return Response(await state.runner.ask(GetObjectInfo(name)), media_type="application/json")

    @routes.get("/system_stats", responses=answers("versions, memory and devices") | refusals(503))
    async def system_stats() -> Response:
        stats = await state.runner.stats()
        total, free = _memory()
        system = {
            "os": platform.system().lower(),
            "ram_total": total,
            "ram_free": free,
            "comfyui_version": CONVENTION,
            "katz_graph_version": version("katz-graph"),
            "python_version": platform.python_version(),
            "pytorch_version": state.runner.facts.torch,
            "embedded_python": False,
            "deploy_environment": "katz-graph",
            "argv": [],
        }
        return json_answer(
            {"system": system, "devices": [_device(device) for device in stats.devices]}
        )

    @routes.get("/katz/packs", responses=answers("packs of nodes", PackList) | refusals(503))
    async def packs() -> Response:
        """List packs with their numbers of node types, and the reasons why packs or nodes were
        omitted.
        """
        redacted = state.concealment.text
        found = PackList(
            tuple(
                ListedPack(
                    redacted(pack.name),
                    pack.nodes,
                    pack.scripts,
                    tuple(map(redacted, pack.problems)),
                )
                for pack in await state.runner.ask(GetPacks())
            )
        )
        return json_answer(asdict(found))

    @routes.get("/features", responses=answers("what the server can do") | refusals())
    async def abilities() -> Response:
        return json_answer(features(state.options.limits))

    @routes.get("/i18n", responses=answers("nothing") | refusals())
    @routes.get("/workflow_templates", responses=answers("nothing") | refusals())
    @routes.get("/global_subgraphs", responses=answers("nothing") | refusals())
    @routes.get("/node_replacements", responses=answers("nothing") | refusals())
    async def empty() -> Response:
        return json_answer({})

    @routes.get("/global_subgraphs/{id}", responses=refusals(404))
    async def no_subgraph(id: str) -> Response:
        raise Refusal(404, "subgraph not found")

    return routes


def disabled(state: State) -> APIRouter:
    """Refuses `/api/assets`, an optional service of ComfyUI."""
    routes = APIRouter(prefix="/api/assets", include_in_schema=False)

    @routes.api_route("", methods=["GET", "POST", "PUT", "DELETE"])
    @routes.api_route("/{rest:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def assets(rest: str = "") -> Response:
        error = {
            "code": "SERVICE_DISABLED",
            "message": "this server does not store assets",
            "details": {},
        }
        return json_answer({"error": error}, 503)

    return routes


def internal(state: State) -> APIRouter:
    """Serves the internal routes of ComfyUI's front end. Hides this machine's logs and folders."""
    routes = APIRouter(prefix="/internal", include_in_schema=False)

    @routes.get("/logs")
    async def logs() -> Response:
        return PlainTextResponse("")

    @routes.get("/logs/raw")
    async def raw_logs() -> Response:
        return json_answer({"entries": [], "size": {"cols": 80, "rows": 24}})

    @routes.patch("/logs/subscribe")
    async def subscribe() -> Response:
        return Response()

    @routes.get("/folder_paths")
    async def folder_paths() -> Response:
        return json_answer({})

    @routes.get("/files/{place}")
    async def files(place: Place) -> Response:
        suffix = "" if place == "input" else f" [{place}]"
        names = await asyncio.to_thread(state.listings[place].top)
        return json_answer([name + suffix for name in names])

    return routes


def _device(stats: DeviceStats) -> dict[str, Any]:
    memory = {
        "vram_total": stats.total,
        "vram_free": stats.free,
        "torch_vram_total": stats.reserved,
        "torch_vram_free": stats.unused,
    }
    return {"name": stats.name, "type": stats.type, "index": stats.index} | memory


def _memory() -> tuple[int, int]:
    """Returns the total and free bytes of main memory."""
    page: Any = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
