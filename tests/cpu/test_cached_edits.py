"""A masked request reads its template's activations while it computes, and computes what they
do not cover.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import katz_graph
from katz_graph.cli.template import drop, show
from katz_graph.core.errors import InputError, RunError
from katz_graph.core.events import Sampled
from katz_graph.core.patches import DiscreteSampling, OpaquePatch
from katz_graph.core.recipe import Area, ConditioningEntry, EditTemplate, Picture, Prompt
from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor.calls.stage_calls import StageCalls
from katz_graph.executor.cluster.router import Lease
from katz_graph.executor.planning import Choices
from katz_graph.executor.start import start_here
from katz_graph.executor.template_filler import TemplateFiller
from katz_graph.executor.templates.budget import TemplatePlace, parse_template_place
from katz_graph.executor.templates.store import Template as StoredTemplate
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_program import device_program
from katz_graph.executor.worker.execution import Execution
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import TemplateUse, shown_template
from katz_graph.models.active import active_positions
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.planner.passes import reuse
from katz_graph.planner.passes.emit import emit
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.report.text import edit_line
from katz_graph.planner.template import TemplateRequest
from katz_graph.settings.options import TemplateOptions
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import bare_context, bind, sample, sampler_region
from katz_graph.testing.template_calls import NotedCalls

BOUND = 1e-5  # of the range
SIDE, LEVELS, STEPS = 16, 3, 6
MB = 2**20
WORKFLOWS = Path(__file__).parents[2] / "workflows"
INPAINT = WORKFLOWS / "inpaint.json"


@pytest.fixture(scope="module")
def latent() -> Tensor:
    return torch.randn(1, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(3))


def case(models: Models, latent: Tensor, steps: int = STEPS, top: int = 3) -> Case:
    mask = torch.zeros(SIDE, SIDE)
    mask[top : top + 4, 3:9] = 1
    # at less than full noise, the first evaluation sees the template everywhere
    return Case("edit", models.pipeline, "euler", steps, 0.5, latent=latent, mask=mask)


def filled(engine: Any, asked: Case) -> TemplateRequest:
    request = engine.templates.request(sampler_region(asked))
    assert isinstance(request, TemplateRequest)
    engine.fill_template(request, bare_context(engine))
    return request


def edit_of(engine: Any, asked: Case, name: str, numbers: Sequence[int]) -> tuple[Region, Program]:
    """Plans an edit that reads every layer of a template, even if that does not pay."""
    region = sampler_region(asked)
    program = engine.plan(region)
    assert asked.mask is not None
    positions = active_positions(asked.mask[None, None], 1, LEVELS, bucket=4)
    (stored,) = engine.templates.store.templates(name)
    reused: dict[str, list[str]] = {}
    for tensor in stored.manifest.evaluations[0].layers:
        operation, _, layer = tensor.partition("/")
        reused.setdefault(operation, []).append(layer)
    use = TemplateUse(name, tuple(numbers), positions)
    layers = {operation: tuple(found) for operation, found in reused.items()}
    return region, emit(replace(program, template=use, reused=layers))


def run(engine: Any, region: Region, program: Program) -> Tensor:
    return ran(engine, region, program)[0]


def ran(engine: Any, region: Region, program: Program) -> tuple[Tensor, Mapping[str, float]]:
    """Returns the final latent, and what was read from a template."""
    context = bare_context(engine)
    samples: Tensor = engine._carried_out(region, program, context)[0]["samples"]
    return samples, context.measured.activations


def full(engine: Any, asked: Case) -> Tensor:
    region = sampler_region(asked)
    return run(engine, region, engine.plan(region))


@pytest.fixture
def engine(costs: Path, tmp_path: Path) -> Iterator[Any]:
    config = WorkerConfig(
        "cpu",
        "cpu",
        shared_rows=SharedRows(8),
        templates=TemplatePlace(str(tmp_path / "templates"), MB, 64 * MB),
    )
    with start_here(config, Choices(allowed=frozenset({"cached-edit"})), costs) as engine:
        yield engine


def test_an_edit_that_sees_the_template_gives_the_full_picture(
    engine: Any, sdxl: Models, latent: Tensor
) -> None:
    asked = case(sdxl, latent, steps=1)
    name = filled(engine, asked).name
    plan = edit_of(engine, asked, name, [0])
    whole = full(engine, asked)
    found, read = ran(engine, *plan)
    assert difference(found, whole) <= BOUND
    counts = engine.models.template_store.counts
    assert counts.hits == 1
    assert read["bytes"] == counts.read_memory_bytes + counts.read_disk_bytes > 0
    assert engine.templates.store.drop(name)[0] == [name]
    context = bare_context(engine)
    samples = engine._carried_out(*plan, context)[0]["samples"]
    assert torch.equal(samples, whole)  # every layer computes all tokens
    (program,) = context.measured.programs
    assert str(edit_line(program)).endswith("full: its template could not be read")
    assert not context.measured.provenance.approximations


def test_a_fill_without_room_ends_early(
    costs: Path, tmp_path: Path, sdxl: Models, latent: Tensor
) -> None:
    asked, place = case(sdxl, latent), TemplatePlace(str(tmp_path), 0, 1000)
    with start_here(WorkerConfig("cpu", "cpu", templates=place), cache=costs) as engine:
        engine.models.compute = noted = NotedCalls()

        def computed(act: Callable[[Any, Case], object]) -> int:
            noted.calls.clear()
            act(engine, asked)
            return len(noted.calls)

        assert 0 < computed(filled) < computed(full)
        assert computed(filled) == 0  # it is refused at once
        assert not engine.templates.store.templates()


def test_the_router_knows_which_template_a_request_may_read(
    engine: Any, sdxl: Models, latent: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, admitted, admit = case(sdxl, latent, steps=1), [], engine._router.admit

    def noted(region: Region, chooses: bool, template: str) -> Lease:
        admitted.append(template)
        lease: Lease = admit(region, chooses, template)
        return lease

    monkeypatch.setattr(engine._router, "admit", noted)
    request = filled(engine, asked)
    for one, changes in (
        (asked, PlanChanges()),
        (asked, PlanChanges(allow="")),
        (replace(asked, mask=None), PlanChanges()),
    ):
        sample(engine, sampler_region(one), replace(bare_context(engine), changes=changes))
    assert admitted == [request.prefix, "", ""]


def test_waits_for_loads_do_not_count_as_computation(
    engine: Any, sdxl: Models, latent: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = case(sdxl, latent)
    name = filled(engine, asked).name
    _, edit = edit_of(engine, asked, name, range(STEPS))
    read = StoredTemplate.read

    def slowly(*where: Any) -> Tensor:
        time.sleep(0.02)
        return read(*where)

    monkeypatch.setattr(StoredTemplate, "read", slowly)

    def pace(program: Program) -> float:
        calls = StageCalls(engine.models)
        share = device_program(program, program.sampler_device)
        execution = Execution(share, engine.models, bare_context(engine), stage_calls=calls)
        with torch.inference_mode():
            while not (execution.ready and execution.step()):
                pass
        execution.close()
        return calls.pace

    assert 0.3 < pace(edit) / pace(engine.plan(sampler_region(asked))) < 3


def test_edits_keep_the_rest_of_the_picture_and_share_calls(
    engine: Any, sdxl: Models, latent: Tensor
) -> None:
    cases = [case(sdxl, latent, top=top) for top in (2, 6)]
    name = filled(engine, cases[0]).name
    plans = [edit_of(engine, one, name, range(STEPS)) for one in cases]
    alone = [run(engine, *plan) for plan in plans]
    for asked, found in zip(cases, alone, strict=True):
        assert asked.mask is not None
        outside, whole = asked.mask == 0, full(engine, asked)
        assert torch.equal(found[..., outside], whole[..., outside])
        assert BOUND < difference(found, whole) < 0.2
    wrong = run(engine, *edit_of(engine, cases[0], name, range(STEPS)[::-1]))
    assert difference(wrong, alone[0]) > 100 * BOUND  # read from other noise levels
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda plan: run(engine, *plan), plans))
    assert max(map(difference, both, alone)) <= BOUND
    assert engine.models.compute.use.shared > 0


@pytest.mark.parametrize("kind", ["sd35", "flux"])
def test_edits_by_transformers(engine: Any, tmp_path: Path, kind: Kind) -> None:
    """Blocks of text and picture tokens read templates, alone and in shared calls."""
    make_pipeline(tmp_path / kind, kind, 1)
    picture = torch.randn(1, 16, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    mask = torch.zeros(SIDE, SIDE)
    mask[3:8, 5:9] = 1
    own = Case("edit", tmp_path / kind, "euler", 1, 0.5, latent=picture, mask=mask)
    name = filled(engine, own).name
    edits = [own, replace(own, prompt="a mountain", seed=8)]
    plans = [edit_of(engine, one, name, [0]) for one in edits]
    whole = [full(engine, one) for one in edits]
    alone = [run(engine, *plan) for plan in plans]
    assert difference(alone[0], whole[0]) <= BOUND  # the same input as the template
    assert torch.equal(alone[1][..., mask == 0], whole[1][..., mask == 0])
    assert 0 < difference(alone[1], whole[1]) < 0.05 * difference(*whole)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda plan: run(engine, *plan), plans))
    assert max(map(difference, both, alone)) <= BOUND
    assert engine.models.template_store.counts.hits == 4


def test_a_request_fills_the_template_that_later_ones_find(
    engine: Any, sdxl: Models, latent: Tensor
) -> None:
    asked, programs, stored = case(sdxl, latent), list[Program](), threading.Event()
    context = bare_context(engine)
    context.listener = lambda event: (
        programs.append(event.program) if isinstance(event, Sampled) else None
    )
    fill = engine.fill_template
    engine.fill_template = lambda *arguments: (fill(*arguments), stored.set())
    engine.fills_templates = True
    engine.sample(sampler_region(asked), context)
    assert stored.wait(60)
    engine.sample(sampler_region(replace(asked, prompt="a blue square", seed=9)), context)
    first, second = (program.reuse for program in programs)
    assert first is not None and first.why_not == "no template of its picture is filled"
    assert second is not None and second.why_not != first.why_not and second.layers > 0


def test_no_template_is_filled_that_no_request_could_read(
    engine: Any, sdxl: Models, latent: Tensor
) -> None:
    asked = case(sdxl, latent)
    model, clip, _ = pipeline_recipes(sdxl.pipeline)
    half = ConditioningEntry(Prompt(clip, "a red circle"), area=Area(0, 0, SIDE, SIDE // 2))
    masked = {"samples": latent, "noise_mask": asked.mask}
    begin = {"sampler_name": "euler", "scheduler": "normal", "steps": 2, "seed": 7}
    given = {**begin, "latent_image": masked, "model": model}
    sides = (half, ConditioningEntry(Prompt(clip, "a cat"))), (ConditioningEntry(Prompt(clip, "")),)
    expansion = expand_sampling("StepBegin", given, model, *sides, 4.0)
    said: list[str] = []
    filler = TemplateFiller(engine, said.append, False)
    filler.sample(bind(expansion.graph, expansion.outputs[0].node), bare_context(engine))
    assert "areas" in said[0] and not filler.filled


def test_workflows_that_edit_one_picture_share_its_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node ids, the positive prompt and the seed may differ; the negative prompt may not."""
    monkeypatch.setenv("KATZ_CACHE", str(tmp_path))
    text = INPAINT.read_text()
    other = tmp_path / "other.json"
    other.write_text(text.replace('"5"', '"55"'))
    with katz_graph.open(allow="cached-edit") as engine:
        assert len(engine.fill_templates(INPAINT, set=["5.steps=2"])) == 1
        assert engine.fill_templates(INPAINT, set=["5.steps=2", "5.seed=1"]) == []

        def why(path: Path, *changes: str) -> str:
            (program,) = engine.run(path, set=changes).plan.programs
            assert program.reuse is not None
            return str(program.reuse.why_not)

        absent = "no template of its picture is filled"
        assert why(other, "55.steps=2", "2.text=a blue square on the left") != absent
        assert why(INPAINT, "5.steps=2", "3.text=grey") == absent

        twice = json.loads(text)
        twice["12"] = {"class_type": "SetLatentNoiseMask"}
        twice["12"]["inputs"] = {"samples": ["5", 0], "mask": ["10", 1]}
        twice["13"] = {"class_type": "KSampler", "inputs": dict(twice["5"]["inputs"])}
        twice["13"]["inputs"]["latent_image"] = ["12", 0]
        twice["90"]["inputs"]["samples"] = ["13", 0]
        steps = {"5.steps": 2, "13.steps": 3}
        assert len(engine.fill_templates(twice, set=steps)) == 1  # that of the second sampler
        programs = engine.run(twice, set=steps).plan.programs
        assert [program.reuse.why_not != absent for program in programs] == [True, True]

        shutil.rmtree(tmp_path / "templates")
        (tmp_path / "templates").write_text("no folder")
        with pytest.raises(RunError, match="its template was not stored"):
            engine.fill_templates(INPAINT, set=["5.steps=2"])


