"""Makes networks with random weights, and records the calls of one evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from katz_graph.bench.gpu.clock import Action, interleaved, repeated
from katz_graph.bench.gpu.setting import Setting
from katz_graph.models.families.shared.transformer_stack import family_of_module
from katz_graph.models.loading.fill import with_memory
from katz_graph.models.stage_registry import stage
from katz_graph.models.stages import Sized
from katz_graph.testing.random_models import Kind, draw_network

DTYPE = torch.bfloat16  # of transformers
SPREAD = 0.02  # standard deviation of weights
ROUNDS = 3  # maximum
STAGES = ("transformer_embed", "transformer_blocks", "transformer_head")
TRANSFORMERS: Mapping[Kind, int] = {"flux": 256, "sd35": 154}
"""Maps kinds of transformers to the tokens of a prompt, the most useful first."""


def transformer(setting: Setting, kind: Kind) -> nn.Module:
    """Makes a transformer at the setting's size."""
    sizes = setting.transformers[kind]
    return in_memory(setting, lambda: draw_network(kind, 1, **sizes), DTYPE)


def in_memory(setting: Setting, make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """Makes a module with random weights on the device, prepared as the engine loads it."""
    with torch.device("meta"):
        module = make()
    module = with_memory(module, setting.device, dtype).eval().requires_grad_(False)
    family_of_module(module).prepared(module)
    for weight in (*module.parameters(), *module.buffers()):
        weight.normal_(0.0, SPREAD)
    return module


def evaluation(module: nn.Module, stages: Sequence[str], sizes: Sized) -> Action:
    """Returns the calls of a network's stages as one action."""
    calls = [stage(name).sized(module, sizes)[0] for name in stages]
    return lambda: [call() for call in calls]


def recorded_seconds(setting: Setting, action: Action) -> float:
    """Returns the median seconds of an action, recorded on a GPU."""
    recorded = repeated(action, setting.device, 1)
    rounds = min(ROUNDS, setting.rounds)
    return interleaved({"it": recorded}, setting.device, rounds)["it"]
