"""Assigns devices to concurrent requests: a replica group of base devices, and a pool member for
each ControlNet.

Only decides: the engine requests a lease before planning and reports the outcome. Source: Katz,
section 5, ControlNets as a separate service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ControlNetRecipe
from katz_graph.executor.cluster.replicas import Change, Replicas
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.stage_registry import stages
from katz_graph.planner.queries import commonest_variant


@dataclass(slots=True, eq=False)
class Lease:
    """Holds the devices that a request may use, and its pins by stage or operation.
    `controlnet_ops`: seconds of work per evaluation by pool member and ControlNet.
    """

    devices: tuple[str, ...]
    pins: Mapping[str, tuple[str, ...]]
    lane: int
    controlnet_ops: Mapping[tuple[str, ControlNetRecipe], float] = field(default_factory=dict)
    step: float = 0.0  # planned seconds of one evaluation


class Router:
    """Leases replica groups to requests and routes their ControlNets to pool members.

    `pins`: allowed devices by stage; the devices of the pooled stages form a pool if no other stage
    is pinned to them. `lane`: base devices per replica group. Any thread may call. `reduced`:
    devices were lost, so all base devices form one group if no smaller group satisfies all pins.
    Raises InputError for pins to unknown devices, or if no group satisfies all pins.
    """

    def __init__(
        self,
        devices: Sequence[str],
        pins: Mapping[str, tuple[str, ...]],
        lane: int | None,
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
        base = [device for device in devices if device not in self.pool]
        size = lane or len(base)
        self._lanes = [tuple(base[start : start + size]) for start in range(0, len(base), size)]
        if reduced and not any(map(self._honours, self._lanes)):
            self._lanes = [tuple(base)]
        self._able = [number for number, lane in enumerate(self._lanes) if self._honours(lane)]
        if not self._able:
            raise InputError(
                f"--devices-per-job {size}: no group of {size} devices includes all of --place; "
                "use a larger number, or pin fewer stages"
            )
        self._replicas = Replicas(self.pool, clock)
        self._tickets: list[Lease] = []
        self._lock = threading.Lock()

    def _honours(self, lane: Sequence[str]) -> bool:
        """Returns whether every pinned stage has a device in the lane or the pool."""
        return all({*lane, *self.pool}.intersection(pinned) for pinned in self._pins.values())

    def admit(self, region: Region) -> Lease:
        """Leases the replica group with the fewest requests. A single request may use the whole
        pool; with other requests running, each of its ControlNets goes to the least loaded holder.
        """
        with self._lock:
            lease = self._ticket()
            if self.pool and self._tickets:
                lease.pins = {**lease.pins, **self._routed(region)}
            self._tickets.append(lease)
            return lease

    def preview(self) -> Lease:
        """Returns the lease that a request would get now with the whole pool. Changes nothing."""
        with self._lock:
            return self._ticket()

    def _ticket(self) -> Lease:
        running = [lease.lane for lease in self._tickets]
        lane = min(self._able, key=running.count)
        devices = (*self._lanes[lane], *self.pool)
        pins = {
            stage: tuple(one for one in pinned if one in devices)
            for stage, pinned in self._pins.items()
        }
        return Lease(devices, pins, lane)

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
            lease.controlnet_ops = controlnet_ops
            for member, recipe in controlnet_ops:
                self._replicas.note(recipe, member)
            lease.step = program.prediction.period if program.prediction else 0.0
        return self.observe()

    def dismiss(self, lease: Lease) -> tuple[Change, ...]:
        """Ends the lease of a request, after success or failure. Returns the pool changes to make
        now.
        """
        with self._lock:
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
