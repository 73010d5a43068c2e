"""Measurements of devices and stages: which device measures what, how often, and `katz profile`."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from command import Katz
from test_cli import workflow, write

from katz_graph.core.errors import OutOfMemory
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.measure import device as calibrate
from katz_graph.executor.measure import store as cost_store
from katz_graph.executor.measure.device import calibrated, contention, device_key, measure
from katz_graph.executor.measure.links import known_links
from katz_graph.executor.measure.stages import ROWS
from katz_graph.executor.measure.store import Contention, CostStore, Rates
from katz_graph.executor.measure.survey import STRETCH, assume, estimated, survey
from katz_graph.executor.planning import Choices
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.host import schedule
from katz_graph.host.schedule import Scheduled, scheduled, scheduled_with_neighbours
from katz_graph.ir.device import NetworkLink
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.planner.simulation.simulate import simulate
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, local_engine, sampler_region

CPU = torch.device("cpu")


def test_costs_hold_for_one_number_format_and_one_number_of_threads() -> None:
    keys = {
        device_key(CPU, dtype, threads)
        for dtype in (torch.float32, torch.bfloat16)
        for threads in (1, 2)
    }
    assert len(keys) == 4
    assert device_key(CPU, torch.float32, 1) in keys


def test_a_device_is_measured_once_and_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([(1e9, 2e9, 1e-6), (3e9, 4e9, 2e-6)])
    monkeypatch.setattr(calibrate, "measure", lambda device, dtype: next(rates))
    first = calibrated("cpu", CPU, torch.float32, CostStore(tmp_path))
    assert (
        first.flops_per_second,
        first.bytes_per_second,
        first.seconds_per_kernel,
        first.value_bytes,
    ) == (1e9, 2e9, 1e-6, 4)
    assert calibrated("cpu", CPU, torch.float32, CostStore(tmp_path)) == first
    assert (
        calibrated("cpu", CPU, torch.float32, CostStore(tmp_path), again=True).flops_per_second
        == 3e9
    )
    assert calibrated("cpu", CPU, torch.float32, CostStore(tmp_path)).flops_per_second == 3e9


def test_measurements_under_load_are_repeated_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([(1e9, 2e9, 1e-6, 1e9, True), (3e9, 4e9, 2e-6, 1e9, False)])
    monkeypatch.setattr(calibrate, "measure", lambda device, dtype: next(rates))
    given = [Scheduled(1.0, 0.5)]
    monkeypatch.setattr(cost_store, "scheduled", lambda: given[-1])

    def flops() -> float:
        return calibrated("cpu", CPU, torch.float32, CostStore(tmp_path)).flops_per_second

    assert flops() == flops() == 1e9  # others still compute
    given.append(Scheduled(1.0, 0.05))
    assert flops() == flops() == 3e9


def test_lost_cpu_time_is_reported() -> None:
    before, began = scheduled(), time.thread_time()
    while time.thread_time() - began < 0.2:  # the kernel counts in ticks
        pass
    spent = scheduled() - before
    assert spent.computed > 0.1 and 0 <= spent.share_waited < 1
    assert Scheduled().share_waited == 0


def test_devices_that_no_worker_was_asked_of_carry_torchs_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "measure", lambda device, dtype: (1e9, 2e9, 1e-6))
    found, _ = estimated(
        {"cuda:0#0": "meta", "cuda:0#1": "meta"}, torch.float32, tmp_path, None, Choices()
    )
    assert [(device.name, device.torch_name) for device in found.devices] == [
        ("cuda:0#0", "meta"),
        ("cuda:0#1", "meta"),
    ]
    assert (
        calibrated("gpu", torch.device("meta"), torch.float32, CostStore(tmp_path)).torch_name
        == "meta"
    )


def test_measured_rates_are_those_of_a_machine() -> None:
    flops, size, kernel, *_ = measure(CPU, torch.float32)
    assert 1e8 < flops < 1e14 and 1e8 < size < 1e12 and 1e-8 < kernel < 1e-2


def test_every_kind_of_work_lasts_its_stretch() -> None:
    started = time.perf_counter()
    measure(CPU, torch.float32, stretch=0.5)
    # all workers measure the same kind of work concurrently
    assert time.perf_counter() - started >= 1.5


def test_contention_is_by_kind_of_work_and_never_a_gain() -> None:
    assert contention(Rates(100.0, 60.0, 1e-5), Rates(80.0, 20.0, 1e-5)) == Contention(1.25, 3.0)
    assert contention(Rates(100.0, 60.0, 1e-5), Rates(101.0, 60.0, 1e-5)) == Contention(1.0, 1.0)


class Machines:
    """Answers as three workers: two equal ones on one host, with shared memory, and one on another.
    A call in a separate thread waits for its neighbour.
    """

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self.peak = self._busy = 0
        self._tests = threading.current_thread()
        self._met = False  # whether two computed at once
        self._changed = threading.Condition()

    def call(self, device: str, what: str, *arguments: Any) -> Any:
        self.asked[device, f"{what} {' '.join(map(str, arguments))}".strip()] += 1
        host = "far" if device == "c" else "near"
        if what == "identity":
            return {
                "key": f"kind of {host}",
                "device": "cuda:0",
                "host": host,
                "dtype": "float32",
                "memory_bytes": 1e9,
            }
        if what == "assumed_rates":
            return (7.0, 60.0, 1e-5)
        patience = 0 if threading.current_thread() is self._tests else 20
        with self._changed:
            self._busy += 1
            self.peak = max(self.peak, self._busy)
            self._met = self._busy > 1  # the second leaves it set for the first
            self._changed.notify_all()
            accompanied = host == "near" and self._changed.wait_for(lambda: self._met, patience)
            self._busy -= 1
        return (90.0, 30.0, 1e-5) if accompanied else (99.0, 60.0, 1e-5)


def test_a_survey_measures_equal_devices_once_and_those_of_a_host_together() -> None:
    machines, store = Machines(), CostStore(None)
    a, b, c = assume(["a", "b", "c"], machines.call, store)
    assert a.device(store).flops_per_second == c.device(store).flops_per_second == 7.0
    assert {what for _, what in machines.asked} == {"identity", "assumed_rates"}
    machines.asked.clear()
    a, b, c = survey(["a", "b", "c"], machines.call, store)
    assert machines.peak == 2
    # one per kind
    assert sum(number for (_, what), number in machines.asked.items() if what == "rates") == 2
    assert machines.asked["c", f"rates {STRETCH}"] == 0  # no neighbour
    first = a.device(store)
    assert (first.name, first.host, first.flops_per_second, first.memory_bytes) == (
        "a",
        "near",
        99.0,
        1e9,
    )
    assert first.torch_name == "cuda:0"  # the worker's name; plans say "a"
    assert (first.contention, first.memory_contention) == (pytest.approx(1.1), pytest.approx(2.0))
    assert (b.together, c.together) == (2, 1)
    assert c.device(store).contention == 1.0

    machines.asked.clear()
    survey(["a", "b", "c"], machines.call, store)
    assert {what for _, what in machines.asked} == {"identity"}
    survey(["a", "b", "c"], machines.call, store, again=True)
    assert {what for _, what in machines.asked} == {"identity", "rates", f"rates {STRETCH}"}


def rates(*flops: float, disturbed: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yields answers of `rates`; the memory's rate is half the arithmetic's."""
    return ((one, one / 2, 1e-5, math.inf, disturbed) for one in flops)


