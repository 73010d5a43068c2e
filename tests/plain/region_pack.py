"""Provides a V1 pack with a node for step regions, and a workflow that uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foreign_packs import write

LOOP = Path(__file__).parents[2] / "workflows" / "loop_by_hand.json"
PACK = """
    from comfy.model_management import get_torch_device
    from comfy_execution.graph_utils import ExecutionBlocker
    from katz_graph.core.errors import Cancelled

    class Guide:
        def __init__(self):
            self.calls = 0

        @classmethod
        def INPUT_TYPES(s):
            wires = {"cond": ("PREDICTION",), "uncond": ("PREDICTION",), "guidance": ("FLOAT", {"default": 1.0})}
            return {"required": wires, "hidden": {"me": "UNIQUE_ID", "key": "AUTH_TOKEN_COMFY_ORG"}}

        RETURN_TYPES = ("PREDICTION",)
        FUNCTION = "go"
        CATEGORY = "test"

        def go(self, cond, uncond, guidance, me, key, **undeclared):
            assert key is None and get_torch_device() == cond.device
            self.calls += 1
            print(f"call {self.calls} of {me}")
            return BODY

    NODE_CLASS_MAPPINGS = {"Guide": Guide}
"""
COMBINED = "(uncond + (undeclared['again'] - uncond) * guidance,)"


def guided_by_pack(folder: Path, body: str = COMBINED, steps: int = 3) -> tuple[Path, Path, Path]:
    """Returns the loop with the built-in node, the same loop with the pack's node, and the folder
    of packs.
    """
    document: dict[str, Any] = json.loads(LOOP.read_text())
    begin = next(node for node in document.values() if node["class_type"] == "StepBegin")
    begin["inputs"]["steps"] = steps
    own, foreign = folder / "own.json", folder / "foreign.json"
    own.write_text(json.dumps(document))
    guide = next(node for node in document.values() if node["class_type"] == "CFGCombine")
    guide["class_type"], guide["inputs"]["again"] = "Guide", guide["inputs"]["cond"]
    guide["inputs"]["last_block"] = 1  # an input that a UNetDecoder has too
    foreign.write_text(json.dumps(document))
    return own, foreign, write(folder / "packs", guide=PACK.replace("BODY", body))
