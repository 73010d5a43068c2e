"""The engine that `--devices` asks for: one device in this process, or workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from katz_graph.cli.devices import DeviceList, parse_link, parse_places, threads_for
from katz_graph.cli.session import Session

if TYPE_CHECKING:
    from katz_graph.executor.assignment import Assignment
    from katz_graph.executor.cluster_engine import ClusterEngine
    from katz_graph.executor.engine import Choices
    from katz_graph.executor.local import LocalEngine
    from katz_graph.planner.program import Link


def open_engine(session: Session) -> LocalEngine | ClusterEngine:
    """Start what a session asks for. RunError when a worker does not start; close the engine."""
    devices = session.devices
    if devices.several:
        return open_cluster(session, devices)
    from katz_graph.executor.engine import dtype_for
    from katz_graph.executor.local import EngineOptions, LocalEngine

    use_threads(threads_for(devices, session.options.threads))
    (choice,) = devices.choices
    options = EngineOptions(choice.device, dtype_for(choice.device), cache=session.settings.cache, name=choice.name)
    return LocalEngine(options, choices=choices(session))


def open_cluster(session: Session, devices: DeviceList) -> ClusterEngine:
    packs = tuple(str(folder.absolute()) for folder in session.settings.packs)
    threads = threads_for(devices, session.options.threads)
    return start_workers(devices, threads, session.say, choices(session), session.settings.cache, given_link(session), packs)


def start_workers(
    devices: DeviceList,
    threads: int,
    say: Callable[[str], None],
    choices: Choices | None,
    cache: Path | None,
    link: Link | None = None,
    packs: tuple[str, ...] = (),
) -> ClusterEngine:
    """A worker for each device: processes of this host, or Ray actors."""
    from katz_graph.executor.cluster_engine import ClusterEngine

    if devices.launcher == "spawn":
        say(f"starting {len(devices.choices)} workers: {', '.join(devices.names)}")
        assignments = assigned({one.name: one.device for one in devices.choices}, threads, packs)
        return ClusterEngine(assignments, choices, cache, link)
    from katz_graph.executor.launch.ray import RayCluster
    from katz_graph.executor.network import Network

    with ExitStack() as opened:
        ray = opened.enter_context(RayCluster())
        places = {f"ray:{number}": place for number, place in enumerate(ray.places(len(devices.choices)))}
        say("starting workers: " + ", ".join(f"{name} ({place.device} on {place.host})" for name, place in places.items()))
        engine = ClusterEngine(
            assigned({name: place.device for name, place in places.items()}, threads, packs),
            choices,
            cache,
            link,
            launchers={name: ray.launcher(place, threads) for name, place in places.items()},
            network=Network(tuple(places), {name: place.host for name, place in places.items()}),
        )
        engine.opened.push(opened.pop_all())
        return engine


def assigned(devices: Mapping[str, str], threads: int, packs: tuple[str, ...]) -> list[Assignment]:
    """All workers of a run compute in one type, since they hand each other what they computed: that of the slowest kind of device."""
    from katz_graph.executor.assignment import Assignment
    from katz_graph.executor.engine import dtype_for

    dtype = max((dtype_for(device) for device in devices.values()), key=lambda kind: kind.itemsize)
    return [Assignment(name, device, threads, dtype, packs=packs) for name, device in devices.items()]


def given_link(session: Session) -> Link | None:
    """What `--link` says."""
    from katz_graph.planner.program import Link

    given = parse_link(session.options.link)
    return None if given is None else Link(*given)


def choices(session: Session) -> Choices:
    from katz_graph.executor.engine import Choices

    pins = parse_places(session.options.place, session.devices.names)
    return Choices(pins, session.allowed, session.workflow.run.get("batching"))


def use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