@pytest.mark.defect(41)
@pytest.mark.parametrize("which", ["alone", "together"])
def test_contention_that_others_disturbed_is_measured_again_without_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str
) -> None:
    """A program starts or ends between the two measurements."""
    given = [Scheduled(1.0, 0.5)]
    monkeypatch.setattr(cost_store, "scheduled", lambda: given[-1])
    asked: list[tuple[str, ...]] = []

    def call(device: str, what: str, *arguments: Any) -> Any:
        if what == "identity":
            place = {"key": "kind", "device": "cpu", "host": "near"}
            return {**place, "dtype": "float32", "memory_bytes": 1e9}
        asked.append((device, what))
        if not arguments:
            return next(rates(100.0))
        if threading.current_thread() is main:
            return next(rates(100.0, disturbed=which == "alone" and len(given) == 1))
        disturbed_now = which == "together" and len(given) == 1 and device == "b"
        return next(rates(20.0 if len(given) == 1 else 80.0, disturbed=disturbed_now))

    def contention_of() -> float:
        return (
            survey(["a", "b"], call, CostStore(tmp_path))[0].device(CostStore(tmp_path)).contention
        )

    main = threading.current_thread()
    assert contention_of() == 5.0
    asked.clear()
    assert contention_of() == 5.0 and not asked  # others still compute
    given.append(Scheduled(1.0, 0.05))
    assert contention_of() == 1.25
    asked.clear()
    assert contention_of() == 1.25 and not asked


