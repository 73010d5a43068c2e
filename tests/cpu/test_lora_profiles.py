"""How long LoRAs may be missing: profiles of LoRAs with known effect, their validity, and their use
by plans and `katz profile --loras`.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Katz
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_cli import workflow, write

from katz_graph.cli import run as run_command
from katz_graph.core.events import Event, Progress
from katz_graph.core.recipe import FileIdentity
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.measure.lora_levels import LoraLevels, LoraProfile
from katz_graph.executor.measure.loras import LoraProfiler, similarities
from katz_graph.executor.measure.store import CostStore
from katz_graph.executor.planning import Choices
from katz_graph.executor.weights import adapters
from katz_graph.models.loading.identity import file_identity
from katz_graph.planner.queries import lora_strengths
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region

STEPS = 6
Scaled = Callable[..., Path]


@pytest.fixture
def scaled(sd1: Models, tmp_path: Path) -> Scaled:
    """Writes a LoRA with a text part, its changes multiplied by `factor`."""

    def write_it(factor: float, only: str = "", name: str = "scaled") -> Path:
        source = sd1.loras[1]
        tensors = {
            key: tensor if key.endswith("alpha") else tensor * factor
            for key, tensor in load_file(source).items()
            if only in key
        }
        with safe_open(source, "pt") as file:  # type: ignore[no-untyped-call]
            metadata = file.metadata()
        path = tmp_path / f"{name}.safetensors"
        save_file(tensors, path, metadata)
        return path

    return write_it


@pytest.fixture
def engine(costs: Path) -> Any:
    with local_engine(batching=True, cache=costs) as engine:
        yield engine


def case(models: Models, *loras: tuple[Path, float], steps: int = STEPS, **changes: Any) -> Case:
    sampler = changes.pop("sampler", "euler")
    return Case("profile", models.pipeline, sampler, steps, loras=loras, **changes)


def profiles_of(engine: DeviceEngine, asked: Case, seeds: int = 2) -> list[LoraProfile]:
    profiler = LoraProfiler(engine, seeds)
    profiler.sample(sampler_region(asked), bare_context(engine))
    return profiler.profiles


def waits(engine: DeviceEngine, asked: Case) -> int:
    """Returns the evaluation before which a plan waits for the LoRA."""
    deferred = engine.plan(sampler_region(asked)).deferred_loras
    return deferred.waits[0] if deferred else 0


def test_similarity_is_that_of_whole_pictures() -> None:
    one = torch.tensor([[3.0, 4.0], [1.0, 0.0]]).reshape(2, 1, 1, 2)
    other = torch.tensor([[6.0, 8.0], [0.0, 5.0]]).reshape(2, 1, 1, 2)
    assert similarities([one, one], [other, one]) == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpmpp_2m", "euler_ancestral"])
def test_a_lora_that_changes_nothing_may_be_missing_until_the_last_step(
    sd1: Models, engine: DeviceEngine, scaled: Scaled, sampler: str
) -> None:
    asked = case(sd1, (scaled(0.0), 1.0), sampler=sampler)
    (profile,) = profiles_of(engine, asked)
    assert profile.similarities == pytest.approx((1.0,) * STEPS)
    assert profile.steps == STEPS - 1
    schedule = engine.plan(sampler_region(asked)).schedule
    last = next(point for point in schedule if point.step == STEPS - 1)
    assert profile.level == last.sigma and profile.begins == schedule[0].sigma


def test_a_lora_that_changes_everything_is_needed_at_once(
    sd1: Models, engine: DeviceEngine, scaled: Scaled
) -> None:
    (profile,) = profiles_of(engine, case(sd1, (scaled(30.0), 1.0)))
    assert profile.similarities[0] < 0.9
    assert profile.steps == 0 and profile.level == profile.begins


def test_each_lora_is_profiled_alone_and_the_picture_is_as_ever(
    sd1: Models, engine: DeviceEngine, scaled: Scaled
) -> None:
    idle, strong = scaled(0.0, name="idle"), scaled(30.0, name="strong")
    asked = case(sd1, (idle, 1.0), (strong, -0.5))
    profiler = LoraProfiler(engine, 1)
    sampled, _ = profiler.sample(sampler_region(asked), bare_context(engine))
    found = {Path(one.use.file.path).stem: one.steps for one in profiler.profiles}
    assert found == {"idle": STEPS - 1, "strong": 0}
    assert torch.equal(sampled["samples"], sample(engine, sampler_region(asked)))


def test_the_run_without_a_lora_is_without_its_text_part(
    sd1: Models, engine: DeviceEngine, scaled: Scaled
) -> None:
    (profile,) = profiles_of(engine, case(sd1, (scaled(8.0, only="text"), 1.0)))
    assert profile.similarities[-1] < 1 - 1e-4


def test_the_mean_of_all_seeds_counts(sd1: Models, engine: DeviceEngine) -> None:
    asked = case(sd1, (sd1.loras[0], 1.0))
    first, second = (
        profiles_of(engine, replace(asked, seed=seed), seeds=1)[0].similarities
        for seed in (asked.seed, asked.seed + 1)
    )
    (both,) = profiles_of(engine, asked, seeds=2)
    assert first != second
    means = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    assert both.similarities == pytest.approx(means, abs=1e-6)


@pytest.fixture
def planning(costs: Path) -> Any:
    """Yields an engine that may start without LoRAs, with no profiles of other tests."""
    with local_engine(batching=True, cache=costs) as engine:
        engine.choices = Choices(allowed=frozenset({"async-lora"}), batching=True)
        engine.lora_levels = LoraLevels(CostStore(None))
        yield engine


def made_up(engine: DeviceEngine, asked: Case, steps: int) -> LoraProfile:
    """Returns a profile that allows `steps` steps without the LoRA."""
    region = sampler_region(asked)
    program = engine.plan(region)
    (use,) = lora_strengths(program).values()
    sigmas = [point.sigma for point in program.schedule]
    levels = (*sigmas[1:], 0.0)
    alike = tuple(1.0 if step < steps else 0.5 for step in range(len(levels)))
    return LoraProfile("5", region.begin.inputs["model"], use, sigmas[0], levels, alike)


def test_without_a_profile_or_a_number_nothing_is_late(sd1: Models, planning: DeviceEngine) -> None:
    asked = case(sd1, (sd1.loras[0], 1.0))
    assert waits(planning, asked) == 0
    planning.lora_levels.keep(made_up(planning, asked, 3))
    assert waits(planning, asked) == 3


def test_a_profile_holds_for_no_greater_strength(sd1: Models, planning: DeviceEngine) -> None:
    path = sd1.loras[0]
    planning.lora_levels.keep(made_up(planning, case(sd1, (path, 0.8)), 3))
    assert [waits(planning, case(sd1, (path, strength))) for strength in (0.8, -0.5)] == [3, 3]
    assert waits(planning, case(sd1, (path, 0.81))) == 0
    assert waits(planning, case(sd1, (path, 0.5), (path, 0.5))) == 0  # summed


def test_a_profile_holds_for_other_steps_and_schedules_by_noise_level(
    sd1: Models, planning: DeviceEngine
) -> None:
    path = sd1.loras[0]
    profile = made_up(planning, case(sd1, (path, 1.0)), 3)
    planning.lora_levels.keep(profile)
    for steps in (2, 4, 11, 40):
        other = case(sd1, (path, 1.0), steps=steps)
        sigmas = [point.sigma for point in planning.plan(sampler_region(other)).schedule]
        first = waits(planning, other)
        # the last step without it ends above the level, the next would end below
        assert first == 0 or sigmas[first] >= profile.level
        assert [*sigmas, 0.0][first + 1] < profile.level
    # img2img starts with less noise
    assert waits(planning, case(sd1, (path, 1.0), steps=20, denoise=0.9)) > 0


def test_profiles_from_low_noise_do_not_apply_to_high_noise(
    sd1: Models, planning: DeviceEngine
) -> None:
    path = sd1.loras[0]
    planning.lora_levels.keep(made_up(planning, case(sd1, (path, 1.0), denoise=0.5), 3))
    assert waits(planning, case(sd1, (path, 1.0), denoise=0.5)) == 3
    assert waits(planning, case(sd1, (path, 1.0))) == 0


def test_a_moved_file_is_the_same_and_a_changed_one_is_another(
    sd1: Models, planning: DeviceEngine, scaled: Scaled, tmp_path: Path
) -> None:
    path = scaled(1.0)
    planning.lora_levels.keep(made_up(planning, case(sd1, (path, 1.0)), 3))
    (tmp_path / "moved").mkdir()
    moved = Path(shutil.move(path, tmp_path / "moved"))
    assert waits(planning, case(sd1, (moved, 1.0))) == 3
    before = file_identity(moved)
    content = bytearray(moved.read_bytes())
    content[-1] ^= 1
    moved.write_bytes(content)
    assert file_identity(moved).header == before.header  # it does not depend on the weights
    assert waits(planning, case(sd1, (moved, 1.0))) == 0


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Delays LoRA files until so many evaluations of a `katz run` are done."""
    opened = threading.Event()
    wanted: list[int] = []
    read, listen = adapters.read_lora, run_command._Reporter.listen

    def arrive(file: FileIdentity, unwanted: Callable[[], bool]) -> Any:
        assert opened.wait(30)
        return read(file, unwanted)

    def record_event(reporter: Any, event: Event) -> None:
        listen(reporter, event)
        if isinstance(event, Progress) and event.value == wanted[-1]:
            opened.set()

    monkeypatch.setattr(adapters, "read_lora", arrive)
    monkeypatch.setattr(run_command._Reporter, "listen", record_event)

    def after(evaluations: int) -> None:
        wanted.append(evaluations)
        opened.clear()
        if not evaluations:
            threading.Timer(0.5, opened.set).start()

    return after


