"""Counts the work of stages: once per configuration, for all sizes and processes. Imports model
libraries only if a count is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Protocol

from katz_graph.core.recipe import digest
from katz_graph.ir.device import Work
from katz_graph.models.costs.formula import Formula
from katz_graph.models.costs.formula import sizes as variables
from katz_graph.models.costs.layers import LayeredFormula, LayeredWork, layer_sizes
from katz_graph.models.family import family_of_class
from katz_graph.models.stage_registry import stage as declared
from katz_graph.models.stages import Sized
from katz_graph.models.text.kinds import kind_named, row_in

COUNTING = 3  # version of the counts: change it if stages or the format of formulas change


class FormulaStore(Protocol):
    """Stores formulas across processes."""

    def formula(self, key: str) -> str | None: ...

    def keep_formula(self, key: str, text: str) -> None: ...


class Counts:
    """Counts the work of stages by configuration. Caches formulas in this object and, if given, in
    `store`. Thread-safe. Takes no lock, because a holder of low priority would block others.
    """

    def __init__(self, store: FormulaStore | None = None) -> None:
        self._store = store
        self._known: dict[str, Formula] = {}
        self._layered: dict[str, LayeredFormula] = {}

    def work(
        self,
        config: Mapping[str, Any],
        stage: str,
        sizes: Sized,
        value_bytes: int = 4,
    ) -> Work:
        """Returns the result of `stage_cost.stage_work`, from a formula if possible. Does not
        support VAEs or attention without cached keys and values.
        """
        sizes = padded(config, sizes)
        row, batch, tokens = 0, sizes.batch, sizes.tokens
        # rows have a maximum length, so the length belongs to the stage, not to the sizes
        if (of := declared(stage)).encodes_text:
            if kind_named(config).rows:
                whole = row_in(config)
                row, batch = min(whole, tokens), batch * -(-tokens // whole)
            else:
                row = -(-tokens // of.grain) * of.grain
        elif _is_tiny(config, sizes) or not _has_formulas(config):
            from katz_graph.models.costs.stage_cost import stage_work

            return stage_work(config, stage, sizes, value_bytes)
        text = json.dumps(dict(config), sort_keys=True)
        formula = self._formula(text, stage, row, sizes.first_block, sizes.last_block)
        return formula.work(variables(batch, sizes.height, sizes.width, tokens), value_bytes)

    def layers(
        self,
        config: Mapping[str, Any],
        stage: str,
        sizes: Sized,
        active: Mapping[int, int],
        value_bytes: int = 4,
    ) -> LayeredWork:
        """Returns the result of `layer_cost.layered_work`, from a formula if possible."""
        if _is_tiny(config, sizes):
            from katz_graph.models.costs.layer_cost import layered_work

            return layered_work(config, stage, sizes, active, value_bytes)
        text = json.dumps(dict(config), sort_keys=True)
        key = digest((text, stage, sizes.first_block, sizes.last_block, "layers", _software()))
        if key not in self._layered:
            known = self._store.formula(key) if self._store else None
            formula = LayeredFormula.read(known) if known else None
            if formula is None:
                from katz_graph.models.costs.layer_cost import layered_formula

                formula = layered_formula(text, stage, sizes.first_block, sizes.last_block)
                if self._store is not None:
                    self._store.keep_formula(key, formula.text())
            self._layered[key] = formula
        at = layer_sizes(sizes.height, sizes.width, sizes.tokens, active)
        return self._layered[key].work(at, sizes.batch, value_bytes)

    def unprepared(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Lists the blocks of a network, ControlNet or text encoder that run their library's
        forward on GPUs: count, kind, reason.
        """
        text = json.dumps(dict(config), sort_keys=True)
        key = digest((text, "unprepared", _software()))
        known = self._store.formula(key) if self._store else None
        if known is None:
            from katz_graph.models.costs.stage_cost import module_on_meta
            from katz_graph.models.prepare import unprepared

            found = unprepared(module_on_meta(text))
            known = json.dumps([f"{count} {what}" for what, count in found.items()])
            if self._store is not None:
                self._store.keep_formula(key, known)
        return tuple(json.loads(known))

    def _formula(self, *asked: Any) -> Formula:
        key = digest((*asked, _software()))
        if key not in self._known:
            text = self._store.formula(key) if self._store else None
            self._known[key] = (Formula.read(text) if text else None) or self._counted(key, *asked)
        return self._known[key]

    def _counted(self, key: str, *asked: Any) -> Formula:
        from katz_graph.models.costs.stage_cost import stage_formula

        formula = stage_formula(*asked)
        if self._store is not None:
            self._store.keep_formula(key, formula.text())
        return formula


def padded(config: Mapping[str, Any], sizes: Sized) -> Sized:
    """Returns the sizes with the padding of the network's tokens."""
    multiple = _token_multiple(config)
    if multiple == 1:
        return sizes
    return replace(sizes, tokens=max(1, -(-sizes.tokens // multiple)) * multiple)


def _is_tiny(config: Mapping[str, Any], sizes: Sized) -> bool:
    """Returns true if the deepest resolution is one cell wide or high; formulas then count too many
    copies.
    """
    resolutions = len(config.get("block_out_channels", (0,)))
    return min(sizes.height, sizes.width) <= 1 << (resolutions - 1)


def _token_multiple(config: Mapping[str, Any]) -> int:
    """Returns n if token counts are padded to multiples of n; 1 without padding."""
    family = family_of_class(config.get("_class_name"))
    return 1 if family is None else family.network.token_multiple


def _has_formulas(config: Mapping[str, Any]) -> bool:
    """Returns whether a network's work is a formula of the sizes."""
    family = family_of_class(config.get("_class_name"))
    return family is None or family.network.formulas


@lru_cache(maxsize=1)
def _software() -> tuple[Any, ...]:
    """Returns the versions that the cache keys of counts include."""
    return COUNTING, *(version(name) for name in ("torch", "diffusers", "transformers"))
