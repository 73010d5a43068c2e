"""Answers an editor's questions about a graph by running nodes that need no model. Must not know
the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import NodeCall
from katz_graph.core.recipe import ConditioningEntry, Prompt
from katz_graph.executor.rehearsal import Rehearsal
from katz_graph.files.folders import Folders
from katz_graph.models.text.recipe import TextSize, prompts
from katz_graph.models.text.tokens import text_size
from katz_graph.packs import Registry
from katz_graph.web.options import Limits
from katz_graph.web.runner.checking import Malformed, parsed
from katz_graph.web.runner.limits import limited
from katz_graph.web.runner_client.facts import TextSizes, WrittenOut

SECONDS = 5.0  # after which no node starts
LETTERS = 200_000  # characters of all texts that one request counts


class DryRuns:
    """Runs only built-in nodes, never pack nodes. Does not use the jobs' devices."""

    def __init__(self, registry: Registry, folders: Folders, limits: Limits) -> None:
        self._registry, self._limits = limited(registry, limits), limits
        self._folders = folders

    def text_sizes(self, document: Any) -> TextSizes:
        """Counts the tokens of a document's prompts. Omits texts whose encoders are unknown because
        they are invalid, not linked, or from a pack.
        """
        try:
            graph = parsed(document, self._registry, self._limits).graph
        except Malformed:
            return {}
        texts, letters = {}, 0
        for name, call in graph.nodes.items():
            said = self._texts(call)
            length = sum(map(len, said.values()))
            if said and letters + length <= LETTERS:
                letters += length
                texts[name] = said
        made = self._rehearsal().outputs(graph, texts)
        return {name: _sizes(texts[name], outputs) for name, outputs in made.items()}

    def step(self, document: Any, sampler: str) -> WrittenOut:
        """Returns the nodes that replace a document's sampler."""
        try:
            graph = parsed(document, self._registry, self._limits).graph
            return WrittenOut(self._rehearsal().step(graph, sampler))
        except InputError as error:
            return WrittenOut(error=str(error))

    def _rehearsal(self) -> Rehearsal:
        return Rehearsal(self._registry, self._folders, SECONDS)

    def _texts(self, call: NodeCall) -> Mapping[str, str]:
        """Returns a node's prompt texts by input; empty if the node encodes no prompts."""
        kind = self._registry.get(call.type)
        if kind is None:
            return {}
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
    """Returns the largest token count of a node's texts for each kind of encoder."""
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