def with_lora(name: str) -> dict[str, Any]:
    """Adds a LoRA for network and text encoder to a three-step workflow."""
    lora = {
        "class_type": "LoraLoader",
        "inputs": {"model": ["1", 0], "clip": ["1", 1], "lora_name": name},
    }
    nodes = workflow(model=["8", 0], n8=lora)
    nodes["2"]["inputs"]["clip"] = ["8", 1]
    return nodes


def recorded_approximations(katz: Katz, *arguments: object) -> tuple[list[str], dict[str, Any]]:
    """Returns approximations from JSON and picture."""
    result = katz("run", *arguments, "--json")
    assert result.code == 0, result.err
    (path,) = result.data["outputs"]
    with Image.open(path) as picture:
        return result.data["approximations"], json.loads(picture.info["katz"])


def test_a_picture_records_the_first_evaluation_with_its_lora(
    katz: Katz, model_folder: Path, gate: Callable[[int], None]
) -> None:
    name = "sd1-second.safetensors"
    arguments = (write(with_lora(name)), "--models", model_folder, "--allow", "async-lora=2")
    gate(2)
    approximations, chunk = recorded_approximations(katz, *arguments)
    assert approximations == chunk["approximations"] == ["async-lora"]
    assert chunk["lora_arrivals"] == {name: 2}


