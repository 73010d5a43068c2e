"""Requests begin from the picture of a request with a similar prompt, if that is allowed and a table
has been measured; other requests compute as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Katz
from PIL import Image
from test_cli import workflow, write
from torch import Tensor

import katz_graph
from katz_graph.core.allowed_approximations import made_with
from katz_graph.core.recipe import Area, ConditioningEntry, Prompt
from katz_graph.executor.measure import similar
from katz_graph.executor.measure.similar import Pair, SimilarProfile
from katz_graph.executor.planning import Choices
from katz_graph.executor.similar_index import Similar, SimilarIndex
from katz_graph.executor.similar_starts import level_for
from katz_graph.executor.start import start_here
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.region import Operation, Region
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.report.text import start_line
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, bind, sampler_region

STEPS = 6
AREA = Area(0, 0, 4, 8)


def case(models: Models, prompt: str = "a red circle", seed: int = 1, **changes: Any) -> Case:
    asked: dict[str, Any] = {"sampler": "euler", "steps": STEPS} | changes
    return Case("similar", models.pipeline, prompt=prompt, seed=seed, **asked)


@pytest.fixture
def start(costs: Path) -> Iterator[Callable[..., Any]]:
    """Starts an engine that allows these approximations."""
    opened = []

    def started(allowed: str = "similar-start") -> Any:
        choices = Choices(allowed=frozenset(filter(None, allowed.split(","))))
        opened.append(start_here(WorkerConfig("cpu", "cpu"), choices, costs))
        return opened[-1]

    yield started
    for engine in opened:
        engine.close()


def measured(engine: Any, region: Region, least: float, step: int) -> None:
    """Stores a table with one row."""
    request = engine.similar.request(region)
    engine.similar.keep(request.scale, [(least, request.levels[step])])


def sampled(engine: Any, region: Region) -> tuple[Tensor, Any]:
    """Returns the final latent, and the run's statistics."""
    context = bare_context(engine)
    return engine.sample(region, context)[0]["samples"], context


def started_from(region: Region, latent: Tensor, step: int) -> Region:
    """Returns a KSamplerAdvanced's region that begins at a step, from this picture with noise."""
    inputs = {**region.begin.inputs, "start_at_step": step, "latent_image": {"samples": latent}}
    return replace(region, begin=replace(region.begin, inputs=inputs))


def test_a_request_begins_from_the_picture_of_a_similar_prompt_with_its_own_noise(
    start: Callable[..., Any], sdxl: Models
) -> None:
    engine, plain = start(), start("")
    first = sampler_region(case(sdxl))
    other, seeded = (sampler_region(case(sdxl, "a blue circle", seed)) for seed in (2, 3))
    measured(engine, first, -1, 3)
    picture, context = sampled(engine, first)
    assert torch.equal(picture, sampled(plain, first)[0])  # nothing is stored yet
    assert context.measured.provenance.approximations == ()
    found, context = sampled(engine, other)
    assert torch.equal(found, sampled(plain, started_from(other, picture.half().float(), 3))[0])
    assert not torch.equal(found, sampled(engine, seeded)[0])
    (sampler,), provenance = context.measured.samplers, context.measured.provenance
    assert len(sampler.program.schedule) == STEPS - 3
    (origin,) = provenance.similar
    assert (origin.saved, origin.evaluations) == (3, STEPS)
    assert provenance.approximations == ("similar-start",)
    assert not provenance.permitted({"cached-edit"}) and provenance.permitted({"similar-start"})
    (chunk,) = json.loads(made_with("cpu", "fp32", provenance))["similar_starts"]
    assert chunk["saved"] == 3 and "circle" not in json.dumps(chunk)
    counts = engine.similar.counts
    assert (counts.entries, counts.hits, counts.misses) == (3, 2, 1)
    assert counts.evaluations_saved == 6


def test_only_the_measured_similarity_is_enough(start: Callable[..., Any], sd1: Models) -> None:
    engine = start()
    first, other = (sampler_region(case(sd1, text)) for text in ("a red circle", "a blue circle"))
    measured(engine, first, 0.999999, 3)
    pictures = [sampled(engine, one)[0] for one in (first, other)]
    found, context = sampled(engine, first)  # its own prompt
    assert context.measured.provenance.similar[0].similarity == pytest.approx(1)
    assert not torch.equal(found, pictures[0])
    unmeasured = sampler_region(case(sd1, guidance=4.0))
    for _ in range(2):
        _, context = sampled(engine, unmeasured)
        assert context.warnings and "katz profile" in context.warnings[0]
        assert context.measured.provenance.similar == ()
    assert engine.similar.counts.entries == 3


