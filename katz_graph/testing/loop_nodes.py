"""Defines a ComfyUI V1 pack with loops. While the condition is true, a closing node expands to a
copy of itself, its opening node, and the nodes between them.
"""

from __future__ import annotations

from typing import Any


class LoopOpen:
    RETURN_TYPES, FUNCTION, CATEGORY = ("FLOW", "*"), "open", "loops"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}, "optional": {"value": ("*", {})}}

    def open(self, value: Any = None) -> Any:
        return ("stub", value)


class LoopClose:
    RETURN_TYPES, FUNCTION, CATEGORY = ("*",), "close", "loops"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "flow": ("FLOW", {"rawLink": True}),
                "again": ("BOOLEAN", {"forceInput": True}),
            },
            "optional": {"value": ("*", {})},
            "hidden": {"graph": "DYNPROMPT", "me": "UNIQUE_ID"},
        }

    def close(self, flow: Any, again: bool, graph: Any, me: str, value: Any = None) -> Any:
        if not again:
            return (value,)
        inside = between(graph, me, flow[0])
        names = {name: "again" if name == me else f"body.{name}" for name in inside}
        nodes: dict[str, Any] = {}
        for name in inside:
            original = graph.get_node(name)
            inputs = {key: moved(link, names) for key, link in original["inputs"].items()}
            nodes[names[name]] = {
                "class_type": original["class_type"],
                "inputs": inputs,
                "override_display_id": name,
            }
        nodes[names[flow[0]]]["inputs"]["value"] = value
        return {"result": (["again", 0],), "expand": nodes}


def between(graph: Any, end: str, start: str) -> list[str]:
    """Lists the nodes from `start` to `end`, both included."""
    readers: dict[str, list[str]] = {}
    pending, seen = [end], {end}
    while pending:
        name = pending.pop()
        for link in graph.get_node(name)["inputs"].values():
            if isinstance(link, list) and len(link) == 2 and isinstance(link[0], str):
                readers.setdefault(link[0], []).append(name)
                if link[0] not in seen and link[0] != start:
                    seen.add(link[0])
                    pending.append(link[0])
    inside, pending = {start: None}, [start]
    while pending:
        for reader in readers.get(pending.pop(), ()):
            if reader not in inside:
                inside[reader] = None
                pending.append(reader)
    return list(inside)


def moved(value: Any, names: dict[str, str]) -> Any:
    is_link = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
    return [names[value[0]], value[1]] if is_link and value[0] in names else value


class Plus:
    RETURN_TYPES, FUNCTION, CATEGORY = ("INT",), "plus", "loops"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"a": ("*", {}), "b": ("INT", {"default": 1})}}

    def plus(self, a: int, b: int) -> Any:
        return (a + b,)


class Below:
    RETURN_TYPES, FUNCTION, CATEGORY = ("BOOLEAN",), "below", "loops"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"a": ("*", {}), "limit": ("INT", {"default": 10})}}

    def below(self, a: int, limit: int) -> Any:
        return (a < limit,)


NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in (LoopOpen, LoopClose, Plus, Below)}
