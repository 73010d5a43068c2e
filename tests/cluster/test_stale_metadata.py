"""Pictures and scripts record an approximation if it was used, not if it was merely allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Katz
from PIL import Image

WORKFLOW = Path(__file__).parents[2] / "workflows" / "controlnet_lora.json"


@pytest.mark.parametrize(("place", "expected"), [("cpu:1", ["stale-controlnet"]), ("cpu:0", [])])
def test_a_picture_records_a_late_controlnet(
    katz_on_threads: Katz, place: str, expected: list[str]
) -> None:
    places = ("--place", f"controlnet={place}", "--place", "unet=cpu:0")
    # a message takes a second: waiting does not pay
    allowed = ("--allow", "stale-controlnet", "--link", "10,1000")
    result = katz_on_threads(
        "run",
        WORKFLOW,
        "--devices",
        "cpu*2",
        *places,
        *allowed,
        "--set",
        "KSampler.steps=3",
        "--json",
    ).data
    assert result["approximations"] == expected
    (path,) = result["outputs"]
    with Image.open(path) as picture:
        made_with = json.loads(picture.info["katz"])
    assert made_with["approximations"] == expected and made_with["devices"] == "cpu*2"
