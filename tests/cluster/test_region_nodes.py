"""A pack's node inside of a step region on workers: the same picture as in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from region_pack import guided_by_pack


def painted(folder: Path, costs: Path, workflow: Path, *arguments: object) -> np.ndarray:
    command = [sys.executable, "-m", "katz_graph.cli.main", "run", str(workflow), "--json", "--threads", "1", *map(str, arguments)]
    environment = {**os.environ, "KATZ_CACHE": str(costs)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "runs on one device" not in done.stderr
    (path,) = json.loads(done.stdout.strip().splitlines()[-1])["outputs"]
    return np.asarray(Image.open(path))


def test_a_node_of_the_first_convention_runs_on_workers(tmp_path: Path, costs: Path) -> None:
    own, foreign, packs = guided_by_pack(tmp_path)
    on_workers = painted(tmp_path, costs, foreign, "--packs", packs, "--devices", "cpu*2", "--place", "unet=cpu:1", "--link", "100")
    assert np.array_equal(on_workers, painted(tmp_path, costs, own))
