"""Every shipped workflow runs on the miniature models, and the hand-drawn loop paints the sampler's
picture.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from command import Katz
from PIL import Image

WORKFLOWS = sorted((Path(__file__).parents[2] / "workflows").glob("*.json"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_shipped_workflow_runs_as_it_is(katz: Katz, workflow: Path) -> None:
    result = katz("run", workflow, "--threads", 1, "--json")
    assert result.code == 0, result.err
    for path in result.data["outputs"]:
        pixels = numpy.asarray(Image.open(path).convert("RGB")).astype(float)
        # not a flat field
        assert min(pixels.shape[:2]) >= 128 and pixels.shape[2] == 3 and pixels.std() > 10
    plan = result.data["plan"]
    assert result.data["outputs"] and all(
        one["evaluations"] > 0 for one in (plan if isinstance(plan, list) else [plan])
    )


def test_the_loop_drawn_by_hand_paints_the_same_bytes_as_the_sampler(katz: Katz) -> None:
    by_stem = {path.stem: path for path in WORKFLOWS}
    pictures = [
        katz("run", by_stem[name], "--threads", 1, "--json").data["outputs"][0]
        for name in ("txt2img", "loop_by_hand")
    ]
    one, other = (numpy.asarray(Image.open(path)) for path in pictures)
    assert numpy.array_equal(one, other)
