"""What pictures and scripts are told of an approximation: that it was in force, not that it was allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

WORKFLOW = Path(__file__).parents[2] / "workflows" / "controlnet_lora.json"


def katz(folder: Path, costs: Path, *arguments: object) -> Any:
    code = "from katz_graph.cli.main import main\nmain()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "KATZ_CACHE": str(costs)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize(("place", "expected"), [("cpu:1", ["stale-controlnet"]), ("cpu:0", [])])
def test_a_picture_says_whether_its_controlnet_was_late(tmp_path: Path, costs: Path, place: str, expected: list[str]) -> None:
    places = ("--place", f"controlnet={place}", "--place", "unet=cpu:0")
    allowed = ("--allow", "stale-controlnet", "--link", "10,1000")  # as if a message took a second: waiting never pays
    told = katz(tmp_path, costs, "run", WORKFLOW, "--devices", "cpu*2", *places, *allowed, "--set", "KSampler.steps=3", "--json")
    assert told["approximations"] == expected
    (path,) = told["outputs"]
    with Image.open(path) as picture:
        made_with = json.loads(picture.info["katz"])
    assert made_with["approximations"] == expected and made_with["devices"] == "cpu*2"
