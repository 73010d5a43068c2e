"""Tells the nodes that exist in the browser alone, which are never sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["note", "control", "reroute", "primitive", "set", "get"]
"""What becomes of such a node: a reroute gives what comes in, a primitive its value, a `get` what
the `set` of the same name gets; notes, and nodes that control the editor, give nothing.
"""

NOTES = ("Note", "MarkdownNote")
CONTROLS = (
    *("Bookmark (rgthree)", "Label (rgthree)", "Fast Actions Button (rgthree)"),
    *("Fast Muter (rgthree)", "Fast Bypasser (rgthree)", "Random Unmuter (rgthree)"),
    *("Fast Groups Muter (rgthree)", "Fast Groups Bypasser (rgthree)"),
    *("Mute / Bypass Relay (rgthree)", "Mute / Bypass Repeater (rgthree)"),
    *("Node Collector (rgthree)", "Node Combiner (rgthree)"),
    *("Note Plus (mtb)", "CGControllerNode"),
)
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(NOTES, "note"),
    **dict.fromkeys(CONTROLS, "control"),
    **dict.fromkeys(("Reroute", "Reroute (rgthree)"), "reroute"),
    **dict.fromkeys(("SetNode", "easy setNode"), "set"),
    **dict.fromkeys(("GetNode", "easy getNode"), "get"),
    "PrimitiveNode": "primitive",
}
"""Node types by name. Packs add theirs in the browser, so this list cannot be complete."""
SERVERS_NAME = "Node name for S&R"


def kind_of(node_type: str) -> Kind | None:
    """Returns the kind of a type that is known to exist in the browser alone."""
    return KINDS.get(node_type)


def came_from_a_server(properties: Any) -> bool:
    """Tells whether a front end knew a node's type from a server: it then notes the type's name in
    the node's properties.
    """
    return isinstance(properties, Mapping) and SERVERS_NAME in properties
