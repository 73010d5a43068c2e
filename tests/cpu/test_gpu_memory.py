"""Free memory of a GPU, computed with a fake torch allocator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from katz_graph.comfy.shims.comfy.model_management import get_free_memory
from katz_graph.models.loading.memory import DeviceMemory

TOTAL = 1000
OWN = (0, 1)  # the pool of a CUDA graph


@dataclass
class Allocator:
    """Allocates segments for the shared pool and those of graphs. A segment has a size and the
    bytes its tensors use.
    """

    segments: list[tuple[tuple[int, int], int, int, int]] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name, stand_in in {
            "is_initialized": lambda: True,
            "current_device": lambda: 0,
            "mem_get_info": lambda device: (self.free, TOTAL),
            "memory_reserved": lambda device: sum(size for _, _, size, _ in self.segments),
            "memory_allocated": lambda device: sum(used for *_, used in self.segments),
            "memory_snapshot": self.snapshot,
        }.items():
            patch.setattr(torch.cuda, name, stand_in)

    @property
    def free(self) -> int:
        return TOTAL - sum(size for _, device, size, _ in self.segments if device == 0)

    def snapshot(self) -> list[dict[str, object]]:
        return [
            {"segment_pool_id": pool, "device": device, "total_size": size, "allocated_size": used}
            for pool, device, size, used in self.segments
        ]

    def to_be_had(self) -> int:
        """Returns the shared pool's free bytes."""
        shared = (one for one in self.segments if one[0] == (0, 0) and one[1] == 0)
        return self.free + sum(size - used for _, _, size, used in shared)


def shown_to_packs(device: torch.device) -> float:
    return float(get_free_memory(device))


@pytest.mark.defect(33)
@pytest.mark.parametrize("asked", [lambda device: DeviceMemory(device).free(), shown_to_packs])
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_unused_memory_of_graph_pools_is_not_free(
    monkeypatch: pytest.MonkeyPatch, asked: Callable[[torch.device], float], name: str
) -> None:
    allocator, device = Allocator(), torch.device(name)
    allocator.install(monkeypatch)
    for segment in (
        ((0, 0), 0, 100, 40),
        ((0, 0), 1, 100, 0),  # on another GPU
        (OWN, 0, 300, 20),
        ((0, 2), 0, 50, 0),
    ):
        allocator.segments.append(segment)
        assert asked(device) == allocator.to_be_had()