def test_requests_that_differ_in_more_than_prompt_and_seed_share_no_picture(
    start: Callable[..., Any], sdxl: Models
) -> None:
    engine = start()

    def control(strength: float) -> ControlCase:
        return ControlCase(sdxl.controls[0], strength, 0.0, 1.0)

    lora, other_lora = sdxl.loras[:2]
    noisy = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    changes: list[dict[str, Any]] = [
        {},
        {"loras": ((lora, 1.0),)},
        {"loras": ((lora, 0.5),)},
        {"loras": ((other_lora, 1.0),)},
        {"controls": (control(1.0),)},
        {"controls": (control(0.5),)},
        {"controls": (control(1.0),), "image": torch.zeros(1, 64, 64, 3)},
        {"steps": STEPS + 1},
        {"sampler": "dpmpp_2m"},
        {"guidance": 4.0},
        {"negative": "blue"},
        {"latent": torch.zeros(1, 4, 8, 16)},
        {"latent": torch.zeros(2, 4, 8, 8)},
        {"latent": noisy, "denoise": 0.8},
    ]
    requests = [engine.similar.request(sampler_region(case(sdxl, **one))) for one in changes]
    assert len({one.key for one in requests}) == len(changes)
    again = engine.similar.request(sampler_region(case(sdxl, "other", 5, **changes[6])))
    assert again.key == requests[6].key and again.scale == requests[6].scale
    # tables are measured without LoRAs, for one size and guidance
    assert len({one.scale for one in requests[:4]}) == 1
    assert len({requests[number].scale for number in (0, 9, 11)}) == 3


def test_requests_that_cannot_begin_from_a_picture_say_why(
    start: Callable[..., Any], sdxl: Models
) -> None:
    engine = start("similar-start,async-lora")
    plain = sampler_region(case(sdxl))
    mask = torch.zeros(8, 8)
    mask[2:4, 2:4] = 1

    def changed(**inputs: Any) -> Region:
        begin = plain.begin
        return replace(plain, begin=replace(begin, inputs={**begin.inputs, **inputs}))

    pattern = Operation("pattern", "step_pattern", "StepPattern", {})
    refused = {
        "the latent has a mask": sampler_region(case(sdxl, mask=mask)),
        "the sampler adds no noise": changed(add_noise=False),
        "does not end with a picture": changed(end_at_step=3, return_with_leftover_noise=True),
        "or has one step": changed(steps=1),
        "StepPattern counts": replace(plain, operations=(*plain.operations, pattern)),
        "may come late": sampler_region(case(sdxl, loras=((sdxl.loras[0], 1.0),))),
        "has areas": with_areas(sdxl),
    }
    for why, region in refused.items():
        chosen = engine._choose_start(region, bare_context(engine))
        assert why in chosen.region.similar.why_not, why
        assert chosen.request is None
    assert engine._choose_start(plain, bare_context(engine)).region.begin is plain.begin


def with_areas(models: Models) -> Region:
    model, clip, _ = pipeline_recipes(models.pipeline)
    whole, part = (ConditioningEntry(Prompt(clip, "a"), area=area) for area in (None, AREA))
    begin = {"model": model, "latent_image": {"samples": torch.zeros(1, 4, 8, 8)}}
    expansion = expand_sampling("StepBegin", begin, model, (whole, part), (whole,), 5.0)
    return bind(expansion.graph, expansion.outputs[0].node)


def test_the_index_finds_the_nearest_of_one_key_and_drops_the_least_used() -> None:
    generator = torch.Generator().manual_seed(1)
    encodings = torch.randn(400, 96, generator=generator)
    latent = torch.zeros(1, 4, 8, 8)
    index = SimilarIndex(max_entries=300)
    for number, encoding in enumerate(encodings):
        index.add("even" if number % 2 == 0 else "odd", encoding, str(number), latent)
        if number >= 1:  # used by others: number 1 stays
            near = nearest(index, "odd", encodings[1])
            assert near.picture.id == "1"
            index.note(near.picture)
    assert index.counts.entries == 300 and index.counts.evictions == 100
    assert index.counts.bytes == 300 * (latent.half().nbytes + 96 * 4 + 32 * 4)
    for wanted in (102, 250, 398):
        near = nearest(index, "even", encodings[wanted] + 0.05 * encodings[0])
        assert near.picture.id == str(wanted)
        exact = torch.cosine_similarity(
            encodings[wanted], encodings[wanted] + 0.05 * encodings[0], dim=0
        )
        assert near.similarity == pytest.approx(float(exact), abs=1e-6)
    assert nearest(index, "even", encodings[2]).picture.id != "2"  # dropped
    assert index.nearest("another", encodings[0]) is None
    small = SimilarIndex(max_bytes=2 * (512 + 96 * 4 + 128))
    for number in range(3):
        small.add("key", encodings[number], str(number), latent)
        small.add("key", encodings[number], str(number), latent)  # known by its id
    assert (small.counts.entries, small.counts.evictions) == (2, 1)
    small.add("key", encodings[9], "large", torch.zeros(1, 4, 64, 64))
    assert small.counts.entries == 2