@pytest.mark.defect(45)
@pytest.mark.parametrize("which", ["ask", "answer"])
def test_a_link_that_others_disturbed_is_measured_again_without_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str
) -> None:
    given = [Scheduled(1.0, 0.5)]
    monkeypatch.setattr(cost_store, "scheduled", lambda: given[-1])
    asked: list[str] = []

    def call(device: str, what: str, *arguments: Any) -> Any:
        asked.append(what)
        disturbed = len(given) == 1 and what == which
        link = NetworkLink(1e9 if len(given) == 1 else 4e9, 1e-5)
        return SimpleNamespace(value=(link, disturbed) if what == "ask" else disturbed)

    def links() -> set[float]:
        found = known_links(cluster, CostStore(tmp_path))
        return {link.bytes_per_second for link in found.values()}

    cluster: Any = SimpleNamespace(
        assignments={name: SimpleNamespace(device="cpu") for name in "ab"},
        on_one_host=lambda *_: True,
        transport=lambda *_: "shared memory",
        call=call,
    )
    assert links() == {1e9} and asked.count("ask") == 1
    assert links() == {1e9} and asked.count("ask") == 1  # others still compute
    given.append(Scheduled(1.0, 0.05))
    assert links() == links() == {4e9} and asked.count("ask") == 2


def test_links_between_gpus_are_measured_per_transport(tmp_path: Path) -> None:
    """Only the memory of one of three GPUs cannot be opened. Two workers share another GPU."""
    devices = {"a": "cuda:0", "b": "cuda:0", "c": "cuda:1", "d": "cuda:2"}
    rates = {("shared memory", 2): 1e9, ("CUDA IPC", 2): 2e9, ("CUDA IPC", 1): 3e9}
    measured: list[tuple[str, str]] = []

    def transport(source: str, target: str) -> str:
        return "shared memory" if source == "d" else "CUDA IPC"

    def rate(source: str, target: str) -> float:
        return rates[transport(source, target), len({devices[source], devices[target]})]

    def call(device: str, what: str, other: str, number: int) -> Any:
        if what == "answer":
            return SimpleNamespace(value=False)
        measured.append((device, other))
        return SimpleNamespace(value=(NetworkLink(rate(device, other), 1e-5), False))

    cluster: Any = SimpleNamespace(
        assignments={name: SimpleNamespace(device=device) for name, device in devices.items()},
        on_one_host=lambda *_: True,
        transport=transport,
        call=call,
    )
    for _ in range(2):
        found = known_links(cluster, CostStore(tmp_path))
        assert {pair: link.bytes_per_second for pair, link in found.items()} == {
            pair: rate(*pair) for pair in itertools.permutations(devices, 2)
        }
    assert len(measured) == 3


@pytest.mark.defect(45)
@pytest.mark.parametrize(("late", "disturbed"), [(0.0, False), (1.0, True)])
def test_a_gpu_that_others_use_is_seen_by_runs_that_take_longer(
    monkeypatch: pytest.MonkeyPatch, late: float, disturbed: bool
) -> None:
    """The host's scheduler sees no other load."""
    now, late_ones = [0.0], itertools.cycle([0.0, late, late])

    def run() -> None:
        now[0] += 0.01 * (1 + next(late_ones))

    target = MagicMock(nbytes=64, copy_=lambda source: run())
    probe = calibrate.Probe(run, 10**9, target, target, run, 1)
    monkeypatch.setattr(calibrate, "_probe_gpu", lambda device, dtype: probe)
    monkeypatch.setattr(calibrate, "_wait", lambda device: None)
    monkeypatch.setattr(calibrate, "_from_host", lambda target: run)
    monkeypatch.setattr(calibrate, "scheduled", Scheduled)
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: now[0])
    flops, *_, noticed = measure(torch.device("cuda:0"), torch.float16)
    assert flops == pytest.approx(1e11) and noticed is disturbed


