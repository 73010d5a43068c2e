"""Answers what editors ask of a graph that is being drawn, by running what of it needs no model.
Must not know the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from katz_graph.checks.validate import check, downstream, upstream
from katz_graph.errors import Cancelled
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.planning_engine import PlanningEngine
from katz_graph.files.folders import Folders
from katz_graph.graph import Graph, NodeCall
from katz_graph.ir.device import Device
from katz_graph.ir.region import Region
from katz_graph.models.text.recipe import TextSize, prompts
from katz_graph.models.text.tokens import text_size
from katz_graph.packs import BUILTIN, Registry
from katz_graph.recipe import ConditioningEntry, Prompt
from katz_graph.web.options import Limits
from katz_graph.web.runner.checking import Malformed, parsed
from katz_graph.web.runner.limits import limited
from katz_graph.web.runner_client.facts import TextSizes

SECONDS = 5.0  # after which no further node runs
LETTERS = 200_000  # of the texts that are counted at once


class DryRuns:
    """Runs nodes of the package alone: those of packs run when somebody asks for it."""

    def __init__(
        self, registry: Registry, folders: Folders, limits: Limits, device: Device
    ) -> None:
        self._registry, self._limits = limited(registry, limits), limits
        self._folders, self._device = folders, device

    def text_sizes(self, document: Any) -> TextSizes:
        """Counts the tokens of the prompts of a document. A text is left out whose encoders are not
        known: that is wrong, not linked, or of a pack.
        """
        try:
            graph = parsed(document, self._registry, self._limits).graph
        except Malformed:
            return {}
        sources = {
            name: [link.node for _, link in call.links() if link.node in graph.nodes]
            for name, call in graph.nodes.items()
        }
        foreign = [name for name, call in graph.nodes.items() if not self._is_own(call)]
        left_out = downstream(sources, foreign)
        texts = {
            name: self._texts(call) for name, call in graph.nodes.items() if name not in left_out
        }
        wanted, letters = [], 0
        for name, said in texts.items():
            length = sum(map(len, said.values()))
            if said and letters + length <= LETTERS:
                letters += length
                wanted.append(name)
        needed = upstream(sources, wanted)
        part = Graph({name: call for name, call in graph.nodes.items() if name in needed})
        sound = check(part, self._registry, self._folders, {}, wanted)
        if not sound.targets:
            return {}
        with self._context() as context:
            try:
                found = run_graph(sound.graph, context, ResultCache("none"), sound.targets)
            except Cancelled:
                return {}
        return {name: _sizes(texts[name], made) for name, made in found.outputs.items()}

    @contextmanager
    def _context(self) -> Iterator[RunContext]:
        """Makes the context of a run, which is cancelled when it takes too long."""
        engine: PlanningEngine[Region] = PlanningEngine(self._device, lambda region: region)
        context = RunContext(engine, self._folders, self._folders.output, types=self._registry)
        late = threading.Timer(SECONDS, context.cancel)
        late.start()
        try:
            yield context
        finally:
            late.cancel()

    def _is_own(self, call: NodeCall) -> bool:
        return call.type in self._registry and self._registry[call.type].pack == BUILTIN

    def _texts(self, call: NodeCall) -> Mapping[str, str]:
        """Returns the texts of a node that encodes prompts, by input."""
        kind = self._registry[call.type]
        linked = {kind.inputs[name].socket for name, _ in call.links() if name in kind.inputs}
        encodes = any(output.socket == "CONDITIONING" for output in kind.outputs)
        if not encodes or "CLIP" not in linked:
            return {}
        return {
            name: value
            for name, value in call.inputs.items()
            if isinstance(value, str) and name in kind.inputs and kind.inputs[name].widget.multiline
        }


def _sizes(
    texts: Mapping[str, str], outputs: tuple[Any, ...]
) -> Mapping[str, tuple[TextSize, ...]]:
    """Counts each of a node's texts for the encoders that read it, the longest of each kind."""
    found: dict[str, dict[str, TextSize]] = {name: {} for name in texts}
    for prompt in _prompts(outputs):
        for number in range(len(prompt.clip.encoders)):
            for name, text in texts.items():
                if text == prompt.text_of(number):
                    size = text_size(prompt, number)
                    known = found[name].setdefault(size.encoder, size)
                    found[name][size.encoder] = max(known, size, key=lambda one: one.tokens)
    return {name: tuple(sizes.values()) for name, sizes in found.items()}


def _prompts(outputs: tuple[Any, ...]) -> Iterator[Prompt]:
    for conditioning in outputs:
        for entry in conditioning if isinstance(conditioning, tuple) else ():
            if isinstance(entry, ConditioningEntry):
                yield from prompts(entry.encoding)
