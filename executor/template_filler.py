"""Fills the templates of a workflow's samplers instead of sampling."""

from __future__ import annotations

from collections.abc import Callable

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.latent_space import LatentSamples
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.engine_on_top import EngineOnTop
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import shown_template
from katz_graph.node.types import Context


class TemplateFiller(EngineOnTop):
    """Fills the template of each sampler that edits a picture; samples only the others, unless
    `samples_all`, because a sampler may need another's result. `filled`: the names of filled
    templates. `say` reports samplers without a template. Raises RunError if one is not stored.
    """

    def __init__(self, engine: DeviceEngine, say: Callable[[str], None], samples_all: bool) -> None:
        super().__init__(engine)
        self._say, self._samples_all = say, samples_all
        self.filled: list[str] = []

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        templates = self._engine.templates
        assert templates is not None  # engines of commands have a store
        request = templates.request(region)
        if isinstance(request, str):
            self._say(f"sampler {region.name}: {request}")
            return self._engine.sample(region, context)
        if templates.store.find(request.name) is not None:
            name = shown_template(request.name)
            self._say(f"sampler {region.name}: its template {name} is filled")
        else:
            try:
                self._engine.fill_template(request, context)
            except InputError as error:
                self._say(f"sampler {region.name}: {error}")
                return self._engine.sample(region, context)
            if templates.store.find(request.name) is None:
                raise RunError("its template was not stored, or another process still fills it")
            self.filled.append(request.name)
        if self._samples_all:
            return self._engine.sample(region, context)
        latent: LatentSamples = region.begin.inputs["latent_image"]
        return latent, latent
