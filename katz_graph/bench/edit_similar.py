"""Measures requests that begin from the picture of a similar prompt, for `katz bench edit`.

Captions of the miniature world arrive one after the other: scenes drawn by Zipf, with one attribute
changed at random. The judge compares their pictures with those of full runs. The table of similar
starts is measured with captions of other scenes, without the judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from katz_graph.bench.contact_sheet import contact_sheet
from katz_graph.bench.result import BenchResult, Figures
from katz_graph.core.recipe import tensor_digest
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.measure.similar import SimilarProfile, SimilarProfiler
from katz_graph.executor.similar_index import SimilarIndex
from katz_graph.executor.similar_starts import DIGITS
from katz_graph.files.folders import MINI
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.region import Region, SimilarStart
from katz_graph.mini.evaluate import attributes
from katz_graph.mini.judge import Judge, judge, load_judge
from katz_graph.mini.world import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZES,
    Scene,
    caption,
    sample_scene,
)
from katz_graph.planner.similar import SimilarRequest, similar_request
from katz_graph.testing.miniature import (
    Miniature,
    flow_miniature,
    miniature_region,
    noise_miniature,
)
from katz_graph.testing.requests import bare_context, local_engine

SAVED, POINTS, OLD, SECONDS = 0.25, 0.03, 0.02, 0.002
ENTRIES, WIDTH, LOOK_UPS = 100_000, 768, 30
PLACES = 3  # rows and columns of the world
SHOWN = 6  # requests in the contact sheet
BATCH = 50  # pictures judged together


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the miniatures, the captions that arrive, those that the table is measured with, and the
    pairs of other requests.
    """

    miniatures: Mapping[str, Callable[[], Miniature]] = field(
        default_factory=lambda: {"noise": noise_miniature, "flow": flow_miniature}
    )
    captions: int = 400
    scenes: int = 50  # from which these are drawn by Zipf
    profiled: int = 10  # scenes, with CHANGED changes of each
    changed: int = 3
    steps: int = 20
    pairs: int = 1000
    entries: int = ENTRIES


def one_changed(scene: Scene, generator: np.random.Generator) -> Scene:
    """Returns a scene with another shape, colour, size, place or background."""
    (thing,) = scene.things
    places = [(row, column) for row in range(PLACES) for column in range(PLACES)]
    row, column = _other(places, (thing.row, thing.column), generator)
    changes = (
        replace(thing, shape=_other(SHAPES, thing.shape, generator)),
        replace(thing, colour=_other(COLOURS, thing.colour, generator)),
        replace(thing, size=_other(SIZES, thing.size, generator)),
        replace(thing, row=row, column=column),
    )
    number = int(generator.integers(len(changes) + 1))
    if number == len(changes):
        return replace(scene, background=_other(BACKGROUNDS, scene.background, generator))
    return replace(scene, things=(changes[number],))


def _other(names: Sequence[Any], name: Any, generator: np.random.Generator) -> Any:
    others = [one for one in names if one != name]
    return others[int(generator.integers(len(others)))]


def arrivals(scale: Scale, seed: int = 21) -> list[Scene]:
    """Draws the scenes of the captions that arrive."""
    generator = np.random.default_rng(seed)
    scenes = [sample_scene(generator, 1) for _ in range(scale.scenes)]
    weights = 1 / np.arange(1, scale.scenes + 1)
    drawn = generator.choice(scale.scenes, scale.captions, p=weights / weights.sum())
    return [one_changed(scenes[int(number)], generator) for number in drawn]


def profiled(scale: Scale, seed: int = 22) -> Iterator[Scene]:
    """Yields the scenes that the table is measured with."""
    generator = np.random.default_rng(seed)
    for _ in range(scale.profiled):
        scene = sample_scene(generator, 1)
        yield scene
        for _ in range(scale.changed):
            yield one_changed(scene, generator)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture [128, 128, 3] of a scene, and from which other scene's picture it began."""

    scene: Scene
    pixels: Tensor
    start: SimilarStart | None
    other: Scene | None = None


