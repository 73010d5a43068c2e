"""The engine that `--devices` asks for: one device in this process, or workers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from katz_graph.cli.session import Session
from katz_graph.devices import DeviceList, parse_link, threads_for
from katz_graph.executor.launch.ahead import Ahead
from katz_graph.garbage import imports_are_done
from katz_graph.places import parse_places

if TYPE_CHECKING:
    from katz_graph.executor.cluster_engine import ClusterEngine
    from katz_graph.executor.engine import Choices
    from katz_graph.executor.local import LocalEngine
    from katz_graph.planner.program import Link


def open_engine(session: Session, tells: bool = False) -> LocalEngine | ClusterEngine:
    """Start what a session asks for; close the engine. `tells`: it says which models go for others. RunError if a worker does not start."""
    devices = session.devices
    engine = open_cluster(session, devices, tells) if devices.several else _open_local(session, devices, tells)
    imports_are_done()
    return engine


def _open_local(session: Session, devices: DeviceList, tells: bool) -> LocalEngine:
    from katz_graph.executor.engine import dtype_for
    from katz_graph.executor.local import EngineOptions, LocalEngine

    (choice,) = devices.choices
    threads = threads_for(devices, session.options.threads)
    options = EngineOptions(
        choice.device,
        dtype_for([choice.device], session.dtype),
        cache=session.settings.cache,
        name=choice.name,
        threads=threads,
        model_bytes=session.options.model_bytes,
    )
    engine = LocalEngine(options, choices=choices(session))
    if tells:
        engine.models.residents.on_evicted = session.say
    if choice.device == "cpu":
        leave_processors()
    return engine


def open_cluster(session: Session, devices: DeviceList, tells: bool = False) -> ClusterEngine:
    threads = threads_for(devices, session.options.threads)
    with ExitStack() as opened:
        ahead = opened.enter_context(Ahead(devices, threads))  # while torch is loaded here
        from katz_graph.executor.assignment import Assignment
        from katz_graph.executor.starting import start_workers

        packs = tuple(str(folder.absolute()) for folder in session.settings.packs)
        like = Assignment(threads=threads, packs=packs, model_bytes=session.options.model_bytes, tells=tells)
        given, cache = given_link(session), session.settings.cache
        engine = start_workers(devices, like, session.say, choices(session), cache, given, ahead=ahead, dtype=session.dtype)
        engine.opened.push(opened.pop_all())
        return engine


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


def leave_processors() -> None:
    """To the device: this thread computes on one processor. OpenMP makes every thread that uses more a pool of its own, and has all pools
    sleep at every barrier once they hold more threads than there are processors, which makes small models four times as slow."""
    use_threads(1)
