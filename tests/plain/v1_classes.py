"""Makes and runs node classes in the style of V1 packs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivial_nodes import TYPES, Ran, node, run

from katz_graph.checks.validate import check
from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.formats.api import from_api
from katz_graph.packs import Registry


class AnyType(str):
    """Matches every input type, in the way that packs commonly declare it."""

    def __ne__(self, other: object) -> bool:
        return False


ANYTHING = AnyType("*")


def pack_class(
    function: Any,
    required: Any = None,
    optional: Any = None,
    hidden: Any = None,
    returns: Any = ("*",),
    **attributes: Any,
) -> type:
    """Returns a node class as packs write them, with `function` as its function."""

    def input_types(cls: type) -> dict[str, Any]:
        return {
            "required": required or {},
            "optional": {} if optional is None else optional,
            "hidden": hidden or {},
        }

    members = {
        "INPUT_TYPES": classmethod(input_types),
        "RETURN_TYPES": returns,
        "FUNCTION": "go",
        "CATEGORY": "test",
        "go": function,
    }
    return type("Made", (), members | attributes)


def types(**classes: type) -> Registry:
    return Registry(
        {**TYPES, **{name: V1Class(name, cls, name).describe() for name, cls in classes.items()}}
    )


def run_v1(
    document: Mapping[str, Any],
    classes: Mapping[str, type],
    cache: ResultCache | None = None,
    **options: Any,
) -> Ran:
    """Validates and runs a class as a client's prompt would."""
    registry = types(**classes)
    return run(check(from_api(document), registry).or_raise(), cache, registry, **options)


def saved(document: Mapping[str, Any], classes: Mapping[str, type]) -> Any:
    return run_v1({**document, "save": node("Save", value=["1", 0])}, classes).result.outputs[
        "save"
    ][0]


def problem(document: Mapping[str, Any], classes: Mapping[str, type]) -> str:
    found = check(
        from_api({**document, "save": node("Save", value=["1", 0])}), types(**classes)
    ).errors
    assert len(found) == 1, found
    return str(found[0])


def failure(function: Any, **options: Any) -> str:
    ran = run_v1(
        {"1": node("Made"), "save": node("Save", value=["1", 0])},
        {"Made": pack_class(function, **options)},
    )
    (error,) = ran.result.failures.values()
    return str(error)


def echo(self: Any, **values: Any) -> Any:
    return (values,)


MANY = pack_class(lambda self: ([1, 2, 3],), returns=("INT",), OUTPUT_IS_LIST=(True,))