@dataclass(frozen=True, slots=True)
class Painter:
    """Paints scenes with an engine in this process."""

    engine: DeviceEngine
    miniature: Miniature
    steps: int

    def region(self, scene: Scene, seed: int) -> Region:
        return miniature_region(self.miniature, caption(scene), seed, steps=self.steps)

    def profile(self, scenes: Sequence[Scene]) -> SimilarProfile:
        context, profiler = bare_context(self.engine), SimilarProfiler(self.engine)
        for number, scene in enumerate(scenes):
            profiler.sample(self.region(scene, 100_000 + number), context)
        (found,) = profiler.measure(context)
        return found

    def pictures(self, scenes: Sequence[Scene], allow: str) -> list[Picture]:
        """Paints scenes one after the other."""
        found, stored = [], dict[str, Scene]()
        for number, scene in enumerate(scenes):
            context = bare_context(self.engine)
            context.changes = PlanChanges(allow=allow)
            latent, _ = self.engine.sample(self.region(scene, number), context)
            samples = latent["samples"]
            pixels = self.engine.decode_latent(self.miniature.vae, samples, context)[0]
            (start,) = context.measured.provenance.similar or (None,)
            stored[tensor_digest(samples)[:DIGITS]] = scene
            other = None if start is None else stored[start.picture]
            found.append(Picture(scene, pixels, start, other))
        return found


def run(scale: Scale | None = None) -> BenchResult:
    """Measures a table for each miniature, and then pictures with it."""
    scale = scale or Scale()
    model = load_judge(MINI / "judge")
    figures, shown = Figures(), dict[str, list[Tensor]]()
    scenes = arrivals(scale)
    for name, miniature in scale.miniatures.items():
        with _engine() as engine:
            painter = Painter(engine, miniature(), scale.steps)
            profile = painter.profile([*profiled(scale)])
            full = painter.pictures(scenes, "")
        for way, table in _tables(profile).items():
            with _engine() as engine:
                engine.similar.keep(profile.scale, table)
                found = Painter(engine, miniature(), scale.steps).pictures(scenes, "similar-start")
            _compare(figures, model, f"{name}_{way}", full, found, bounded=way == "profiled")
            chosen = [number for number, one in enumerate(found) if one.start][:SHOWN]
            shown[f"{name}: {way}"] = [found[number].pixels for number in chosen]
            shown[f"{name}: in full"] = [full[number].pixels for number in chosen]
        figures.add(f"{name}_others_hit", _others(scale, miniature()), "<=", 0)
        for least, step in profile.earned:
            figures.rows.append([f"{name}: from similarity {least:.4f}", f"step {step}"])
    figures.add("look_up_seconds", _look_up_seconds(scale.entries), "<=", SECONDS)
    columns = (
        "requests",
        "evaluations saved",
        "began",
        "attributes",
        "in full",
        "old one",
        "in full",
    )
    return figures.result(
        "edit", columns, contact_sheet(shown, [str(number + 1) for number in range(SHOWN)])
    )


def _engine() -> DeviceEngine:
    return local_engine(threads=torch.get_num_threads(), batching=True)


