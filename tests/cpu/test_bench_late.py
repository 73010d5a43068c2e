"""`katz bench late`: LoRAs arrive on time; each K (steps without the LoRA) has figures and a
picture.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import torch

from katz_graph.bench import late
from katz_graph.bench.contact_sheet import contact_sheet


def test_a_style_survives_a_lora_that_is_as_late_as_its_profile_allows() -> None:
    """With few pictures, the bench requires that none loses its style. Stripes keep it, dusk does
    not (docs/log.md).
    """
    result = late.run(1, ("stripes",), (0, 2), profiled=1, seeds=1)
    assert result.metrics["punctual"]
    figures = result.metrics["stripes"]
    assert {"0", "2", late.NEVER, str(figures["profile"])} == figures["by_steps"].keys()
    assert figures["by_steps"]["0"]["style"] == 1.0 and result.metrics["stripes_change"] == 0.0
    assert figures["by_steps"][late.NEVER]["style"] == 0.0
    # later means less alike
    assert figures["by_steps"]["2"]["ssim"] > figures["by_steps"][late.NEVER]["ssim"]
    assert result.ok


def test_a_contact_sheet_has_names_and_pictures() -> None:
    black = torch.zeros(8, 8, 3)
    svg = contact_sheet({"K < 2": [black, black], "never": [black]}, ["one", "two"])
    assert re.findall(r">([^<\n]+)</text>", svg) == ["one", "two", "K &lt; 2", "never"]
    assert svg.count("<image ") == 3
    assert len(set(re.findall(r'<image x="(\S+)" y="(\S+)"', svg))) == 3
    assert ElementTree.fromstring(svg).tag.endswith("svg")
