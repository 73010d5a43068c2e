"""Maps layer names in adapter files to a module's parameters, in two layouts: the module's
(diffusers, transformers) and the original code's.

Detects the layout once per file, as for checkpoints, because some names mean different parameters
in the two layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pkgutil import resolve_name

from katz_graph.models.family import LoraNames
from katz_graph.models.renaming import Rows

LEVELS = ("text_model.", "model.", "bert.")  # optional prefixes of text encoder names
PARAMETERS = ("weight", "bias")  # the parameters of a layer that adapters change
MODULES_KNOWN = 16

Named = Mapping[str, tuple[Rows, ...]]
"""Maps a name in files, `layer.weight` or `layer.bias`, to its rows in the module's parameters, in
order. A parameter with another ending is treated as the weight of a layer of the same name.
"""


@dataclass(frozen=True)
class Layouts:
    """Holds the names of a module's parameters in both layouts."""

    own: Named
    original: Named

    @cached_property
    def _ambiguous(self) -> frozenset[str]:
        """Returns names of different parameters in the two layouts."""
        return frozenset(
            name
            for name in self.own.keys() & self.original.keys()
            if self.own[name] != self.original[name]
        )

    def of_file(self, names: Collection[str], original: bool) -> Named:
        """Returns the mapping for the names of one file. Ambiguous names follow the layout with
        more of the file's unambiguous names; `original` decides a tie.
        """
        if self._ambiguous.isdisjoint(names):
            return self._merged(False)
        surplus = sum((name in self.original) - (name in self.own) for name in names)
        return self._merged(surplus > 0 or (surplus == 0 and original))

    def _merged(self, original: bool) -> Named:
        return {**self.own, **self.original} if original else {**self.original, **self.own}


# cached because a model may have many LoRAs
@lru_cache(maxsize=MODULES_KNOWN)
def layouts(parameters: tuple[str, ...], names: LoraNames | None) -> Layouts:
    """Maps names in files to a module's parameters. `names`: the LoRA names of a network's family,
    None for a text encoder.
    """
    own = {
        alias: (Rows(path),) for path in parameters for alias in _with_levels(path, names is None)
    }
    found = resolve_name(names.originals)(parameters) if names and names.originals else {}
    return Layouts(dict(_in_files(own)), dict(_in_files(found)))


def _with_levels(path: str, of_text: bool) -> Iterable[str]:
    """Yields a parameter's names with and without a prefix of `LEVELS`, because newer transformers
    drop CLIPTextModel's.
    """
    yield path
    for level in LEVELS if of_text else ():
        yield path.removeprefix(level)
        yield f"{level}{path.removeprefix(level)}"


def _in_files(named: Named) -> Iterator[tuple[str, tuple[Rows, ...]]]:
    """Yields each parameter's names in files: with dots, and with underscores for dots."""
    for name, rows in named.items():
        layer, _, parameter = name.rpartition(".")
        if layer and parameter in PARAMETERS:
            yield f"{layer}.{parameter}", rows
            yield f"{layer.replace('.', '_')}.{parameter}", rows
        if parameter != "weight":
            yield f"{name}.weight", rows
            yield f"{name.replace('.', '_')}.weight", rows
