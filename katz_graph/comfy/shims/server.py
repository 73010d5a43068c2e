"""Provides `server` to packs: collects routes, which are not served, and sends messages as events
of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from katz_graph.comfy.finder import installed
from katz_graph.comfy.missing import missing_names, refuse
from katz_graph.core.events import PackMessage
from katz_graph.node.scope import current

Handler = Callable[..., Any]
__getattr__ = missing_names(
    __name__,
    "BinaryEventTypes create_cors_middleware get_comfy_package_versions is_loopback node_info",
)


class Routes:
    """Collects the routes that packs register; they are not served."""

    def route(self, method: str, path: str, **_: Any) -> Callable[[Handler], Handler]:
        def keep(handler: Handler) -> Handler:
            installed().routes.append((method, path, handler))
            return handler

        return keep

    def get(self, path: str, **_: Any) -> Callable[[Handler], Handler]:
        return self.route("GET", path)

    def post(self, path: str, **_: Any) -> Callable[[Handler], Handler]:
        return self.route("POST", path)

    def put(self, path: str, **_: Any) -> Callable[[Handler], Handler]:
        return self.route("PUT", path)

    def patch(self, path: str, **_: Any) -> Callable[[Handler], Handler]:
        return self.route("PATCH", path)

    def delete(self, path: str, **_: Any) -> Callable[[Handler], Handler]:
        return self.route("DELETE", path)

    def head(self, path: str, **_: Any) -> Callable[[Handler], Handler]:
        return self.route("HEAD", path)

    def static(self, prefix: str, path: Any, **_: Any) -> None:
        """Adds a folder of static files."""
        installed().routes.append(("STATIC", prefix, lambda: path))


class Router:
    """Reports that routes can still be added."""

    frozen = False

    def __getattr__(self, name: str) -> Any:
        refuse(f"server.PromptServer.instance.app.router.{name}")


class App:
    """Represents the web application."""

    router = Router()

    def add_routes(self, routes: Any) -> None:
        """Registers aiohttp's route definitions."""
        for route in routes:
            static = getattr(route, "prefix", None)
            if static is not None:
                PromptServer.instance.routes.static(static, route.path)
            else:
                PromptServer.instance.routes.route(route.method, route.path)(route.handler)

    def __getattr__(self, name: str) -> Any:
        refuse(f"server.PromptServer.instance.app.{name}")


class PromptServer:
    """Represents the server while packs load and their nodes run."""

    instance: ClassVar[PromptServer]

    def __init__(self) -> None:
        self.routes = Routes()
        self.app = App()
        self.supports: list[str] = ["custom_nodes_from_web"]
        self.client_id: str | None = None
        self.last_node_id: str | None = None
        self.number = 0
        self.on_prompt_handlers: list[Handler] = []

    def send_sync(self, event: Any, data: Any, sid: str | None = None) -> None:
        """Sends a message to the editor; does nothing outside of a run."""
        now = current()
        if now is not None:
            now.context.report(PackMessage(str(event), data, sid))

    async def send(self, event: Any, data: Any, sid: str | None = None) -> None:
        self.send_sync(event, data, sid)

    async def send_json(self, event: Any, data: Any, sid: str | None = None) -> None:
        self.send_sync(event, data, sid)

    def send_progress_text(self, text: str | bytes, node_id: str, sid: str | None = None) -> None:
        self.send_sync(
            "progress_text",
            {"node": node_id, "text": text.decode() if isinstance(text, bytes) else text},
            sid,
        )

    def add_on_prompt_handler(self, handler: Handler) -> None:
        """Stores a handler, which is never called."""
        self.on_prompt_handlers.append(handler)

    def add_routes(self) -> None:
        """Does nothing: routes of packs are not served."""

    def __getattr__(self, name: str) -> Any:
        refuse(f"server.PromptServer.instance.{name}")


PromptServer.instance = PromptServer()