def test_later_runs_use_the_profile(
    katz: Katz,
    model_folder: Path,
    scaled: Scaled,
    gate: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KATZ_CACHE", "cache")  # separate: without profiles at first
    Path("models").mkdir()
    for kind in ("checkpoints", "controlnet"):
        Path("models", kind).symlink_to(model_folder / kind)
    Path("models/loras").mkdir()
    shutil.move(scaled(0.0, name="idle"), "models/loras")
    file = write(with_lora("idle.safetensors"))
    common = ("--models", "models", "--threads", 1)
    run = (file, *common, "--allow", "async-lora")
    gate(0)  # half a second late: time for a whole run
    assert recorded_approximations(katz, *run)[0] == []

    gate(0)
    profiled = katz(
        "profile", file, *common, "--loras", "--vary", "2.text=a moon", "--seeds", 1,
        "--svg", "curves.svg", "--json",
    )  # fmt: skip
    assert profiled.code == 0, profiled.err
    (figures,) = profiled.data
    assert figures["steps"] == 2 and figures["similarities"] == pytest.approx([1.0] * 3)
    assert figures["network_strength"] == figures["text_strength"] == 1.0
    assert "idle at 1" in Path("curves.svg").read_text()
    shown = katz("profile", file, *common, "--loras", "--seeds", 1)
    assert "K = 2 of 3 steps" in shown.out

    gate(2)
    approximations, chunk = recorded_approximations(katz, *run)
    assert approximations == ["async-lora"] and chunk["lora_arrivals"] == {"idle.safetensors": 2}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--loras",), "workflow"),
        (("plain.json", "--vary", "2.text=a"), "--loras"),
        (("plain.json", "--svg", "a.svg"), "--loras"),
        (("plain.json", "--loras"), "has both a LoRA"),
        (("plain.json", "--loras", "--devices", "cpu*2"), "one device"),
        (("plain.json", "--loras", "--seeds", "0"), "--seeds"),
        (("plain.json", "--loras", "--svg", "plain.json/a.svg"), "not a folder"),
    ],
)
def test_a_profile_of_loras_refuses_in_one_line(
    katz: Katz, model_folder: Path, arguments: tuple[str, ...], word: str
) -> None:
    write(workflow(), "plain.json")
    result = katz("profile", *arguments, "--models", model_folder)
    assert result.code == 2 and len(result.errors) == 1 and word in result.errors[0], result.err
