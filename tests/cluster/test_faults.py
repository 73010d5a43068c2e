"""Workers die, freeze, pause or lose each other's connection. Requests that are not cancelled end
with their picture.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from processes import as_before, below, eventually, runs
from torch import Tensor

from katz_graph.core.errors import Cancelled, RunError
from katz_graph.core.events import Event, Progress
from katz_graph.executor.cluster.network import WorkerNetwork
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.planning import plan_region
from katz_graph.executor.transport.mailbox import Address
from katz_graph.executor.transport.shared_memory import MemorySegment, SharedMemory
from katz_graph.executor.worker import main as serving
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.host import Host
from katz_graph.ir.device import Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.stage_registry import stages
from katz_graph.testing.model_files import Models
from katz_graph.testing.placement import pins, reference
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, sampler_region
from katz_graph.testing.worker_faults import (
    FORGIVING,
    LINK,
    SIGNALS,
    Fault,
    FaultyRun,
    bystander,
    wait_for_spare,
)
from katz_graph.testing.worker_threads import WorkerThreads

COSTED = frozenset(name for name, one in stages().items() if one.costed)
STEPS = 24  # half of them take longer than the way of an event on a busy machine
BASE, CONTROL, OTHER = DEVICES = ("cpu:0", "cpu:1", "cpu:2")


@pytest.fixture(scope="module")
def models(sd1: Models) -> Models:
    torch.set_num_threads(1)
    return sd1


@pytest.fixture(scope="module")
def region(models: Models) -> Region:
    controls = (ControlCase(models.controls[0], 0.8, 0.0, 1.0),)
    return sampler_region(
        Case("with a ControlNet", models.pipeline, "euler", STEPS, controls=controls)
    )


@pytest.fixture(scope="module")
def plain(models: Models) -> Region:
    return sampler_region(Case("without", models.pipeline, "euler", STEPS, seed=8))


@pytest.fixture(scope="module")
def expected(region: Region) -> Tensor:
    return reference(region)


@pytest.fixture(scope="module")
def expected_plain(plain: Region) -> Tensor:
    return reference(plain)


def placed(engine: DeviceEngine, region: Region, places: dict[str, tuple[str, ...]]) -> Program:
    target = Target(engine.cluster.devices, engine.cluster.links, places, batching=False)
    return plan_region(region, target, engine.counts)


class TestProcesses:
    """Tests two workers that share a request, and a third with its own request."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, costs: Path, fork_server: ForkServer) -> Iterator[DeviceEngine]:
        before = below(os.getpid())
        assignments, launchers = (
            [WorkerConfig(name) for name in DEVICES],
            dict.fromkeys(DEVICES, Spawn(fork_server)),
        )
        with DeviceEngine(
            assignments,
            cache=costs,
            link=LINK,
            spares=True,
            launchers=launchers,
            patience=FORGIVING,
        ) as engine:
            yield engine
            known = below(os.getpid()) - before
        assert len(known) >= len(DEVICES) and not any(map(runs, known))

    @pytest.fixture
    def program(self, engine: DeviceEngine, region: Region) -> Program:
        return placed(engine, region, dict(pins(BASE, CONTROL)))

    @pytest.fixture
    def concurrent(self, engine: DeviceEngine, plain: Region) -> Program:
        return placed(engine, plain, dict(pins(OTHER, OTHER)))

    @pytest.mark.slow
    @pytest.mark.parametrize("sent", SIGNALS)
    @pytest.mark.parametrize("victim", [BASE, CONTROL])
    def test_a_request_begins_again_and_ends_with_the_same_bits(
        self,
        engine: DeviceEngine,
        program: Program,
        concurrent: Program,
        expected: Tensor,
        expected_plain: Tensor,
        sent: signal.Signals,
        victim: str,
    ) -> None:
        """A spare takes over. `katz bench faults` checks how fast."""
        wait_for_spare(engine)
        spare = engine.cluster.pids()["spare 0"]
        seed = random.randrange(1 << 16)
        faulty_run = FaultyRun(
            engine, [Fault(sent, victim, random.Random(seed).randint(1, STEPS // 2))]
        )
        with bystander(engine, concurrent) as others:
            outcome = faulty_run.run(program)
        (hit,), (noticed,), (recovered,) = faulty_run.hit, faulty_run.noticed, faulty_run.recovered
        print(
            f"seed {seed}: {sent.name} of {victim}: noticed after {noticed - hit:.3f} s, recovered "
            f"after {recovered - hit:.3f} s"
        )
        assert outcome.attempts == 2 and engine.cluster.pids()[victim] == spare
        assert torch.equal(outcome.samples, expected)
        assert all(one.attempts == 1 and torch.equal(one.samples, expected_plain) for one in others)

    @pytest.mark.slow
    def test_a_pause_of_a_worker_is_waited_for(
        self, engine: DeviceEngine, program: Program, expected: Tensor
    ) -> None:
        pids = {name: engine.cluster.pids()[name] for name in DEVICES}
        stopped = pids[CONTROL]
        assert stopped is not None
        faulty_run = FaultyRun(engine, [Fault(signal.SIGSTOP, CONTROL, 3)])
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(faulty_run.run, program)
            eventually(lambda: bool(faulty_run.hit), 30)
            timer = threading.Timer(1.2, os.kill, (stopped, signal.SIGCONT))
            timer.start()
            outcome = running.result()
            timer.join()
        assert outcome.attempts == 1 and not faulty_run.noticed
        assert torch.equal(outcome.samples, expected)
        assert {name: engine.cluster.pids()[name] for name in DEVICES} == pids

    @pytest.mark.slow
    def test_a_request_that_loses_two_workers_fails_and_others_go_on(
        self,
        engine: DeviceEngine,
        program: Program,
        concurrent: Program,
        expected: Tensor,
        expected_plain: Tensor,
    ) -> None:
        wait_for_spare(engine)
        faulty_run = FaultyRun(
            engine, [Fault(signal.SIGKILL, CONTROL, 2), Fault(signal.SIGKILL, BASE, 3)]
        )
        with bystander(engine, concurrent) as others, pytest.raises(RunError) as error:
            faulty_run.run(program)
        assert len(faulty_run.hit) == 2
        assert f"sampler {program.name}: {BASE}: " in str(error.value)
        assert "in 2 attempts" in str(error.value) and "\n" not in str(error.value)
        assert all(one.attempts == 1 and torch.equal(one.samples, expected_plain) for one in others)
        outcome = engine.cluster.run(program, bare_context(engine))  # waits for the replacement
        assert outcome.attempts == 1 and torch.equal(outcome.samples, expected)


class TestThreads:
    """Tests three workers in this process, to inspect their state."""

    @pytest.fixture
    def hosts(self, monkeypatch: pytest.MonkeyPatch) -> list[Host]:
        made: list[Host] = []

        class Seen(Host):
            def connect(self, *arguments: object) -> None:
                super().connect(*arguments)  # type: ignore[arg-type]
                if self not in made:
                    made.append(self)

        monkeypatch.setattr(serving, "Host", Seen)
        return made

    @pytest.fixture
    def network(self) -> WorkerNetwork:
        return WorkerNetwork(DEVICES)

    @pytest.fixture
    def engine(
        self, hosts: list[Host], network: WorkerNetwork, costs: Path
    ) -> Iterator[DeviceEngine]:
        assignments, launchers = (
            [WorkerConfig(name) for name in DEVICES],
            dict.fromkeys(DEVICES, WorkerThreads()),
        )
        with DeviceEngine(
            assignments, cache=costs, link=LINK, launchers=launchers, network=network
        ) as engine:
            yield engine

    @pytest.mark.parametrize(
        "network",
        [WorkerNetwork(DEVICES), WorkerNetwork(DEVICES, dict.fromkeys(DEVICES, "127.0.0.1"))],
    )
    def test_two_workers_that_lose_each_other_meet_again(
        self,
        engine: DeviceEngine,
        hosts: list[Host],
        region: Region,
        expected: Tensor,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        program = placed(engine, region, dict(pins(BASE, CONTROL)))
        (control,) = (host for host in hosts if set(host.peers) == {BASE, OTHER})
        context = bare_context(engine)
        lost = control.peers[BASE]
        send, sent = lost.send, itertools.count(1)

        def cut(address: Address, value: object) -> None:
            if next(sent) == 3:  # a value that the request still needs
                lost._connection.shut_down()
            send(address, value)

        monkeypatch.setattr(lost, "send", cut)
        outcome = engine.cluster.run(program, context)
        assert outcome.attempts == 2 and torch.equal(outcome.samples, expected)
        assert len(context.warnings) == 1 and "it starts again" in context.warnings[0]
        outcome = engine.cluster.run(program, bare_context(engine))
        assert outcome.attempts == 1 and torch.equal(outcome.samples, expected)

    def test_a_request_that_comes_while_workers_are_parted_waits_for_them(
        self, engine: DeviceEngine, hosts: list[Host], region: Region, expected: Tensor
    ) -> None:
        program = placed(engine, region, dict(pins(BASE, CONTROL)))
        (control,) = (host for host in hosts if set(host.peers) == {BASE, OTHER})
        lost = control.peers[BASE]
        lost._connection.shut_down()
        eventually(lambda: not engine.cluster._network.connects((BASE, CONTROL)), 5)
        outcome = engine.cluster.run(program, bare_context(engine))
        assert outcome.attempts == 1 and torch.equal(outcome.samples, expected)
        assert control.peers[BASE] is not lost

    def test_a_cancelled_request_stops_everywhere_and_leaves_nothing(
        self, engine: DeviceEngine, hosts: list[Host], region: Region, expected: Tensor
    ) -> None:
        program = placed(engine, region, dict(pins(BASE, CONTROL)))
        context = bare_context(engine)
        seen: list[int] = []

        def cancel(event: Event) -> None:
            if isinstance(event, Progress):
                seen.append(event.value)
                context.cancel()

        context.listener = cancel
        with pytest.raises(Cancelled):
            engine.cluster.run(program, context)
        assert seen == [1]
        eventually(lambda: not any(host._parts for host in hosts), 5)
        assert [len(host.mailbox) for host in hosts] == [0, 0, 0]
        outcome = engine.cluster.run(program, bare_context(engine))
        assert outcome.attempts == 1 and torch.equal(outcome.samples, expected)

    @pytest.mark.slow
    def test_many_requests_and_cancellations_leave_nothing(
        self,
        engine: DeviceEngine,
        hosts: list[Host],
        region: Region,
        plain: Region,
        expected: Tensor,
        expected_plain: Tensor,
    ) -> None:
        """Runs two requests at a time, with every stage on a random worker."""
        seed = random.randrange(1 << 16)
        print(f"seed {seed}")
        draw = random.Random(seed)
        engine.cluster.run(placed(engine, region, {}), bare_context(engine))

        def one(number: int) -> None:
            wanted, picture = draw.choice(((region, expected), (plain, expected_plain)))
            places = {
                operation.id: (draw.choice(DEVICES),)
                for operation in wanted.operations
                if operation.stage in COSTED
            }
            context, last = (
                bare_context(engine),
                draw.randint(1, STEPS) if number % 2 else STEPS + 1,
            )

            def listen(event: Event) -> None:
                if isinstance(event, Progress) and event.value >= last:
                    context.cancel()

            context.listener = listen
            try:
                outcome = engine.cluster.run(placed(engine, wanted, places), context)
            except Cancelled:
                assert number % 2
            else:
                assert outcome.attempts == 1 and torch.equal(outcome.samples, picture), places

        threads, descriptors = threading.active_count(), open_descriptors(hosts)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, range(12)))
        eventually(lambda: not any(host._parts for host in hosts), 5)
        assert [len(host.mailbox) for host in hosts] == [0, 0, 0]
        eventually(lambda: threading.active_count() <= threads, 5)
        assert open_descriptors(hosts) <= descriptors
        # messages sent before a cancellation may still arrive
        eventually(lambda: all(segment.free for segment in segments(hosts)), 5)


def segments(hosts: list[Host]) -> list[MemorySegment]:
    """Returns the shared memory segments."""
    pools = [peer._bulk for host in hosts for peer in host.peers.values()]
    return [
        segment
        for pool in pools
        if isinstance(pool, SharedMemory)
        for segment in pool.sending.segments.values()
    ]


def open_descriptors(hosts: list[Host]) -> int:
    """Counts the open descriptors, except the two that each segment uses."""
    return len(list(Path("/proc/self/fd").iterdir())) - 2 * len(segments(hosts))


@pytest.mark.slow
def test_missing_shared_memory_is_reported(
    region: Region, costs: Path, fork_server: ForkServer
) -> None:
    """Limits every file of the workers, including memory files, to 32 KiB."""
    before, shared = below(os.getpid()), set(Path("/dev/shm").iterdir())
    launchers = dict.fromkeys((BASE, CONTROL), Spawn(fork_server, echo=lambda line: None))
    with DeviceEngine(
        [WorkerConfig(name) for name in launchers], cache=costs, link=LINK, launchers=launchers
    ) as engine:
        for pid in filter(None, engine.cluster.pids().values()):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))
        with pytest.raises(RunError, match="shared memory between two workers cannot be allocated"):
            engine.cluster.run(
                placed(engine, region, dict(pins(BASE, CONTROL))), bare_context(engine)
            )
        alone = placed(engine, region, dict(pins(BASE, BASE)))
        assert engine.cluster.run(alone, bare_context(engine)).attempts == 1
    as_before(before)
    assert set(Path("/dev/shm").iterdir()) <= shared
