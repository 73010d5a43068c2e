"""Runs a script with a Ray session in separate namespaces and a separate home, because Ray listens
on all interfaces.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
UNSHARE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def run_session(script: str, costs: Path, models: Path, timeout: float = 300) -> dict[str, Any]:
    """Returns the report of a script in this folder. Skips the test if Ray, or the permission to
    create namespaces, is missing.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode
    ):
        pytest.skip("this user may not make network namespaces")
    home = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short, because it contains UNIX sockets
    environment = {
        **os.environ,
        "HOME": home,
        "RAY_TMPDIR": home,
        "PYTHONPATH": str(HERE),
        "KATZ_CACHE": str(costs),
        "TEST_MODELS": str(models),
    }
    command = 'ip link set lo up && exec "$@"'
    try:
        done = subprocess.run(
            [*UNSHARE, "sh", "-c", command, "sh", sys.executable, str(HERE / script)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps(seen, indent=1))
    return seen
