"""Stores, by model and LoRA, the noise level down to which the LoRA may be missing. Must know
neither torch nor the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import PurePath
from typing import Any, Protocol

from katz_graph.adapters.recipes import LoraUse
from katz_graph.core.recipe import Component, FileIdentity, ModelRecipe, digest
from katz_graph.files.urls import is_url

MIN_COSINE_SIMILARITY = (
    0.99  # minimum cosine similarity of latents that count as equal (Katz, section 6)
)
LEEWAY = 0.99  # tolerance for a profile's first level, which differs slightly between schedulers


class LevelStore(Protocol):
    """Stores levels persistently: `measure.store.CostStore`."""

    def lora_level(
        self, model: str, lora: str, network: float, text: float, begins: float
    ) -> float | None: ...

    def keep_lora_level(
        self, model: str, lora: str, network: float, text: float, begins: float, level: float
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class LoraProfile:
    """Holds the similarity of a sampler's latents with and without a LoRA: for each step, the noise
    level at its end and the mean cosine similarity of the latents. `begins`: the initial noise
    level.
    """

    sampler: str
    model: ModelRecipe
    use: LoraUse
    begins: float
    levels: tuple[float, ...]
    similarities: tuple[float, ...]

    @property
    def steps(self) -> int:
        """Returns K, the number of steps that may run without the LoRA while the latents stay
        similar. The last step always uses the LoRA.
        """
        alike = [similarity >= MIN_COSINE_SIMILARITY for similarity in self.similarities[:-1]]
        return alike.index(False) if False in alike else len(alike)

    @property
    def level(self) -> float:
        """Returns the noise level down to which the LoRA may be missing; the initial level if it is
        always needed.
        """
        return self.levels[self.steps - 1] if self.steps else self.begins


class LoraLevels:
    """Stores profiles and looks up levels."""

    def __init__(self, store: LevelStore) -> None:
        self._store = store

    def level(self, model: ModelRecipe, use: LoraUse, begins: float) -> float | None:
        """Returns the noise level down to which a LoRA may be missing from a sampler that starts at
        `begins`, or None if no profile has at least these strengths and initial level.
        """
        return self._store.lora_level(
            *_keys(model, use.file), use.network, use.text, begins * LEEWAY
        )

    def keep(self, profile: LoraProfile) -> None:
        """Stores a profile, replacing one with equal strengths and initial level."""
        use = profile.use
        self._store.keep_lora_level(
            *_keys(profile.model, use.file), use.network, use.text, profile.begins, profile.level
        )


def _keys(model: ModelRecipe, lora: FileIdentity) -> tuple[str, str]:
    return digest(_placeless(replace(model, loras=()))), digest(_placeless(lora))


def _placeless(value: Any) -> Any:
    """Removes the folders of files, which may be renamed, from a recipe. Names, sizes and times
    stay, because LoRAs of equal shapes may have equal headers.
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
