"""Runs the part of `katz bench faults` with Ray actors as workers, in separate namespaces, because
Ray would otherwise listen on all network interfaces of the host.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from katz_graph.core.errors import RunError
from katz_graph.testing.placement import Scale
from katz_graph.testing.worker_faults import FORGIVING, LINK, FaultTiming, inject_faults

UNSHARE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
LOOPBACK = 'ip link set lo up && exec "$@"'
DEVICES = 2
TIMEOUT = 1200.0  # seconds for the whole part


def can_run() -> bool:
    """Returns whether Ray is installed and this user may create network namespaces."""
    if (
        importlib.util.find_spec("ray") is None
        or shutil.which("unshare") is None
        or shutil.which("ip") is None
    ):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def in_namespaces(scale: Scale, repeats: int, seed: int) -> list[FaultTiming]:
    """Runs `inject_faults` in a separate process with new namespaces. Raises RunError with the last
    line of its stderr if it fails.
    """
    home = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short: it holds UNIX sockets
    asked = json.dumps({"scale": asdict(scale), "repeats": repeats, "seed": seed})
    try:
        done = subprocess.run(
            [*UNSHARE, "sh", "-c", LOOPBACK, "sh", sys.executable, "-m", __name__, asked],
            env={**os.environ, "HOME": home, "RAY_TMPDIR": home},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"the part on Ray did not end within {TIMEOUT:g} s") from None
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if done.returncode != 0:
        raise RunError(
            "the part on Ray failed: "
            f"{(done.stderr.strip().splitlines() or ['no error output'])[-1]}"
        )
    return [FaultTiming(**one) for one in json.loads(done.stdout.strip().splitlines()[-1])]


def main(scale: Scale, repeats: int, seed: int) -> None:
    """Injects faults into Ray actors; prints the results as a line of JSON."""
    from katz_graph.executor.cluster.network import WorkerNetwork
    from katz_graph.executor.engine import DeviceEngine
    from katz_graph.executor.launch.ray import RayCluster
    from katz_graph.executor.worker.config import WorkerConfig

    with tempfile.TemporaryDirectory() as name, RayCluster() as ray:
        folder = Path(name)
        places = {f"ray:{number}": place for number, place in enumerate(ray.places(DEVICES))}
        with DeviceEngine(
            [WorkerConfig(device) for device in places],
            cache=folder,
            link=LINK,
            spares=True,
            launchers={device: ray.launcher(place) for device, place in places.items()},
            network=WorkerNetwork(
                tuple(places), {device: place.host for device, place in places.items()}
            ),
            patience=FORGIVING,
        ) as engine:
            timings, _ = inject_faults(engine, folder, scale, repeats, seed)
    print(json.dumps([asdict(one) for one in timings]))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    main(
        Scale(**{**asked["scale"], "channels": tuple(asked["scale"]["channels"])}),
        asked["repeats"],
        asked["seed"],
    )
