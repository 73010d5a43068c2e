"""Sums a device's kernel times by purpose, from the names that libraries give kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
from torch._C._autograd import DeviceType

CLASSES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention", "flash", "fmha", "sdpa", "_sdp"),
    "convolution": ("conv", "fprop", "implicit", "cudnn"),
    "product": ("gemm", "nvjet", "cutlass", "cublas", "linear_geglu"),
    "norm": ("norm", "welford", "_moments", "_groups"),
    "gate": ("geglu", "gelu", "gated_activation"),
    "copy": ("memcpy", "memset", "copy", "cat"),
}
OTHER = "other"
MAX_KERNELS_LISTED = 20  # kernels reported individually
MAX_NAME_LETTERS = 70


def shares_of_step(
    device: torch.device, requests: Mapping[int, Callable[[], object]], step: float
) -> dict[str, float]:
    """Returns `shares` of a step that takes `step` seconds, from two requests that differ only in
    their numbers of steps. `requests`: by number of steps.
    """
    few, many = sorted(requests)
    before, after = (_kernels(device, requests[count]) for count in (few, many))
    taken = {name: took - before.get(name, 0.0) for name, took in after.items()}
    return shares(taken, (many - few) * step)


def _kernels(device: torch.device, request: Callable[[], object]) -> Mapping[str, float]:
    """Returns the seconds of the device's kernels in a request, by kernel name."""
    on_gpu = device.type == "cuda"
    kind = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as profile:
        request()
    found: defaultdict[str, float] = defaultdict(float)
    for event in profile.events() or ():
        if event.device_type == DeviceType.CUDA:
            found[event.name] += (event.time_range.end - event.time_range.start) / 1e6
    return found


def shares(taken: Mapping[str, float], total: float) -> dict[str, float]:
    """Returns shares of `total` seconds: of each kernel class, of `gaps` without a running kernel,
    and of the longest kernels. `gaps` assumes that kernels do not overlap. Returns nothing if no
    kernels ran. `taken`: seconds by kernel name.
    """
    if not taken:
        return {}
    found: dict[str, float] = defaultdict(float)
    for name, took in taken.items():
        found[class_of(name)] += took / total
    found["gaps"] = 1 - sum(found.values())
    most = sorted(taken, key=lambda name: -taken[name])[:MAX_KERNELS_LISTED]
    return found | {name[:MAX_NAME_LETTERS]: taken[name] / total for name in most}


def class_of(name: str) -> str:
    lower = name.lower()
    return next(
        (kind for kind, words in CLASSES.items() if any(word in lower for word in words)), OTHER
    )
