"""Remembers down to which noise level LoRAs may be missing, by model and LoRA. Must know neither
torch nor how that is found.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import PurePath
from typing import Any, Protocol

from katz_graph.adapters.recipes import LoraUse
from katz_graph.core.recipe import Component, FileIdentity, ModelRecipe, digest
from katz_graph.files.urls import is_url

ALIKE = 0.99  # cosine similarity of latents that still counts as the same (Katz, section 6)
LEEWAY = 0.99  # of a profile's first level: schedulers differ a little in theirs


class LevelStore(Protocol):
    """Stores levels beyond the life of a process: `measure.store.CostStore`."""

    def lora_level(
        self, model: str, lora: str, network: float, text: float, begins: float
    ) -> float | None: ...

    def keep_lora_level(
        self, model: str, lora: str, network: float, text: float, begins: float, level: float
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class LoraProfile:
    """Holds how alike a sampler's latents with and without a LoRA are: by step, the noise level at
    its end and the mean cosine similarity there. `begins`: the level at the start.
    """

    sampler: str
    model: ModelRecipe
    use: LoraUse
    begins: float
    levels: tuple[float, ...]
    similarities: tuple[float, ...]

    @property
    def steps(self) -> int:
        """Returns K: after up to so many steps without it the latents are alike. The last step
        always has it.
        """
        alike = [similarity >= ALIKE for similarity in self.similarities[:-1]]
        return alike.index(False) if False in alike else len(alike)

    @property
    def level(self) -> float:
        """Returns the noise level down to which it may be missing; the first one: nowhere."""
        return self.levels[self.steps - 1] if self.steps else self.begins


class LoraLevels:
    """Remembers profiles in a store."""

    def __init__(self, store: LevelStore) -> None:
        self._store = store

    def level(self, model: ModelRecipe, use: LoraUse, begins: float) -> float | None:
        """Returns the noise level down to which a LoRA may be missing from a sampler that begins at
        `begins`. None where nobody looked at so great a strength, or at so much noise.
        """
        return self._store.lora_level(
            *_keys(model, use.file), use.network, use.text, begins * LEEWAY
        )

    def keep(self, profile: LoraProfile) -> None:
        """Keeps a profile, in place of one of the same strengths and beginning."""
        use = profile.use
        self._store.keep_lora_level(
            *_keys(profile.model, use.file), use.network, use.text, profile.begins, profile.level
        )


def _keys(model: ModelRecipe, lora: FileIdentity) -> tuple[str, str]:
    return digest(_placeless(replace(model, loras=()))), digest(_placeless(lora))


def _placeless(value: Any) -> Any:
    """Returns a recipe without the folders of its files, which may be renamed. Their names, sizes
    and times stay: two LoRAs of one shape may have equal headers.
    """
    if isinstance(value, tuple):
        return tuple(map(_placeless, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {one.name: _placeless(getattr(value, one.name)) for one in fields(value)}
    match value:
        case FileIdentity() if not is_url(value.path):
            parts["path"] = PurePath(value.path).name
        case Component():
            parts["folder"] = ""
    return replace(value, **parts)