@pytest.mark.parametrize("name", ["edit_template", "flow_edit_template"])
def test_a_shipped_edit_reads_the_template_that_its_workflow_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("KATZ_CACHE", str(tmp_path))
    monkeypatch.setattr(reuse, "MIN_GAIN", -1.0)  # on any machine
    path, steps = WORKFLOWS / f"{name}.json", ["5.steps=8"]
    with katz_graph.open(allow="cached-edit", threads=1) as engine:
        (template,) = engine.fill_templates(path, set=steps)
        for changes in ([], ["2.text=a small white moon at the bottom on sky"]):
            (program,) = engine.run(path, set=steps + changes).plan.programs
            assert program.template is not None and program.template.key == template


def test_templates_are_found_by_all_but_seed_mask_guidance_and_positive_prompt(
    engine: Any, sdxl: Models, latent: Tensor
) -> None:
    def asked_for(**changed: Any) -> TemplateRequest | str:
        found = engine.templates.request(sampler_region(replace(case(sdxl, latent), **changed)))
        assert isinstance(found, (str, TemplateRequest))
        return found

    first = asked_for()
    assert isinstance(first, TemplateRequest)
    control = ControlCase(sdxl.controls[0], 0.8, 0.0, 0.6)
    for same in (
        {"seed": 1},
        {"mask": torch.ones(SIDE, SIDE)},
        {"guidance": 2.0},
        {"sampler": "dpmpp_2m"},
        {"prompt": "other"},
    ):
        found = asked_for(**same)
        assert isinstance(found, TemplateRequest) and found.prefix == first.prefix, same
        assert (found.name == first.name) == ("prompt" not in same)
    others = [
        asked_for(**other)
        for other in (
            {"negative": "other"},
            {"latent": latent + 1},
            {"steps": STEPS + 1},
            {"loras": ((sdxl.loras[0], 0.5),)},
            {"loras": ((sdxl.loras[0], 0.6),)},
            {"controls": (control,)},
            {"controls": (replace(control, strength=0.7),)},
        )
    ]
    region = sampler_region(case(sdxl, latent))
    inputs = {**region.begin.inputs, "add_noise": False}
    quiet = engine.templates.request(replace(region, begin=replace(region.begin, inputs=inputs)))
    patch = OpaquePatch("post_cfg_function", "a pack", print)
    inputs = {**region.begin.inputs, "model": region.begin.inputs["model"].with_patch(patch)}
    packed = engine.templates.request(replace(region, begin=replace(region.begin, inputs=inputs)))
    assert packed == "a pack put a function on the model, which a later run cannot compare"
    prefixes = [one.prefix for one in (*others, quiet) if isinstance(one, TemplateRequest)]
    assert len({first.prefix, *prefixes}) == 2 + len(others)
    assert asked_for(mask=None) == "the latent has no mask"
    assert asked_for(denoise=0.0) == "all evaluations are at noise levels that are computed in full"


