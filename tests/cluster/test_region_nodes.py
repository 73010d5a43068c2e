"""A pack's node in a step region on workers gives the same picture as in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from command import Katz
from PIL import Image
from region_pack import guided_by_pack


def painted(katz: Katz, workflow: Path, *arguments: object) -> np.ndarray:
    result = katz("run", workflow, "--threads", "1", *arguments, "--json")
    assert result.code == 0 and "runs on one device" not in result.err
    (path,) = result.data["outputs"]
    return np.asarray(Image.open(path))


def test_a_node_of_the_first_convention_runs_on_workers(
    katz_on_threads: Katz, tmp_path: Path
) -> None:
    own, foreign, packs = guided_by_pack(tmp_path)
    on_workers = painted(
        katz_on_threads,
        foreign,
        "--packs",
        packs,
        "--devices",
        "cpu*2",
        "--place",
        "unet=cpu:1",
        "--link",
        "100",
    )
    assert np.array_equal(on_workers, painted(katz_on_threads, own))


def test_a_node_that_cancels_its_run_on_a_worker_ends_it(
    katz_on_threads: Katz, tmp_path: Path
) -> None:
    _, foreign, packs = guided_by_pack(
        tmp_path, "(_ for _ in ()).throw(Cancelled('cancelled'))", steps=1
    )
    result = katz_on_threads("run", foreign, "--packs", packs, "--devices", "cpu*2")
    assert (result.code, result.errors) == (130, ["error: cancelled"])
