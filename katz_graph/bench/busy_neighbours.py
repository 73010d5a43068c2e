"""Compares a run next to two busy processes with its fair share of the processors. Also measures
the cost of yielding when no other process runs. Part of `katz bench overhead`.

Painters are processes that sample a shipped workflow on request, with their models loaded. They
alternate, because the speed of a shared machine varies over time. One painter's threads wait by
OpenMP's default spinning, which users also get if they set OpenMP's variable.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Self

from katz_graph.api.engine import Engine
from katz_graph.bench.conditions import computing
from katz_graph.core.devices import parse_devices, processors

OTHERS, ROUNDS = 2, 9
DEVICES = {"run": "cpu", "workers": "cpu*2"}
QUIET_BOUND, BUSY_BOUND = 1.05, 3.0
# one spin more than the default, so that it counts as set by the user and is not overridden
OPENMPS_OWN = {"GOMP_SPINCOUNT": "300001"}
BOUNDS = {"quiet_run": f"<= {QUIET_BOUND} x waiting as OpenMP does"} | {
    f"busy_{name}": f"<= {BUSY_BOUND} x its fair share" for name in DEVICES
}


class Painter:
    """Controls a process that samples with its models loaded. `environment`: variables in addition
    to those of this process.
    """

    def __init__(self, devices: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "katz_graph.bench.busy_neighbours", devices],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Self:
        self.seconds()  # loads
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def seconds(self) -> float:
        """Samples once; returns the seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def measure() -> dict[str, float]:
    """Measures the median seconds of sampling, and the ratios that BOUNDS limits."""
    with ExitStack() as opened:
        painters = {
            name: opened.enter_context(Painter(devices)) for name, devices in DEVICES.items()
        }
        openmp = opened.enter_context(Painter(DEVICES["run"], OPENMPS_OWN))
        quiet = _in_turns({**painters, "openmp": openmp})
        with computing(OTHERS):
            busy = _in_turns(painters)
    figures = {f"{name}_seconds": seconds for name, seconds in quiet.items()}
    figures |= {f"busy_{name}_seconds": seconds for name, seconds in busy.items()} | {
        "quiet_run": quiet["run"] / quiet["openmp"]
    }
    return figures | {
        f"busy_{name}": busy[name] / quiet[name] / fair_share(devices)
        for name, devices in DEVICES.items()
    }


def within_bounds(figures: Mapping[str, float]) -> bool:
    return figures["quiet_run"] <= QUIET_BOUND and all(
        figures[f"busy_{name}"] <= BUSY_BOUND for name in DEVICES
    )


def rows(figures: Mapping[str, float]) -> list[list[object]]:
    quiet = [
        "sampling / with OpenMP's own waiting",
        figures["run_seconds"],
        figures["openmp_seconds"],
    ]
    busy = [
        [
            f"sampling on {devices}, {OTHERS} others / none",
            figures[f"busy_{name}_seconds"],
            figures[f"{name}_seconds"],
        ]
        for name, devices in DEVICES.items()
    ]
    return [quiet, *busy]


def fair_share(devices: str) -> float:
    """Returns the slowdown of a run that gets exactly its fair share of the CPUs."""
    return max(1.0, (len(parse_devices(devices).choices) + OTHERS) / processors())


def _in_turns(painters: Mapping[str, Painter]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in painters}
    for _ in range(ROUNDS):
        for name, painter in painters.items():
            seconds[name].append(painter.seconds())
    return {name: median(values) for name, values in seconds.items()}


def main(devices: str) -> None:
    """Samples once per line of standard input, and prints the seconds."""
    workflow = Path(str(files("katz_graph.workflows") / "controlnet_lora.json"))
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine(devices=devices, output=folder, cache="none") as engine,
    ):
        for _ in sys.stdin:
            print(engine.run(workflow).seconds["denoise"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
