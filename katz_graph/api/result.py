"""Defines the results of runs and plans for Python programs."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.api.builder import Node, Output, node_id
from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.messages import listed, show
from katz_graph.executor.graph.lists import Listed, elements
from katz_graph.files.picture_kinds import PICTURE_ENDINGS
from katz_graph.node.scope import ExecutionBlocker
from katz_graph.node.ui_results import written

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from katz_graph.core.graph import Graph
    from katz_graph.core.latent_space import LatentSamples
    from katz_graph.executor.graph.result import GraphResult
    from katz_graph.ir.program import Program
    from katz_graph.node.types import Context, NodeType


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """The compiled programs of samplers. Prints as text; notebooks draw the first program."""

    programs: tuple[Program, ...]

    def __len__(self) -> int:
        return len(self.programs)

    def __getitem__(self, number: int) -> Plan:
        """Returns the plan of a single sampler."""
        return Plan((self.programs[number],))

    @property
    def predicted_seconds(self) -> float | None:
        """Returns the predicted sampling time in seconds; None without a sampler."""
        predictions = (program.prediction for program in self.programs)
        return sum(one.planned for one in predictions if one) if self.programs else None

    @property
    def is_profiled(self) -> bool:
        """Returns whether the prediction uses only measured stages, no device rates."""
        from katz_graph.planner.queries import unprofiled

        return all(unprofiled(program)[0] == 0 for program in self.programs)

    def __str__(self) -> str:
        from katz_graph.planner.report.text import as_text

        return "\n".join(map(as_text, self.programs))

    __repr__ = __str__

    def as_json(self) -> Any:
        """Returns the JSON data of `katz plan --json`: an object for one sampler, otherwise a
        list.
        """
        from katz_graph.planner.report.describe import as_json

        plans = [as_json(program) for program in self.programs]
        return plans[0] if len(plans) == 1 else plans

    def as_svg(self) -> str:
        """Draws two evaluations of the first sampler. InputError if the plan has no segments."""
        if not self.programs or not self.programs[0].segments:
            raise InputError(
                "no segments to draw: the plan ends before segments are made, or has no sampler"
            )
        from katz_graph.planner.report.svg import as_svg

        return as_svg(self.programs[0])

    def _repr_svg_(self) -> str | None:
        return self.as_svg() if self.programs and self.programs[0].segments else None


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """The result of one run."""

    outputs: Mapping[str, tuple[Any, ...]]
    """Outputs of the targets by node id, also available as `result["9"]`."""
    latents: tuple[LatentSamples, ...]
    """LATENT outputs of the targets."""
    files: tuple[Path, ...]
    """Files that the run wrote."""
    seconds: Mapping[str, float]
    """Time in total and by part: `total`, `load`, `prepare`, `denoise`, `vae`."""
    calls: Mapping[str, int]
    """Number of stage calls that were `recorded` as CUDA graphs, `replayed`, run on two concurrent
    streams (`beside`), run `eager`, and `shared` with other runs.
    """
    activations: Mapping[str, float]
    """What samplers read from templates: `bytes`, `seconds` and `waited_seconds`; empty without."""
    plan: Plan
    approximations: tuple[str, ...]
    seed: int | None
    """The first literal seed in the workflow."""
    warnings: tuple[str, ...]
    error: KatzError | None
    """The error of a run with `partial`."""
    _pictures: tuple[Path | Tensor, ...]

    def __getitem__(self, node: Node) -> Any:
        """Returns the outputs of a target, or the value of one output. InputError for other
        nodes.
        """
        identifier = node_id(node)
        if identifier not in self.outputs:
            targets = listed(self.outputs) or "none"
            raise InputError(
                f"node {show(identifier)} is not a target of this run, which stored the outputs "
                f"of: {targets}"
            )
        outputs = self.outputs[identifier]
        return outputs[node.link.output] if isinstance(node, Output) else outputs

    @property
    def images(self) -> list[Image]:
        """Returns the pictures that targets wrote (SaveImage, PreviewImage), and the IMAGE outputs
        of those that wrote none.
        """
        return list(self._decoded())

    def _decoded(self) -> Iterator[Image]:
        from PIL import Image

        from katz_graph.files.images import to_pillow

        for picture in self._pictures:
            if isinstance(picture, Path):
                with Image.open(picture) as opened:
                    opened.load()
                    yield opened
            else:
                yield from map(to_pillow, picture)

    def __repr__(self) -> str:
        pictures = sum(1 if isinstance(one, Path) else len(one) for one in self._pictures)
        return (
            f"<Result: {pictures} picture{'' if pictures == 1 else 's'}, "
            f"{self.seconds['total']:.2f} s>"
        )


def pictures_of(
    found: GraphResult, graph: Graph, types: Mapping[str, NodeType], context: Context
) -> Iterator[Path | Tensor]:
    """Yields the picture files that targets show, and the output pictures [B, H, W, C] of targets
    that show none.
    """
    for ui in found.ui.values():
        files = written(context, {"images": ui.get("images", ())})
        yield from (file for file in files if file.suffix.lower() in PICTURE_ENDINGS)
    shown = {target for target, ui in found.ui.items() if ui.get("images")}
    yield from values_of(found, graph, types, "IMAGE", shown)


def values_of(
    found: GraphResult,
    graph: Graph,
    types: Mapping[str, NodeType],
    socket: str,
    but: Container[str] = (),
) -> Iterator[Any]:
    """Yields the values of one socket type on outputs of targets, except those of the nodes in
    `but`.
    """
    for target, values in found.outputs.items():
        for output, value in zip(types[graph.nodes[target].type].outputs, values, strict=False):
            if output.socket == socket and target not in but:
                given = (one for one in elements(value) if not isinstance(one, ExecutionBlocker))
                yield from (one for one in given if one is not None)


def plain(value: Any) -> Any:
    """Returns the value of an output; a list if the output has several values."""
    return list(value.values) if isinstance(value, Listed) else value