def nearest(index: SimilarIndex, key: str, encoding: Tensor) -> Similar:
    found = index.nearest(key, encoding)
    assert found is not None
    return found


def test_a_table_earns_the_latest_start_of_its_rows() -> None:
    table = [(0.5, 4.0), (0.9, 2.0), (0.99, 1.0)]
    levels = [level_for(table, similarity) for similarity in (0.4, 0.5, 0.95, 1.0)]
    assert levels == [float("inf"), 4.0, 2.0, 1.0]


def test_a_profile_earns_starts_only_where_hardly_any_pair_fails() -> None:
    def profile(*pairs: tuple[float, int]) -> SimilarProfile:
        measured = [Pair(similarity, step) for similarity, step in pairs]
        return SimilarProfile("5", "scale", [8.0, 4.0, 2.0, 1.0], [1, 2], measured)

    near = [(0.9 + number / 1000, 2) for number in range(12)]
    assert profile(*near[:9]).earned == []  # too few
    assert profile(*near).table == [(0.9, 4.0), (0.9, 2.0)]
    assert profile(*near, (0.8, 1)).earned == [(0.8, 1), (0.9, 2)]
    assert profile(*near, (0.99, 1)).earned == [(0.9, 1)]  # 1 of the 10 nearest fails
    many = [(0.9 + number / 1000, 2) for number in range(99)]
    assert profile(*many, (0.5, 1)).earned == [(0.5, 1), (0.5, 2)]  # 1 of 100 fails


def test_later_runs_use_the_profile(
    katz: Katz, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KATZ_CACHE", "cache")
    monkeypatch.setattr(similar, "MIN_PAIRS", 1)
    monkeypatch.setattr(similar, "MARGIN", -1e9)  # random models follow no prompt
    file, common = write(workflow(steps=4)), ("--models", model_folder, "--threads", 1)
    prompts = [part for text in ("moon", "dog") for part in ("--vary", f"2.text=a {text}")]
    profiled = katz("profile", file, *common, "--similar", *prompts, "--json")
    assert profiled.code == 0, profiled.err
    ((_, earliest), *_, (least, latest)) = (
        tuple(one.values()) for one in profiled.data[0]["earned"]
    )
    assert 1 <= earliest < latest == 2 and least < 1
    ran = katz("run", file, *common, "--allow", "similar-start", "--json")
    assert "no picture with a prompt near enough is stored" in ran.err
    assert ran.data["plan"]["similar_start"]["why_not"] and not ran.data["approximations"]
    options = {"models": model_folder, "threads": 1, "allow": "similar-start"}
    with katz_graph.Engine(**options) as engine:
        first, second = (engine.run(file, seed=seed) for seed in (1, 2))
    assert first.approximations == () and second.approximations == ("similar-start",)
    start = second.plan.as_json()["similar_start"]
    assert start["evaluations_saved"] == 2 and start["similarity"] == pytest.approx(1)
    assert "saved 2 of 4 evaluations" in (start_line(second.plan.programs[0]) or "")
    with Image.open(second.files[0]) as picture:
        assert start["picture"] in picture.text["katz"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--similar",), "workflow"),
        (("plain.json", "--similar"), "further prompts"),
        (("plain.json", "--similar", "--loras"), "choose one"),
        (("plain.json", "--similar", "--vary", "5.steps=1"), "may begin from another"),
    ],
)
def test_a_profile_of_similar_prompts_refuses_in_one_line(
    katz: Katz, model_folder: Path, arguments: tuple[str, ...], word: str
) -> None:
    write(workflow(steps=1), "plain.json")
    refused = katz("profile", *arguments, "--models", model_folder)
    assert refused.code == 2 and len(refused.errors) == 1 and word in refused.errors[0]
