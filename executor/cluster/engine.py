"""Runs an engine on several workers. What cannot leave this process, functions that packs put on a
model, runs on one device here.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from katz_graph.context import Context
from katz_graph.executor.cluster.autoscaler import Autoscaler
from katz_graph.executor.cluster.driver import Cluster
from katz_graph.executor.cluster.network import Network
from katz_graph.executor.cluster.requests import NotSerializable
from katz_graph.executor.cluster.router import Lease, Router
from katz_graph.executor.cluster.worker_handle import PATIENCE, WorkerPatience
from katz_graph.executor.engine import Choices, DeviceEngine
from katz_graph.executor.launch.ahead import Ahead
from katz_graph.executor.launch.base import Launcher
from katz_graph.executor.launch.entries import entry_for
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.measure.links import known_links
from katz_graph.executor.measure.stages import StageTime, profile_region
from katz_graph.executor.measure.store import CostStore
from katz_graph.executor.measure.survey import survey
from katz_graph.executor.worker.affinity import Claim, claim_seats
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.costs.counts import Counts
from katz_graph.planner.queries import opaque_functions
from katz_graph.wires import LatentSamples

if TYPE_CHECKING:
    from katz_graph.executor.local import LocalEngine

UNLOADING = 5.0  # seconds that are waited for workers to let go of their models


class ClusterEngine(DeviceEngine):
    """Starts a worker for each assignment, with `launchers` by device name or one process each, and
    measures what the planner has to know.

    `cache` keeps measurements; `link` stands for all links, instead of measuring; `spares`: one
    loaded worker waits to replace a lost one; `ahead`: the fork server of this host's workers,
    which loads already. RunError when a worker does not start; all are closed then.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerConfig],
        choices: Choices | None = None,
        cache: Path | None = None,
        link: NetworkLink | None = None,
        spares: bool = False,
        launchers: Mapping[str, Launcher] | None = None,
        network: Network | None = None,
        patience: WorkerPatience = PATIENCE,
        ahead: Ahead | None = None,
    ) -> None:
        names = [one.name for one in assignments]
        self._cache, self._store = cache, CostStore(cache)
        self._local: LocalEngine | None = None
        self._starting = threading.Lock()
        choices = choices or Choices()
        self._router = Router(names, choices.reachable, choices.lane, time.monotonic, bool(choices.gone))
        assignments, claimed = _seated(assignments, launchers, ahead)
        self.opened = ExitStack()  # what is closed after the workers
        self.opened.push(claimed)
        launchers = launchers or self._launchers(assignments, ahead)
        self.cluster = Cluster(assignments, launchers, network or Network(names), spares, patience)
        super().__init__(self.cluster, choices, Counts(self._store))
        self._autoscaler = Autoscaler(self._router, self.cluster)
        self.cluster.on_vanished = self._router.lost
        try:
            self.cluster.start()
            self.measure()
            given = {pair: link for pair in itertools.permutations(names, 2) if link is not None}
            self.cluster.links = given or self.measured_links()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._autoscaler.close()
        self._close_local()
        super().close()
        self.opened.close()

    def _launchers(self, assignments: Sequence[WorkerConfig], ahead: Ahead | None) -> Mapping[str, Launcher]:
        """Makes launchers of processes here; workers with equal threads share a fork server."""
        servers = {} if ahead is None else {ahead.server.threads: ahead.server}
        for one in assignments:
            if one.threads not in servers:
                servers[one.threads] = self.opened.enter_context(ForkServer(one.threads))
        return {one.name: Spawn(servers[one.threads], entry_for(one.device)) for one in assignments}

    def measure(self, again: bool = False) -> None:
        """Learns the rates of the devices, from the store or by measuring."""
        self.places = survey(list(self.cluster.assignments), lambda *asked: self.cluster.call(*asked).value, self._store, again)
        self._learn()

    def _learn(self) -> None:
        """Tells the planner what the store knows. Workers that share a device share its memory,
        unless each was given its part.
        """
        found = {place.name: place.device(self._store) for place in self.places}
        self.cluster.devices = tuple(replace(one, memory_bytes=self._room(name, found)) for name, one in found.items())

    def _room(self, name: str, found: Mapping[str, Device]) -> float:
        if self.cluster.assignments[name].model_bytes is not None:
            return found[name].memory_bytes
        sharing = [other for other in found if self._seat(other) == self._seat(name)]
        return min(found[other].memory_bytes for other in sharing) / len(sharing)

    def _seat(self, name: str) -> tuple[str, str]:
        """Returns a worker's host, and torch's name for its device there."""
        host = next(place.host for place in self.places if place.name == name)
        return host, self.cluster.assignments[name].device

    def measured_links(self, again: bool = False) -> Mapping[tuple[str, str], NetworkLink]:
        """Measures the links; those of shared memory stay as first measured on this host, unless
        `again`.
        """
        return known_links(self.cluster, self._store, again)

    def plan(self, region: Region, after: str = "emit") -> Program:
        """Plans as for a request that came now."""
        if opaque_functions(region):
            return self._here().plan(region, after)
        return self._planned(region, self._target_of(self._router.preview()), after)

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        """Samples on the devices of a lease; several threads may call at once."""
        if functions := opaque_functions(region):
            return self._sampled_here(region, context, f"{', '.join(functions)} cannot be sent to workers")
        lease = self._router.admit(region)
        try:
            program = self._planned(region, self._target_of(lease))
            self._autoscaler.apply(self._router.planned(lease, program))
            return self._carried_out(region, program, context)
        except NotSerializable as error:
            return self._sampled_here(region, context, str(error))
        finally:
            self._autoscaler.apply(self._router.dismiss(lease))

    def _sampled_here(self, region: Region, context: Context, why: str) -> tuple[LatentSamples, LatentSamples]:
        context.warn(f"sampler {region.name} runs on one device of this process: {why}")
        return self._here().sample(region, context)

    def _target_of(self, lease: Lease) -> Target:
        target = self._target()
        devices = tuple(device for device in target.devices if device.name in lease.devices)
        return replace(target, devices=devices, pins=lease.pins)

    def _note(self, device: str, samples: Mapping[tuple[str, int], Sequence[float]]) -> None:
        self._store.record(next(place.key for place in self.places if place.name == device), samples)
        self._learn()

    def profile(self, region: Region, context: Context) -> list[StageTime]:
        """Measures every stage of a region on every device, alone and while all work. Later plans
        use the times.
        """
        if opaque_functions(region):
            return self._here().profile(region, context)
        measured = profile_region(region, self.cluster, self.places, self._store, context)
        self._learn()
        return measured

    def unload(self) -> None:
        """Unloads the models of all workers. For when nothing runs: later requests load theirs
        again.

        Returns after UNLOADING seconds at most; workers that need longer get on with it. RunError
        of a worker that could not.
        """
        for name in self.cluster.assignments:
            self._router.lost(name)
        self._close_local()
        self.cluster.call_all("unload", UNLOADING)

    def _close_local(self) -> None:
        with self._starting:
            local, self._local = self._local, None
        if local is not None:
            local.close()

    def _here(self) -> LocalEngine:
        from katz_graph.executor.local import EngineOptions, LocalEngine  # models in this process, which few runs need

        with self._starting:
            if self._local is None:
                first = self.cluster.assignments[self.device.name]
                self._local = LocalEngine(
                    EngineOptions(first.device, first.dtype, self.choices.batching, self._cache, threads=first.threads)
                )
            return self._local


def _seated(
    assignments: Sequence[WorkerConfig], launchers: Mapping[str, Launcher] | None, ahead: Ahead | None
) -> tuple[list[WorkerConfig], Claim]:
    """Claims processors for workers of this host that compute on the CPU and wait for each other,
    where there are enough.
    """
    here = [launchers is None or isinstance(launchers[one.name], Spawn) for one in assignments]
    seats = [one.threads if is_here and one.device == "cpu" else 0 for one, is_here in zip(assignments, here, strict=True)]
    claimed = claim_seats(seats) if ahead is None else ahead.claimed
    free = iter(claimed.processors)
    return [replace(one, processors=tuple(islice(free, seat))) for one, seat in zip(assignments, seats, strict=True)], claimed
