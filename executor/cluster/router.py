"""Assigns devices to concurrent requests: the replica group of base devices that is predicted to be
idle first, or all base devices, and a pool member for each ControlNet. Of groups that are idle at
the same time, a request that reads a template gets the one that read it last.

Only decides: the engine requests a lease before planning and reports the outcome. Source: Katz,
section 5, ControlNets as a separate service.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low

from katz_graph.core.devices import BY_LOAD, Lane
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ControlNetRecipe
from katz_graph.executor.cluster.replicas import Change, Replicas
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.stage_registry import stages
from katz_graph.planner.queries import commonest_variant

RECENT_REQUESTS = 32  # requests whose rate and seconds are the load
PACE_S = 600.0  # seconds for which a measured pace counts
MAX_LOAD = 0.99
MAX_TEMPLATES = 1024  # whose last readers are known
EFFICIENCY = 0.9  # of all devices for one request; assumed before it is planned for them


@dataclass(slots=True, eq=False)
class Lease:
    """Holds the devices that a request may use, and its pins by stage or operation.
    `controlnet_ops`: seconds of work per evaluation by pool member and ControlNet.
    """

    devices: tuple[str, ...]
    pins: Mapping[str, tuple[str, ...]]
    used: frozenset[str]  # base devices that work for the request
    admitted: float  # seconds on the router's clock
    rest: float  # predicted seconds that remain, without those of requests in front
    alone: float | None = None  # predicted seconds on one device; None: not known yet
    planned: float = 0.0  # seconds
    ran: float = 0.0  # seconds without earlier requests on its devices
    controlnet_ops: Mapping[tuple[str, ControlNetRecipe], float] = field(default_factory=dict)
    step: float = 0.0  # planned seconds of one evaluation
    template: str = ""  # that the request may read


class Router:
    """Leases replica groups to requests and routes their ControlNets to pool members.

    `pins`: allowed devices by stage; the devices of the pooled stages form a pool if no other stage
    is pinned to them. `lane`: base devices per replica group; `BY_LOAD`: groups of one, and a
    request may get all (`widened`). Any thread may call. `reduced`: devices were lost, so all base
    devices form one group if no smaller group satisfies all pins, as with `BY_LOAD`. Raises
    InputError for pins to unknown devices, or if no group satisfies all pins.
    """

    def __init__(
        self,
        devices: Sequence[str],
        pins: Mapping[str, tuple[str, ...]],
        lane: Lane,
        clock: Callable[[], float],
        reduced: bool = False,
    ) -> None:
        self._pins = dict(pins)
        for stage, device in ((stage, device) for stage, where in pins.items() for device in where):
            if device not in devices:
                raise InputError(
                    f"--place {stage}={device}: no such device; "
                    f"the devices are {', '.join(devices)}"
                )
        self._pooled = frozenset(one.name for one in stages().values() if one.pooled)
        wanted = [
            device for stage, where in pins.items() if stage in self._pooled for device in where
        ]
        others = {
            device for stage, where in pins.items() if stage not in self._pooled for device in where
        }
        pool = tuple(device for device in wanted if device not in others)
        self.pool = pool if len(pool) == len(wanted) and len(pool) < len(devices) else ()
        base = self._base = tuple(device for device in devices if device not in self.pool)
        size = 1 if lane == BY_LOAD else lane or len(base)
        lanes = [base[start : start + size] for start in range(0, len(base), size)]
        self._lanes = [one for one in lanes if self._honours(one)]
        self._by_load = lane == BY_LOAD and bool(self._lanes) and len(base) > 1
        if (reduced or lane == BY_LOAD) and not self._lanes and self._honours(base):
            self._lanes = [base]
        if not self._lanes:
            raise InputError(
                f"--devices-per-job {size}: no group of {size} devices includes all of --place; "
                "use a larger number, or pin fewer stages"
            )
        self._clock, self._updated = clock, clock()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_REQUESTS)  # admitted, alone
        # end, and measured over planned seconds, of requests on one device and on several
        self._paces = {
            several: deque[tuple[float, float]](maxlen=RECENT_REQUESTS) for several in (0, 1)
        }
        self._replicas = Replicas(self.pool, clock)
        self._tickets: list[Lease] = []
        self._readers: dict[str, frozenset[str]] = {}  # by template: devices that read it last
        self._lock = threading.Lock()

    def _honours(self, lane: Sequence[str]) -> bool:
        """Returns whether every pinned stage has a device in the lane or the pool."""
        return all({*lane, *self.pool}.intersection(pinned) for pinned in self._pins.values())

    def admit(self, region: Region, chooses: bool = False, template: str = "") -> Lease:
        """Leases the replica group with the earliest predicted end, and with `BY_LOAD` all base
        devices to a request that chooses among them. A single request may use the whole pool; with
        other requests running, each of its ControlNets goes to the least loaded holder. `template`:
        identifies the one that the request may read.
        """
        with self._lock:
            lease = self._earliest(chooses, template)
            if self.pool and self._tickets:
                lease.pins = {**lease.pins, **self._routed(region)}
            self._tickets.append(lease)
            return lease

    def preview(self, chooses: bool = False) -> Lease:
        """Returns the lease that a request would get now with the whole pool. Changes nothing."""
        with self._lock:
            return self._earliest(chooses)

    def _earliest(self, chooses: bool, template: str = "") -> Lease:
        self._update()
        lanes = [self._base] if chooses and self._by_load else self._lanes
        readers = self._readers.get(template, frozenset())
        lane = min(lanes, key=lambda one: (*self._end(one), readers.isdisjoint(one)))
        lease = self._lease(lane)
        lease.template = template
        return lease

    def _lease(self, lane: Sequence[str]) -> Lease:
        devices = (*lane, *self.pool)
        pins = {
            stage: tuple(one for one in pinned if one in devices)
            for stage, pinned in self._pins.items()
        }
        rest = fmean(alone for _, alone in self._recent) if self._recent else 0.0
        return Lease(devices, pins, frozenset(lane), self._updated, rest)

    def _update(self) -> None:
        """Subtracts the time since the last update from the rest of the requests that ran: those
        with no earlier request on their devices.
        """
        now, busy = self._clock(), set[str]()
        for lease in self._tickets:
            if busy.isdisjoint(lease.used):
                passed = max(0.0, now - self._updated)
                lease.rest, lease.ran = max(0.0, lease.rest - passed), lease.ran + passed
            busy |= lease.used
        self._updated = now

    def _end(self, devices: Sequence[str], without: Lease | None = None) -> tuple[float, int]:
        """Returns the seconds until all requests on these devices end, and their number.
        `without`: a request to ignore.
        """
        leases = [lease for lease in self._tickets if lease is not without]
        ends = [sum(one.rest for one in leases if device in one.used) for device in devices]
        return max(ends), sum(not one.used.isdisjoint(devices) for one in leases)

    def wider(self, lease: Lease) -> Lease | None:
        """Returns a lease of all devices, if a request of one device that takes as long as recent
        ones might better use them; `widened` decides once it is planned for them. None unless
        `BY_LOAD`.
        """
        if not self._by_load or len(lease.used) > 1:
            return None
        with self._lock:
            self._update()
            alone, used = lease.rest, frozenset(self._base)
            together = alone / len(used) / EFFICIENCY
            if self._recent and not self._pays(lease, alone, used, together):
                return None
            wider = self._lease(self._base)
            routed = {name: to for name, to in lease.pins.items() if name not in self._pins}
            wider.pins = {**wider.pins, **routed}
            return wider

    def widened(
        self, lease: Lease, wider: Lease, program: Program, narrow: Program | None = None
    ) -> bool:
        """Returns whether a request uses the program for all devices; then the lease becomes that
        of all devices. `narrow`: the program for the devices of the lease; None: `program.alone`
        is known.
        """
        used = self._used(program, wider)
        with self._lock:
            self._update()
            if narrow is not None:
                alone = self._predicted(narrow, lease.used)
            else:
                alone = self._predicted(program, lease.used) * (program.alone or 1.0)
            taken = used == lease.used or self._pays(
                lease, alone, used, self._predicted(program, used)
            )
            if taken:
                lease.devices, lease.pins, lease.used = wider.devices, wider.pins, used
                lease.alone = alone
            return taken

    def _pays(self, lease: Lease, alone: float, used: frozenset[str], seconds: float) -> bool:
        """Returns whether several devices end a request, which takes `alone` seconds on one,
        earlier by more seconds than they cost other requests.

        Device seconds beyond those of a single device delay every later request until the devices
        are idle. These are the requests that wait now, and those that arrive meanwhile at the
        recent rate; the more load, the longer that takes.
        """
        count = len(self._base)
        others = [one for one in self._tickets if one is not lease]
        earliest = min(self._end(lane, lease)[0] for lane in self._lanes)
        gain = earliest + alone - self._end(tuple(used), lease)[0] - seconds
        cost = (len(used) * seconds - alone) / count
        work = len(used) * seconds + sum(len(one.used) * one.rest for one in others)
        rate, load = self._load(lease)
        later = max(0, len(others) - 1) + rate * work / count / (1 - load)
        return gain > 0 and gain > cost * later

    def _load(self, lease: Lease) -> tuple[float, float]:
        """Returns the requests per second before this one, and the share of the devices' time that
        they take if each uses one device.
        """
        if not self._recent:
            return 0.0, 0.0
        elapsed = max(lease.admitted - self._recent[0][0], 1e-3)
        work = sum(alone for _, alone in self._recent)
        return len(self._recent) / elapsed, min(MAX_LOAD, work / elapsed / len(self._base))

    def _predicted(self, program: Program, used: frozenset[str]) -> float:
        """Returns the planned seconds of a program at the pace of recent requests on one device, or
        on several. A few requests, which may have loaded models, do not change the pace.
        """
        pace = 1.0
        for several in range(2 if len(used) > 1 else 1):
            last = [ratio for end, ratio in self._paces[several] if end > self._updated - PACE_S]
            pace = median_low([pace, pace, *last])
        return _seconds(program) * pace

    def _used(self, program: Program, lease: Lease) -> frozenset[str]:
        """Returns the base devices that a program uses; those of its lease if it uses none."""
        calls = (*program.before_calls, *itertools.chain.from_iterable(program.calls))
        return frozenset(call.device for call in calls if call.device in self._base) or lease.used

    def _routed(self, region: Region) -> dict[str, tuple[str, ...]]:
        """Pins each ControlNet to one member, for all conditionings."""
        queues = self._queues()
        uses = {
            operation.id: operation.inputs["control_net"]
            for operation in region.operations
            if operation.stage in self._pooled
        }
        members = {
            recipe: self._replicas.route(recipe, queues) for recipe in dict.fromkeys(uses.values())
        }
        return {name: (members[recipe],) for name, recipe in uses.items()}

    def planned(self, lease: Lease, program: Program) -> tuple[Change, ...]:
        """Records the planned pool work of a request. Returns the pool changes to make now."""
        number = commonest_variant(program)
        operations = {
            operation.id: operation
            for variant in program.variants
            for operation in variant.operations
        }
        controlnet_ops: dict[tuple[str, ControlNetRecipe], float] = {}
        for call in program.calls[number] if number is not None else ():
            if call.stage in self._pooled and call.device in self.pool:
                session = call.device, operations[call.operations[0]].inputs["control_net"]
                controlnet_ops[session] = controlnet_ops.get(session, 0.0) + call.seconds
        with self._lock:
            self._update()
            lease.used = self._used(program, lease)
            lease.planned = _seconds(program)
            lease.rest = self._predicted(program, lease.used)
            if lease.alone is None:
                lease.alone = lease.rest
            self._recent.append((lease.admitted, lease.alone))
            lease.controlnet_ops = controlnet_ops
            for member, recipe in controlnet_ops:
                self._replicas.note(recipe, member)
            lease.step = program.prediction.period if program.prediction else 0.0
            if program.template is not None:
                self._readers.pop(lease.template, None)
                self._readers[lease.template] = lease.used
                if len(self._readers) > MAX_TEMPLATES:
                    del self._readers[next(iter(self._readers))]
        return self.observe()

    def dismiss(self, lease: Lease, completed: bool = False) -> tuple[Change, ...]:
        """Ends the lease of a request, after success or failure. Returns the pool changes to make
        now.
        """
        with self._lock:
            self._update()
            if completed and lease.planned:
                self._paces[len(lease.used) > 1].append((self._updated, lease.ran / lease.planned))
            self._tickets.remove(lease)
        return self.observe()

    def observe(self) -> tuple[Change, ...]:
        """Returns the pool changes that the replication rule requires now."""
        with self._lock:
            steps: dict[Hashable, float] = {}
            for lease in self._tickets:
                for _, recipe in lease.controlnet_ops:
                    steps[recipe] = min(lease.step, steps.get(recipe, lease.step))
            return self._replicas.observe(self._queues(), steps)

    def lost(self, member: str, control: Hashable | None = None) -> None:
        """Forgets a ControlNet on a pool member, or all of them if the member was replaced or
        released its models.
        """
        with self._lock:
            self._replicas.lost(member, control)

    def _queues(self) -> dict[str, dict[Hashable, float]]:
        """Sums the work of one evaluation of every lease, in seconds by member and ControlNet."""
        queues: dict[str, dict[Hashable, float]] = {member: {} for member in self.pool}
        for lease in self._tickets:
            for (member, recipe), seconds in lease.controlnet_ops.items():
                queues[member][recipe] = queues[member].get(recipe, 0.0) + seconds
        return queues


def _seconds(program: Program) -> float:
    """Returns the predicted seconds of a program; 0 if they are not known."""
    seconds = program.prediction.planned if program.prediction else 0.0
    return seconds if math.isfinite(seconds) else 0.0
