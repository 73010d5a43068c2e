"""Starts the workers of a device list, and the engine that uses them: processes of this host, Ray
actors, or a thread of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from katz_graph.core.devices import AUTO, DeviceList, format_name
from katz_graph.core.phases import Phases
from katz_graph.executor.cluster.network import WorkerNetwork
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.early_start import EarlyStart
from katz_graph.executor.planning import Choices
from katz_graph.executor.worker.config import WorkerConfig, dtype_for
from katz_graph.ir.device import NetworkLink


def start_workers(
    devices: DeviceList,
    like: WorkerConfig,
    say: Callable[[str], None],
    choices: Choices | None,
    cache: Path | None,
    link: NetworkLink | None = None,
    spares: bool = False,
    early_start: EarlyStart | None = None,
    dtype: str = AUTO,
    phases: Phases | None = None,
    measures_later: bool = False,
) -> DeviceEngine:
    """Starts a worker for each device, configured `like` the template: local processes, or Ray
    actors. Raises RunError if one does not start. The caller closes the engine.

    `spares`: each host keeps another worker to replace a lost one. `early_start`: the fork
    server of this host's workers, already loading. `dtype` as for `--dtype`; raises InputError if
    the devices cannot compute in it. `phases` receives the phases of the start.
    `measures_later` as for `DeviceEngine`.
    """
    if devices.launcher == "spawn":
        assignments = assigned({one.name: one.device for one in devices.choices}, like, dtype)
        say(
            f"starting {len(assignments)} workers, in {format_name(assignments[0].dtype)}: "
            f"{', '.join(devices.names)}"
        )
        return DeviceEngine(
            assignments,
            choices,
            cache,
            link,
            spares,
            early_start=early_start,
            phases=phases,
            measures_later=measures_later,
        )
    from katz_graph.executor.launch.ray import RayCluster

    with ExitStack() as opened:
        ray = opened.enter_context(RayCluster())
        found = ray.places(len(devices.choices))
        places = dict(
            zip(
                devices.names or [f"ray:{number}" for number in range(len(found))],
                found,
                strict=True,
            )
        )
        assignments = assigned({name: place.device for name, place in places.items()}, like, dtype)
        where = ", ".join(
            f"{name} ({place.device} on {place.host})" for name, place in places.items()
        )
        say(f"starting {len(assignments)} workers, in {format_name(assignments[0].dtype)}: {where}")
        engine = DeviceEngine(
            assignments,
            choices,
            cache,
            link,
            spares,
            launchers={name: ray.launcher(place, like.threads) for name, place in places.items()},
            network=WorkerNetwork(
                tuple(places), {name: place.host for name, place in places.items()}
            ),
            phases=phases,
            measures_later=measures_later,
        )
        engine.opened.push(opened.pop_all())
        return engine


def start_here(
    config: WorkerConfig, choices: Choices | None = None, cache: Path | None = None
) -> DeviceEngine:
    """Starts one worker in this process, without start-up time and with access to functions of
    packs. Not for servers, because a device fault ends the process.
    """
    from katz_graph.executor.launch.in_process import InProcess  # imports model libraries

    return DeviceEngine([config], choices, cache, launchers={config.name: InProcess()})


def assigned(
    devices: Mapping[str, str], like: WorkerConfig, dtype: str = AUTO
) -> list[WorkerConfig]:
    """Creates a config for a worker on each device, all with the same dtype. `devices`: name ->
    torch's name.
    """
    common = dtype_for(devices.values(), dtype)
    return [
        replace(like, name=name, device=device, dtype=common) for name, device in devices.items()
    ]
