"""Reads widgets of a subgraph's instance: values that override those of widgets inside.

Three generations of files: values in the order of the subgraph's inputs that lead to widgets (the
first and the present one, which also names them), and a list of [inner node, widget] in
`properties.proxyWidgets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.formats.ui_document import UiGraph, UiNode

OWN = "-1"  # in a list of proxies: a widget of the instance itself


def promoted_values(instance: UiNode, inside: UiGraph, notes: list[str], where: str) -> dict[str, Any]:
    """Returns the values that an instance's widgets give the subgraph's inputs, by name."""
    values, named, proxies = instance.values, instance.named or {}, _proxies(instance)
    if isinstance(values, Mapping):
        return {port.name: values[port.name] for port in inside.inputs if port.name in values}
    if not values:
        return {port.name: named[port.name] for port in inside.inputs if port.name in named}
    if proxies:
        shown = dict(zip(proxies, values, strict=False)) if len(proxies) == len(values) else {}
        if not shown:
            notes.append(_unclear(where, len(values), len(proxies)))
        return {name: value for (node, name), value in shown.items() if node == OWN}
    names = tuple(named) if len(named) == len(values) else inside.widgets
    if len(names) != len(values):
        notes.append(_unclear(where, len(values), len(names)))
        return dict(named)
    return dict(zip(names, values, strict=True))


def overrides(instance: UiNode, inside: UiGraph, outer: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """Maps (member, widget) -> value by an instance's list of proxies; `outer` is what the ones
    around it show of its inside.
    """
    proxies = _proxies(instance)
    if not proxies or isinstance(instance.values, Mapping) or len(proxies) != len(instance.values):
        return dict(outer)
    return {proxy: value for proxy, value in zip(proxies, instance.values, strict=True) if proxy[0] != OWN} | dict(outer)


def by_instance(overridden: Mapping[tuple[str, str], Any]) -> dict[str, dict[tuple[str, str], Any]]:
    """Splits overrides by the instances inside: those of member `instance:member`."""
    deeper: dict[str, dict[tuple[str, str], Any]] = {}
    for (node, name), value in overridden.items():
        instance, inner, member = node.partition(":")
        if inner:
            deeper.setdefault(instance, {})[member, name] = value
    return deeper


def _proxies(instance: UiNode) -> list[tuple[str, str]]:
    properties = instance.raw.get("properties")
    entries = properties.get("proxyWidgets") if isinstance(properties, Mapping) else None
    if not isinstance(entries, list):
        return []
    pairs = [entry for entry in entries if isinstance(entry, list) and len(entry) >= 2]
    return [(str(node), name) for node, name, *_ in pairs if isinstance(name, str) and not name.startswith("$$")]


def _unclear(where: str, values: int, widgets: int) -> str:
    return f"{where}: {values} values for {widgets} widgets of the subgraph; those of the nodes inside were taken"