def test_levels_of_noise_are_computed_in_full(engine: Any, sdxl: Models, latent: Tensor) -> None:
    """Zero terminal SNR begins at noise, where activations depend on the template's noise."""
    region = sampler_region(replace(case(sdxl, latent), denoise=1.0))
    patch = DiscreteSampling("v_prediction", zero_terminal_snr=True)
    begin = region.begin.inputs
    model = begin["model"].with_patch(patch)
    region = replace(region, begin=replace(region.begin, inputs={**begin, "model": model}))
    found = engine.templates.request(region)
    assert found.numbers[0] == -1 and found.numbers[-1] == len(found.sigmas) - 1
    assert len(found.sigmas) + found.numbers.count(-1) == STEPS


def test_an_edit_template_names_latent_and_texts(engine: Any, sdxl: Models, latent: Tensor) -> None:
    asked = case(sdxl, latent)
    own = engine.templates.request(sampler_region(asked))
    conditioning = sampler_region(replace(asked, prompt="a mountain")).operations[1].inputs
    template = EditTemplate(
        Picture.of(latent), conditioning["conditioning"], conditioning["conditioning"], 1
    )
    found = engine.templates.request(replace(sampler_region(asked), template=template))
    assert found.exact and found.margin == 1 and found.name != own.name
    small = replace(template, latent=Picture.of(latent[..., :8]))
    with pytest.raises(InputError, match=r"EditTemplate: its latent is \[1, 4, 16, 8\]"):
        engine.templates.request(replace(sampler_region(asked), template=small))