@pytest.mark.defect(41)
@pytest.mark.parametrize(
    ("spent", "share"),
    [
        # seconds this process computed, waited, its neighbours computed, and others computed
        (Scheduled(1.0, 0.0, 3.0, 3.0), 0.0),
        (Scheduled(1.0, 1.0, 3.0, 0.0), 0.0),  # neighbours computed
        (Scheduled(1.0, 1.0, 3.0, 1.0), 0.5),
        (Scheduled(1.0, 1.0, 3.0, 0.5), 0.25),
        (Scheduled(1.0, 1.0, 0.0, 0.0), 0.5),  # unknown source
        (Scheduled(1.0, 1.0), 0.5),
        (Scheduled(1.0, 1.0, -0.1, -0.1), 0.5),  # some ended
    ],
)
def test_neighbours_are_no_disturbance(spent: Scheduled, share: float) -> None:
    assert spent.share_disturbed == share


@pytest.mark.defect(41)
def test_load_by_other_programs_is_distinguished_from_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process and 9 are children of process 7."""
    tick, own = os.sysconf("SC_CLK_TCK"), os.getpid()
    monkeypatch.setattr(schedule, "PROC", tmp_path)
    for pid, children, seconds in ((7, f"{own} 9", 1), (own, "", 10), (9, "", 100), (8, "", 1000)):
        (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (tmp_path / str(pid) / "task" / str(pid) / "children").write_text(children)
        columns = ["R", *["0"] * 10, str(seconds * tick // 2), str(seconds * tick // 2), "0"]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(columns)}")
    # user, nice, system, idle, waiting for a disk, interrupts, stolen; guests, included in user
    machine = [1000, 100, 10, 5000, 5000, 1, 0, 0, 700, 0]
    (tmp_path / "stat").write_text(
        f"cpu {' '.join(str(one * tick) for one in machine)}\ncpu0 1 2\n"
    )
    seen = scheduled_with_neighbours(7)
    assert (seen.neighbours, seen.others) == (101.0, 1000.0)
    (tmp_path / "stat").unlink()
    assert scheduled_with_neighbours(77).neighbours == 0.0


def test_hosts_can_be_set_if_machine_names_differ() -> None:
    machines = Machines()
    places = survey(
        ["a", "b"], machines.call, CostStore(None), hosts={"a": "one namespace", "b": "another"}
    )
    assert [place.together for place in places] == [1, 1] and machines.peak == 1


def test_an_engine_measures_every_stage_of_a_request_in_both_ways(sdxl: Models) -> None:
    controls = (ControlCase(sdxl.controls[0], 1.0, 0.0, 1.0),)
    region = sampler_region(Case("test", sdxl.pipeline, "euler", 4, controls=controls))
    with local_engine(batching=True) as engine:
        times = engine.profile(region, bare_context(engine), ROWS)
        known = set(engine.device.measured.values())
        four = Case("four", sdxl.pipeline, "euler", 2, latent=torch.zeros(4, 4, 8, 8))
        plan = engine.plan(sampler_region(four))
    stages = {(time.stage, time.rows) for time in times}
    assert stages >= {
        (stage, rows)
        for stage in ("controlnet", "unet_encoder", "unet_mid", "unet_decoder")
        for rows in (1, 2, 8)
    }
    for one in times:
        assert one.device == "cpu" and one.busy is None and one.roofline > 0
        assert one.alone is None or one.alone in known  # later plans use this value
    loop = [
        one
        for one in times
        if one.stage in ("controlnet", "unet_encoder", "unet_mid", "unet_decoder")
    ]
    assert all(one.alone is not None and 0 < one.alone < 10 for one in loop)
    # two branches of four pictures have the eight rows that were measured
    eight = {one.stage: one.alone for one in loop if one.rows == 8}
    mid = next(call for call in plan.calls[0] if call.stage == "unet_mid")
    assert len(mid.operations) == 2 and mid.seconds == eight["unet_mid"]


def test_a_profile_leaves_out_batches_for_which_memory_does_not_suffice(
    sdxl: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_engine() as engine:
        context, run = bare_context(engine), engine.cluster.run

        def limited(program: Program, *rest: Any, **more: Any) -> Any:
            if program.shape[0] > 2:
                raise OutOfMemory("8 pictures are too many")
            return run(program, *rest, **more)

        monkeypatch.setattr(engine.cluster, "run", limited)
        region = sampler_region(Case("test", sdxl.pipeline, "euler", 2))
        times = engine.profile(region, context, ROWS)
    measured = {time.rows for time in times if time.stage == "unet_mid" and time.alone is not None}
    assert measured == {1, 2}
    (warning,) = context.warnings
    assert "batches of 8 are not measured" in warning


def test_profile_of_a_device_as_text_and_json(katz: Katz, monkeypatch: pytest.MonkeyPatch) -> None:
    # a separate cache, to inspect its content
    monkeypatch.setenv("KATZ_CACHE", "cache")
    shown = katz("profile", "--threads", 1)
    assert shown.code == 0 and "GFLOP/s" in shown.out and "1 threads" in shown.out
    data = katz("profile", "--threads", 1, "--json").data
    assert data["device"] == "cpu" and data["flops_per_second"] > 1e8 and data["contention"] == 1.0
    assert list(Path("cache").glob("costs-*.sqlite"))


def test_profile_of_a_workflow_prints_its_stages(katz: Katz, model_folder: Path) -> None:
    arguments = ("profile", write(workflow()), "--models", model_folder, "--threads", 1)
    times = json.loads(katz(*arguments, "--json").out)
    assert {"unet_encoder", "unet_mid", "unet_decoder"} <= {time["stage"] for time in times}
    shown = katz(*arguments)
    assert shown.code == 0 and "unet_decoder" in shown.out and "roofline" in shown.out
    assert not Path("output").exists()  # no picture is written


@pytest.mark.parametrize(
    "arguments",
    [("--devices", "cpu*0"), ("--devices", "abacus"), ("--threads", "0"), ("missing.json",)],
)
def test_profile_refuses_in_one_line(katz: Katz, arguments: tuple[str, ...]) -> None:
    result = katz("profile", *arguments)
    assert result.code == 2 and len(result.errors) == 1, result.err


def patch_seconds(engine: DeviceEngine, region: Region) -> float:
    (span,) = [
        span for span in simulate(engine.plan(region)).spans if span.what.startswith("patch ")
    ]
    return span.seconds


def test_next_plan_uses_the_measured_lora_switch(
    tmp_path: Path, sd1: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def region(*loras: tuple[Path, float]) -> Region:
        return sampler_region(Case("test", sd1.pipeline, "euler", 2, loras=loras))

    patch, plain = WeightSets._patch, region()
    monkeypatch.setattr(
        WeightSets,
        "_patch",
        lambda self, *given: (time.sleep(0.002 * len(given[-1])), patch(self, *given)),
    )
    first, again, two = (
        region((sd1.loras[0], 0.7)),
        region((sd1.loras[1], -0.4)),
        region((sd1.loras[0], 1.0), (sd1.loras[1], 1.0)),
    )
    with local_engine(cache=tmp_path) as engine:
        assert patch_seconds(engine, first) < 0.05
        engine.sample(first, bare_context(engine))
        took = engine.models.lora_seconds  # includes text encoders, a small part
        engine.sample(first, bare_context(engine))  # already merged: not measured
        engine.sample(plain, bare_context(engine))
        assert took > 0.2 and patch_seconds(engine, first) == pytest.approx(took, rel=0.2)
        assert patch_seconds(engine, two) < 0.05  # several LoRAs are not measured
    with local_engine(cache=tmp_path) as engine:
        assert patch_seconds(engine, again) == pytest.approx(took, rel=0.2)


def test_originals_are_counted_over_the_bus() -> None:
    """torch's meta device is separate memory, and copies to it take no time."""
    assert (
        measure(CPU, torch.float32)[3] == math.inf > measure(torch.device("meta"), torch.float32)[3]
    )
