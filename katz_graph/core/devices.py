"""Parses `--devices`, `--dtype` and `--link`. Each device is a named worker process if several are
requested.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from katz_graph.core.errors import InputError
from katz_graph.ir.device import DTYPES

if TYPE_CHECKING:
    import torch

BY_LOAD: Literal["auto"] = "auto"
Lane = int | Literal["auto"] | None
"""The number of devices of a job; `BY_LOAD`: one or all, by load; None: all."""

MAX_THREADS = 1024
MAX_DEVICES = 64
AUTO = "auto"
PATTERN = re.compile(r"(cpu|cuda)(?::(\d+))?(?:\*(\d+))?")


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Names one requested device, in plans and messages and in torch."""

    name: str
    device: str


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Lists all devices of a run. One device is served by this process, several by spawned
    processes (`spawn`) or a cluster (`ray`).
    """

    text: str
    choices: tuple[DeviceChoice, ...]
    launcher: str = "spawn"

    @property
    def several(self) -> bool:
        return len(self.choices) > 1 or self.launcher == "ray"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(choice.name for choice in self.choices)

    def without(self, lost: Collection[str]) -> DeviceList:
        """Returns the list without the lost devices."""
        choices = tuple(choice for choice in self.choices if choice.name not in lost)
        return (
            self
            if choices == self.choices
            else replace(self, choices=choices, text=",".join(choice.name for choice in choices))
        )


def parse_devices(text: str) -> DeviceList:
    """Parses `cpu`, `cuda:0`, `cpu*2`, `cuda:0,cuda:1`, `cuda*4` (the first four), `cuda:0*2` (two
    workers on one GPU), `ray` and `ray*4`.

    Raises InputError for anything else. `check_present` checks that the GPUs exist.
    """
    if match := re.fullmatch(r"ray(?:\*(\d+))?", text.strip()):
        return DeviceList(
            text,
            tuple(DeviceChoice(f"ray:{number}", "ray") for number in range(int(match[1] or 0))),
            "ray",
        )
    choices: list[DeviceChoice] = []
    for part in text.split(","):
        match = PATTERN.fullmatch(part.strip())
        if not match:
            raise InputError(
                f"--devices {text}: {part.strip() or 'nothing'} is not a device; use cpu, cuda:0, "
                "cpu*2, cuda:0,cuda:1, cuda*4 or ray"
            )
        kind, index, times = match[1], match[2], match[3]
        if times is not None and not 1 <= int(times) <= MAX_DEVICES:
            raise InputError(f"--devices {text}: expected 1 to {MAX_DEVICES} devices")
        choices += _expanded(kind, index, int(times) if times else None)
    names = [choice.name for choice in choices]
    if len(set(names)) < len(names) or len(names) > MAX_DEVICES:
        twice = next((name for name in names if names.count(name) > 1), None)
        raise InputError(
            f"--devices {text}: "
            f"{f'{twice} is listed twice' if twice else f'more than {MAX_DEVICES} devices'}"
        )
    return DeviceList(text, tuple(choices))


def _expanded(kind: str, number: str | None, times: int | None) -> list[DeviceChoice]:
    if kind == "cpu":
        if times is None:
            return [DeviceChoice("cpu" if number is None else f"cpu:{number}", "cpu")]
        return [DeviceChoice(f"cpu:{index}", "cpu") for index in range(times)]
    if number is None:
        return [DeviceChoice(f"cuda:{index}", f"cuda:{index}") for index in range(times or 1)]
    if times is None:
        return [DeviceChoice(f"cuda:{number}", f"cuda:{number}")]
    return [DeviceChoice(f"cuda:{number}#{index}", f"cuda:{number}") for index in range(times)]


def check_present(devices: DeviceList) -> None:
    """Raises InputError for GPUs that torch does not see."""
    if not any(choice.device.startswith("cuda") for choice in devices.choices):
        return
    import torch

    count = torch.cuda.device_count()
    gpus = {
        choice.name: int(choice.device.partition(":")[2])
        for choice in devices.choices
        if choice.device.startswith("cuda")
    }
    if absent := tuple(name for name, number in gpus.items() if number >= count):
        raise InputError(
            f"--devices {devices.text}: torch sees {count} CUDA devices; use cpu", absent
        )


def number_format(devices: Iterable[str], dtype: str = AUTO) -> str:
    """Returns the dtype for all devices of a run. All use the same, because they exchange tensors.
    `devices`: torch's names.

    `auto` is float16 if all devices are GPUs, else float32. Raises InputError for unknown dtypes,
    and for float16 on a CPU.
    """
    if dtype not in (AUTO, *DTYPES):
        raise InputError(f"--dtype {dtype}: expected one of {', '.join((AUTO, *DTYPES))}")
    some_processor = any(device == "cpu" for device in devices)
    if dtype == "float16" and some_processor:
        raise InputError(
            "--dtype float16 is about twenty times slower on CPUs; use bfloat16 or float32, or "
            "GPUs only"
        )
    return dtype if dtype != AUTO else "float32" if some_processor else "float16"


def format_name(dtype: torch.dtype) -> str:
    """Returns the `--dtype` name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


def wider(dtype: str) -> str:
    """Returns the options with a wider range than `dtype`, for error messages; "" if none has."""
    return {"float16": "--dtype bfloat16 or float32", "bfloat16": "--dtype float32"}.get(dtype, "")


def check_dtype(dtype: str, devices: DeviceList) -> None:
    """Raises InputError unless all devices can compute in the dtype. The devices of a cluster are
    checked on joining.
    """
    number_format((choice.device for choice in devices.choices), dtype)


def parse_link(link: str | None) -> tuple[float, float] | None:
    """Parses GBPS[,MS] to bytes per second and seconds of latency. Raises InputError if invalid."""
    if link is None:
        return None
    try:
        numbers = [float(part) for part in link.split(",")]
    except ValueError:
        numbers = []
    if (
        len(numbers) not in (1, 2)
        or not all(math.isfinite(number) for number in numbers)
        or numbers[0] <= 0
        or min(numbers) < 0
    ):
        raise InputError(f"--link {link}: expected GBPS or GBPS,MS, for example 25,0.05")
    return numbers[0] * 1e9 / 8, (numbers[1] if len(numbers) > 1 else 0.0) / 1e3


def parse_lane(text: str | None, devices: Collection[str]) -> Lane:
    """Parses `--devices-per-job`: N, auto or None. Raises InputError for another text, for 0, and
    for more than these devices; without devices, their number is not known yet.
    """
    if text is None:
        return None
    if text == BY_LOAD:
        return BY_LOAD
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not count:
        raise InputError(f"--devices-per-job {text}: expected a number of devices from 1, or auto")
    if devices and count > len(devices):
        raise InputError(
            f"--devices-per-job {text}: this server has the devices {', '.join(devices)} only"
        )
    return count


def threads_for(devices: DeviceList, threads: int | None) -> int:
    """Returns the threads per worker: `threads` if set, else all cores for one device and one core
    each for several. Raises InputError if out of range.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise InputError(f"--threads {threads}: expected 1 to {MAX_THREADS}")
    return threads or (1 if devices.several else processors())


def processors() -> int:
    """Returns the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