def _tables(profile: SimilarProfile) -> Mapping[str, list[tuple[float, float]]]:
    """Returns the measured table, and one that begins at half of the steps from any picture."""
    return {"profiled": profile.table, "half": [(-1.0, profile.levels[len(profile.levels) // 2])]}


def _compare(
    figures: Figures,
    model: Judge,
    name: str,
    full: Sequence[Picture],
    found: Sequence[Picture],
    bounded: bool,
) -> None:
    """Adds a row, and the bounded figures."""
    started = [one for one in found if one.start is not None]
    saved = sum(one.start.saved / one.start.evaluations for one in started if one.start)
    right = [
        fmean(attributes(_judged(model, pictures), [one.scene for one in pictures]).values())
        for pictures in (found, full)
    ]
    in_full = [
        replace(one, other=other.other)
        for one, other in zip(full, found, strict=True)
        if other.start is not None
    ]
    old, usual = (
        _with_old_attribute(model, pictures) / max(1, len(started))
        for pictures in (started, in_full)
    )
    share = saved / len(found)
    figures.rows.append([name, share, len(started), *right, old, usual])
    figures.metrics |= {f"{name}_saved": share, f"{name}_old": old}
    figures.metrics[f"{name}_attributes_lost"] = right[1] - right[0]
    if bounded:
        figures.add(f"{name}_saved", share, ">=", SAVED)
        figures.add(f"{name}_attributes_lost", right[1] - right[0], "<=", POINTS)
        figures.add(f"{name}_old", old, "<=", OLD)


def _judged(model: Judge, pictures: Sequence[Picture]) -> list[Any]:
    parts = range(0, len(pictures), BATCH)
    pixels = [torch.stack([one.pixels for one in pictures[at : at + BATCH]]) for at in parts]
    return [verdict for part in pixels for verdict in judge(model, part, 1)]


def _with_old_attribute(model: Judge, pictures: Sequence[Picture]) -> int:
    """Counts pictures that show an attribute of the picture from which they began where their own
    caption has another one.
    """
    count = 0
    for one, verdict in zip(pictures, _judged(model, pictures), strict=True):
        assert one.other is not None
        seen = {**_facts(verdict.things[0]), "background": verdict.background}
        own, other = (
            {**_facts(scene.things[0]), "background": scene.background}
            for scene in (one.scene, one.other)
        )
        count += any(seen[name] == other[name] != own[name] for name in own)
    return count


def _facts(thing: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in ("shape", "colour", "size", "place")}


def _others(scale: Scale, mini: Miniature) -> int:
    """Counts the hits of requests with the prompt of a stored picture and another LoRA, strength,
    ControlNet picture, size or schedule.
    """
    generator = np.random.default_rng(23)
    hints = [torch.rand(1, 128, 128, 3, generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    cells = (16, 20, 24)
    scene = sample_scene(generator, 1)

    def drawn() -> dict[str, Any]:
        return {
            "lora": str(generator.choice(["", *mini.styles])),
            "strength": round(float(generator.uniform(0.1, 1)), 1),
            "hint": int(generator.integers(len(hints) + 1)),
            "cells": tuple(int(one) for one in generator.choice(cells, 2)),
            "steps": int(generator.integers(5, 9)),
        }

    def request(facts: Mapping[str, Any], seed: int) -> SimilarRequest:
        loras = [(facts["lora"], facts["strength"])] if facts["lora"] else []
        control = (mini.hints[0], hints[facts["hint"] - 1]) if facts["hint"] else None
        channels = 4
        latent: Any = {"samples": torch.zeros(1, channels, *facts["cells"])}
        region = miniature_region(
            mini, caption(scene), seed, control, loras, facts["steps"], latent=latent
        )
        found = similar_request(region, "float32")
        assert isinstance(found, SimilarRequest)
        return found

    hits, encoding = 0, torch.ones(WIDTH)
    for number in range(scale.pairs):
        one, index = drawn(), SimilarIndex()
        name = str(generator.choice([*one]))
        other = {**one, name: drawn()[name]}
        while other == one or (name == "strength" and not one["lora"]):
            one = drawn()
            other = {**one, name: drawn()[name]}
        index.add(request(one, number).key, encoding, "picture", torch.zeros(1))
        assert index.nearest(request(one, number + 1).key, encoding) is not None
        hits += index.nearest(request(other, number).key, encoding) is not None
    return hits


def _look_up_seconds(entries: int) -> float:
    """Returns the median seconds of a look-up among entries of one key."""
    generator = torch.Generator().manual_seed(24)
    index = SimilarIndex(entries, max_bytes=2**40)
    latent = torch.zeros(1)
    for number in range(entries):
        index.add("key", torch.randn(WIDTH, generator=generator), str(number), latent)
    took = []
    for _ in range(LOOK_UPS):
        encoding = torch.randn(WIDTH, generator=generator)
        started = time.perf_counter()
        index.nearest("key", encoding)
        took.append(time.perf_counter() - started)
    return median(took)