def test_templates_of_two_prompts_are_listed_and_removed_apart(
    engine: Any,
    sdxl: Models,
    latent: Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KATZ_CACHE", str(tmp_path))
    filled_ones = [filled(engine, replace(case(sdxl, latent), prompt=one)) for one in "ab"]
    one, other = (shown_template(found.name) for found in filled_ones)
    options = TemplateOptions(template_gb="0,1")
    show(options, as_json=False)
    listed = capsys.readouterr().out
    assert one in listed and other in listed
    drop([one], options)
    for unknown in (one, ""):
        with pytest.raises(InputError, match="no template has a name that begins so"):
            drop([unknown], options)
    drop(["all"], options)
    assert capsys.readouterr().out == f"removed {one}\nremoved {other}\n"


@pytest.mark.parametrize(
    "budget, link, line",
    [
        ("", None, "--template-gb : expected MEMORY[,DISK] in GB"),
        ("4,5,6", None, "--template-gb 4,5,6: expected MEMORY[,DISK] in GB"),
        ("4,x", None, "--template-gb 4,x: expected MEMORY[,DISK] in GB"),
        ("nan,4", None, "--template-gb nan,4: expected MEMORY[,DISK] in GB"),
        ("4,0", None, "--template-gb 4,0: leaves no room for templates on the disk"),
        ("4,32", 0.0, "--store-link 0.0: expected gigabytes per second above 0"),
        ("4,32", float("nan"), "--store-link nan: expected gigabytes per second above 0"),
    ],
)
def test_options_that_are_not_possible_give_one_line(
    budget: str, link: float | None, line: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        parse_template_place(tmp_path, budget, link)
    assert str(error.value).startswith(line) and "\n" not in str(error.value)


def test_the_budget_of_the_disk_may_be_left_out(tmp_path: Path) -> None:
    given, default = (parse_template_place(tmp_path, one, None) for one in ("0.5", "4,32"))
    assert (given.memory_bytes, given.disk_bytes) == (2**29, default.disk_bytes)
