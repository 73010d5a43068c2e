"""Times work on the device, without the host's time to launch it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

Action = Callable[[], object]


def seconds(action: Action, device: torch.device) -> float:
    """Returns the seconds of one run of an action, until the device has completed it."""
    if device.type != "cuda":
        began = time.perf_counter()
        action()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    begin.record()
    action()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def interleaved(
    actions: Mapping[str, Action], device: torch.device, rounds: int
) -> dict[str, float]:
    """Returns the median seconds of each action. Actions alternate, after one warm-up round."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in actions.items():
            took = seconds(action, device)
            if number:
                found[name].append(took)
    return {name: median(values) for name, values in found.items()}


def per_step(
    ways: Mapping[str, Mapping[int, Action]], device: torch.device, rounds: int
) -> dict[str, float]:
    """Returns the median seconds of a step in each way: the difference of two actions that differ
    only in their numbers of steps. `ways`: actions by number of steps.
    """
    took = interleaved(
        {
            f"{way} {count}": action
            for way, by_steps in ways.items()
            for count, action in by_steps.items()
        },
        device,
        rounds,
    )
    found = {}
    for way, by_steps in ways.items():
        few, many = sorted(by_steps)
        found[way] = (took[f"{way} {many}"] - took[f"{way} {few}"]) / (many - few)
    return found


def repeated(action: Action, device: torch.device, times: int) -> Action:
    """Returns an action that repeats `action` `times` times: on a GPU as one CUDA graph, which
    excludes launch overhead.
    """
    if device.type != "cuda":
        return lambda: [action() for _ in range(times)]
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            action()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            action()
    return graph.replay
