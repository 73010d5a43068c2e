"""`katz bench lora`: compares the cost of merging and removing LoRAs with one memory copy of the
patched weights, and with PEFT on the same files.

All actions alternate on one network; figures are medians over the rounds' ratios.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.core.recipe import Lora
from katz_graph.executor.weights.adapters import AdapterStore
from katz_graph.executor.weights.weight_set import WeightSetCache, WeightSets
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.placement import Scale
from katz_graph.testing.random_models import make_lora, make_pipeline, usual, usual_kind

RANKS = (4, 8, 16, 64)
RANK = 8  # rank that the bounds apply to
FORMATS = (torch.float32, torch.float16, torch.bfloat16)
BOUNDS = {
    "patch_and_restore_of_copy": (3.0, "<="),
    "strength_of_patch": (1.2, "<="),
    "kept_of_copy": (1.5, "<="),
    "peft_of_patch_and_restore": (5.0, ">="),
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Holds the seconds of each action, by round."""

    copy: list[float]  # memory copy of the patched weights
    patch: list[float]
    strength: list[float]  # change of the strength
    restore: list[float]
    cached: list[float]  # switch to a cached weight set
    peft: list[float]  # the same with PEFT; empty if not measured

    def of(
        self, over: Callable[[Costs, int], float], under: Callable[[Costs, int], float]
    ) -> float:
        return median(over(self, n) / under(self, n) for n in range(len(self.copy)))


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale(runs=15)
    with tempfile.TemporaryDirectory() as name, quiet(), torch.inference_mode():
        folder = Path(name)
        make_pipeline(folder / "pipeline", usual_kind(), seed=1, **scale.sizes)
        found = {
            (rank, torch.float32): _costs(
                folder, scale, rank, torch.float32, with_peft=rank == RANK
            )
            for rank in RANKS
        } | {(RANK, dtype): _costs(folder, scale, RANK, dtype) for dtype in FORMATS[1:]}
    main = found[RANK, torch.float32]
    metrics = _ratios(main) | {
        "peft_of_patch_and_restore": main.of(
            lambda costs, n: costs.peft[n], lambda costs, n: costs.patch[n] + costs.restore[n]
        ),
        "patch_seconds": median(main.patch),
        "restore_seconds": median(main.restore),
        "copy_seconds": median(main.copy),
        "peft_seconds": median(main.peft),
    }
    ok = all(
        metrics[name] <= bound if sign == "<=" else metrics[name] >= bound
        for name, (bound, sign) in BOUNDS.items()
    )
    rows = [
        [
            f"rank {rank}, {str(dtype).removeprefix('torch.')}",
            *(median(times) * 1e3 for times in (one.copy, one.patch, one.restore)),
            *_ratios(one).values(),
        ]
        for (rank, dtype), one in found.items()
    ]
    columns = ("", "copy ms", "patch ms", "restore ms", *_ratios(main))
    bounds = {name: f"{sign} {bound}" for name, (bound, sign) in BOUNDS.items()}
    return BenchResult("lora", ok, metrics, bounds, columns, rows)


def _ratios(costs: Costs) -> dict[str, float]:
    return {
        "patch_and_restore_of_copy": costs.of(
            lambda one, n: one.patch[n] + one.restore[n], lambda one, n: one.copy[n]
        ),
        "strength_of_patch": costs.of(lambda one, n: one.strength[n], lambda one, n: one.patch[n]),
        "kept_of_copy": costs.of(lambda one, n: one.cached[n], lambda one, n: one.copy[n]),
    }


def _costs(
    folder: Path, scale: Scale, rank: int, dtype: torch.dtype, with_peft: bool = False
) -> Costs:
    paths = [folder / f"{rank}-{number}.safetensors" for number in range(2)]
    for number, path in enumerate(paths):
        make_lora(path, usual_kind(), rank, rank, "peft", 20 + number, False, **scale.sizes)
    files = [file_identity(path) for path in paths]
    recipe = pipeline_recipes(folder / "pipeline")[0]
    module = ModelStore().network(recipe.network, "cpu", dtype)
    store = AdapterStore()
    wanted = store.want(files)
    for file in files:
        wanted.get(file)
    sets, keeping = WeightSets(module, store.get), WeightSets(module, store.get, WeightSetCache())
    first, second = ((Lora(file, 0.8),) for file in files)
    weights = dict(module.named_parameters())
    _use(sets, first)
    scratch = {name: torch.empty_like(weights[name]) for name in sets.touched}
    _use(sets, ())
    peft = _Peft(folder, paths[0], dtype) if with_peft else None
    for chosen in (first, second, first, second):
        _use(keeping, chosen)
    _use(keeping, ())
    costs = Costs([], [], [], [], [], [])
    for _ in range(scale.runs):
        costs.copy.append(_seconds(lambda: _copied(scratch, weights)))
        costs.patch.append(_use(sets, first))
        costs.strength.append(_use(sets, (Lora(files[0], 0.5),)))
        costs.restore.append(_use(sets, ()))
        _use(keeping, second)
        costs.cached.append(_use(keeping, first))
        _use(keeping, ())
        if peft is not None:
            costs.peft.append(_seconds(peft.once))
    wanted.release()
    return costs


class _Peft:
    """Loads, fuses, unfuses and unloads a LoRA, as diffusers does with PEFT."""

    def __init__(self, folder: Path, path: Path, dtype: torch.dtype) -> None:
        from diffusers import AutoModel

        self._part = usual().part
        self._network: Any = AutoModel.from_pretrained(
            str(folder / "pipeline" / self._part), torch_dtype=dtype
        )
        self._path = path
        self.once()

    def once(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self._network.load_lora_adapter(
                self._path.parent,
                weight_name=self._path.name,
                prefix=self._part,
                adapter_name="one",
            )
            self._network.fuse_lora(lora_scale=0.8)
            self._network.unfuse_lora()
            self._network.unload_lora()


def _copied(target: Mapping[str, torch.Tensor], source: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _use(sets: WeightSets, loras: tuple[Lora, ...]) -> float:
    return _seconds(lambda: sets.use(loras))


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
