"""Pins a request's models in a worker's memory: the loop's models until the request ends, text
encoders until all texts are encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.recipe import ClipRecipe, ControlNetRecipe, ModelRecipe, SeenPicture
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.ir.program import Program
from katz_graph.models.loading.residency import CONTROL_NETS, NoRoom
from katz_graph.models.text.recipe import clips
from katz_graph.planner.region import stage_of

LOADED = (ModelRecipe, ControlNetRecipe)


class Holding:
    """Holds a request's models between `load` and `release`, text encoders from `load_texts` on."""

    def __init__(self, program: Program, models: DeviceModels) -> None:
        self._sampler, self._models = program.name, models
        self.looped = _looped(program)
        self.text_encoders = _text_encoders(program)
        self._held, self._held_texts = ExitStack(), ExitStack()
        self._holds_texts = False

    @property
    def models(self) -> Sequence[ModelRecipe | ControlNetRecipe | ClipRecipe | SeenPicture]:
        """Returns the models in the order of loading."""
        return *self.text_encoders, *self.looped

    def load_texts(self) -> None:
        """Loads missing text encoders. Raises the errors of `load`."""
        self._load(self._hold_texts)

    def load(self) -> None:
        """Loads missing models. Raises NoRoom while models of other requests use the memory, and an
        error for users if this request alone needs too much. Holds no model then.
        """
        self._load(self._hold)

    def _load(self, hold: Callable[[], None]) -> None:
        try:
            hold()
        except NoRoom:
            self.release()
            if self._models.residents.in_use:
                raise
            self._models.release_cached()
            try:
                hold()
            except NoRoom as error:
                self.release()
                raise self._too_much(error) from None

    def release_texts(self) -> None:
        self._held_texts.close()
        self._holds_texts = False

    def release(self) -> None:
        self._held.close()
        self.release_texts()

    def _hold(self) -> None:
        self._hold_texts()
        for model in self.looped:
            self._held.enter_context(self._models.holding(model))

    def _hold_texts(self) -> None:
        if self._holds_texts:
            return
        for clip in self.text_encoders:
            self._held_texts.enter_context(self._models.holding(clip))
        self._holds_texts = True

    def _too_much(self, error: NoRoom) -> KatzError:
        if error.what == CONTROL_NETS:
            return InputError(
                f"sampler {self._sampler}: its ControlNets together exceed the budget of a "
                f"worker: {error}"
            )
        return self._models.residents.too_much(
            f"sampler {self._sampler}",
            (one for recipe in self.models for one in self._models.loadables(recipe)),
        )


def _looped(program: Program) -> list[ModelRecipe | ControlNetRecipe]:
    """Returns the models of a program's loop and of the calls before it."""
    looped = [op for variant in program.variants for op in variant.operations]
    values = (value for op in (*looped, *program.before) for value in op.inputs.values())
    return list(dict.fromkeys(value for value in values if isinstance(value, LOADED)))


def _text_encoders(program: Program) -> list[ClipRecipe | SeenPicture]:
    """Returns text encoders, and a picture for each of their vision towers."""
    texts = [
        op.inputs["encoding"] for op in program.before if stage_of(op).encodes_text and op.inputs
    ]
    towers = {text.tower: text for text in texts if isinstance(text, SeenPicture)}
    every = (clip for text in texts if not isinstance(text, SeenPicture) for clip in clips(text))
    return [*towers.values(), *dict.fromkeys(every)]
