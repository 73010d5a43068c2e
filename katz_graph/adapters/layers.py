"""Maps the names that adapter files give to parts of a module to its parameters, in two layouts:
the module's own (diffusers, transformers) and that of the original code.

Which layout a file has is decided once for the whole file, as for checkpoints: some names stand for
different parameters in the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pkgutil import resolve_name

from katz_graph.models.family import LoraNames
from katz_graph.models.renaming import Rows

LEVELS = ("text_model.", "model.", "bert.")  # of text encoders, that a file may name or not
PARAMETERS = ("weight", "bias")  # that methods of adapters change in a layer
MODULES_KNOWN = 16

Named = Mapping[str, tuple[Rows, ...]]
"""Maps a name in files, `layer.weight` or `layer.bias`, to the parameters whose rows it is, in
order. A parameter that is neither has a layer of its own name, whose weight it is.
"""


@dataclass(frozen=True)
class Layouts:
    """Holds the names of a module's parameters in both layouts."""

    own: Named
    original: Named

    @cached_property
    def _ambiguous(self) -> frozenset[str]:
        """Returns the names that stand for different parameters in the two layouts."""
        return frozenset(
            name
            for name in self.own.keys() & self.original.keys()
            if self.own[name] != self.original[name]
        )

    def of_file(self, names: Collection[str], original: bool) -> Named:
        """Returns what the names of one file mean. The names that only one layout has tell its
        layout, and `original` where there are none.
        """
        if self._ambiguous.isdisjoint(names):
            return self._merged(False)
        surplus = sum((name in self.original) - (name in self.own) for name in names)
        return self._merged(surplus > 0 or (surplus == 0 and original))

    def _merged(self, original: bool) -> Named:
        return {**self.own, **self.original} if original else {**self.original, **self.own}


# a model has many LoRAs
@lru_cache(maxsize=MODULES_KNOWN)
def layouts(parameters: tuple[str, ...], names: LoraNames | None) -> Layouts:
    """Returns the names of a module's parameters in files. `names`: those of a network's family,
    None for a text encoder.
    """
    own = {
        alias: (Rows(path),) for path in parameters for alias in _with_levels(path, names is None)
    }
    found = resolve_name(names.originals)(parameters) if names and names.originals else {}
    return Layouts(dict(_in_files(own)), dict(_in_files(found)))


def _with_levels(path: str, of_text: bool) -> Iterable[str]:
    """Yields a parameter's names with and without a level: transformers' CLIPTextModel lost its
    own, files may not.
    """
    yield path
    for level in LEVELS if of_text else ():
        yield path.removeprefix(level)
        yield f"{level}{path.removeprefix(level)}"


def _in_files(named: Named) -> Iterator[tuple[str, tuple[Rows, ...]]]:
    """Yields the names in files, also with underscores for dots, of parameters by their names."""
    for name, rows in named.items():
        layer, _, parameter = name.rpartition(".")
        if layer and parameter in PARAMETERS:
            yield f"{layer}.{parameter}", rows
            yield f"{layer.replace('.', '_')}.{parameter}", rows
        if parameter != "weight":
            yield f"{name}.weight", rows
            yield f"{name.replace('.', '_')}.weight", rows
