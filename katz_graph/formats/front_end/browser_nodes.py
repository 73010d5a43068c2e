"""Recognises nodes that exist only in the browser and are never sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["note", "control", "reroute", "primitive", "set", "get"]
"""The effect of such a node. A reroute forwards its input, a primitive outputs its value, and a
`get` outputs the input of the `set` with the same name. Notes and nodes that control the editor
have no output.
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
"""Browser-only node types by name. Packs add their own in the browser, so this list is
incomplete.
"""
SERVERS_NAME = "Node name for S&R"


def kind_of(node_type: str) -> Kind | None:
    """Returns the kind of a known browser-only type; None for other types."""
    return KINDS.get(node_type)


def came_from_a_server(properties: Any) -> bool:
    """Returns whether a server had described a node's type to the front end, which then stores the
    type's name in the node's properties.
    """
    return isinstance(properties, Mapping) and SERVERS_NAME in properties
