"""Checks that a request's LoRAs fit its models, off the device thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from katz_graph.adapters.fit import check_loras, takes_loras
from katz_graph.core.recipe import ClipRecipe, ControlNetRecipe, ModelRecipe, SeenPicture
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.node.types import Context


class LoraCheck:
    """Starts the check immediately; calls `wake` when it is done."""

    def __init__(
        self,
        recipes: Sequence[ModelRecipe | ControlNetRecipe | ClipRecipe | SeenPicture],
        models: DeviceModels,
        wake: Callable[[], None],
    ) -> None:
        checked = [
            recipe
            for recipe in recipes
            if isinstance(recipe, ModelRecipe | ClipRecipe) and takes_loras(recipe)
        ]
        self._notes: Future[list[str]] | None = None
        if checked:
            self._notes = models.adapters.submit(lambda: list(check_loras(*checked)))
            self._notes.add_done_callback(lambda _: wake())

    @property
    def done(self) -> bool:
        return self._notes is None or self._notes.done()

    def raise_problems(self, context: Context) -> None:
        """Reports the warnings once, if the check is done; raises its error if it failed."""
        if self._notes is not None and self._notes.done():
            notes, self._notes = self._notes, None
            for note in notes.result():
                context.warn(note)
