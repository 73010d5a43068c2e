"""Behaves as ComfyUI's main.py, with its options and routes, but makes a picture of one colour."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import uuid
from pathlib import Path

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

parser = argparse.ArgumentParser()
for name in ("listen", "extra-model-paths-config", "output-directory", "input-directory"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--temp-directory")
parser.add_argument("--user-directory")
parser.add_argument("--disable-auto-launch", action="store_true")
given = parser.parse_args()
(places,) = yaml.safe_load(Path(given.extra_model_paths_config).read_text()).values()
clients: dict[str, WebSocket] = {}
STEP = 0.002  # seconds
turn = asyncio.Lock()


async def nothing(request: Request) -> Response:
    return JSONResponse({})


async def prompt(request: Request) -> Response:
    asked = await request.json()
    nodes = {node["class_type"]: node["inputs"] for node in asked["prompt"].values()}
    checkpoint = nodes["CheckpointLoaderSimple"]["ckpt_name"]
    assert Path(places["base_path"], places["checkpoints"], checkpoint).is_file()
    number = uuid.uuid4().hex
    task = asyncio.create_task(work(number, asked["client_id"], nodes["KSampler"]["steps"]))
    running.add(task)
    task.add_done_callback(running.discard)
    return JSONResponse({"prompt_id": number})


running: set[asyncio.Task[None]] = set()


async def work(number: str, client: str, steps: int) -> None:
    async with turn:
        await asyncio.sleep(steps * STEP)
    image = {"filename": "one.png", "subfolder": "", "type": "output"}
    for kind, more in (
        ("executed", {"node": "7", "output": {"images": [image]}}),
        ("executing", {"node": None}),
    ):
        await clients[client].send_json({"type": kind, "data": {"prompt_id": number, **more}})


async def view(request: Request) -> Response:
    return Response(b"\x89PNG", media_type="image/png")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    clients[websocket.query_params["clientId"]] = websocket
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await websocket.receive_text()


ASKED = ("/object_info", "/system_stats", "/queue", "/api/settings", "/api/extensions")
app = Starlette(
    routes=[
        *(Route(path, nothing) for path in ASKED),
        Route("/upload/image", nothing, methods=["POST"]),
        Route("/prompt", prompt, methods=["POST"]),
        Route("/view", view),
        WebSocketRoute("/ws", socket),
    ]
)
uvicorn.run(app, host=given.listen, port=given.port, log_level="warning")
