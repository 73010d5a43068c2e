"""Declares options of commands and servers: type, default, bounds and help in one field."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack, cast

from katz_graph.core.devices import DeviceList, parse_devices
from katz_graph.core.eviction import POLICIES
from katz_graph.settings.environment import Settings

GB = 2**30
DISK_GB = 32  # for templates, unless given
COUNTED = ", ".join(f"{name}:N" for name in POLICIES)
CACHE = f"cache policy for nodes' results: classic, {COUNTED}, none"

T = TypeVar("T")


class Details(TypedDict, total=False):
    """Extra arguments of an option. `unit`: bytes per unit of a number in MB or GB; `commas`:
    commas also separate values.
    """

    unit: int
    commas: bool
    min: float
    max: float
    metavar: str
    envvar: str
    exists: bool
    file_okay: bool


def option(help: str, default: T | None = None, flags: str = "", **details: Unpack[Details]) -> T:
    """Makes a field of a frozen dataclass an option. Options with tuple values are repeatable.

    The flag is derived from the field's name unless `flags`, separated by spaces, are given.
    """
    return cast(T, field(default=default, metadata={"help": help, "flags": flags, **details}))


# Option groups have no slots, because a class cannot inherit from two classes with slots.
@dataclass(frozen=True)
class FolderOptions:
    """Locates models, packs and pictures. Defaults come from the environment."""

    models: tuple[Path, ...] = option(
        "a folder of models (checkpoints/, loras/, ...)",
        (),
        exists=True,
        file_okay=False,
    )
    extra_model_paths: tuple[Path, ...] = option(
        "an extra_model_paths.yaml: further folders of models and packs",
        (),
    )
    packs: tuple[Path, ...] = option("a folder of node packs", (), exists=True, file_okay=False)
    input: Path | None = option("folder for LoadImage", exists=True, file_okay=False)
    output: Path | None = option("folder for pictures")
    fetch: tuple[str, ...] = option(
        "any, none, or a prefix of allowed URLs of LoRAs and ControlNets; repeatable",
        (),
        metavar="URL",
    )

    def settings(self) -> Settings:
        """Reads the settings. Raises InputError if a file of extra model paths cannot be read."""
        return Settings.read(
            self.models,
            self.packs,
            self.input,
            self.output,
            extra_model_paths=self.extra_model_paths,
            fetch=self.fetch,
        )


@dataclass(frozen=True)
class DeviceOptions:
    """Selects devices and their compute settings."""

    devices: str | None = option("cpu, cuda:0, cpu*2, cuda:0,cuda:1, cuda*4, ray")
    dtype: str | None = option(
        "number format: auto, float32, bfloat16, float16; auto: float16 on GPUs, else float32",
    )
    threads: int | None = option(
        "CPU threads of each device; default: all cores for one device, else one core each",
    )
    model_bytes: int | None = option(
        "memory of each device for models; default: free memory less a reserve for computing",
        None,
        "--model-gb",
        min=0,
        unit=GB,
    )
    lora_bytes: int | None = option(
        "host memory for each device's LoRA files, on CPUs as much for merged weights",
        None,
        "--lora-gb",
        min=0,
        unit=GB,
    )

    cuda_graphs: bool = option("record stages as CUDA graphs on GPUs, and replay them", True)

    def device_list(self, otherwise: str | None = None) -> DeviceList:
        """Parses `devices`, else `otherwise`, else returns the CPU."""
        return parse_devices(self.devices or otherwise or "cpu")


@dataclass(frozen=True)
class TemplateOptions:
    """Limits the stored activations of templates."""

    template_gb: str = option(
        "host memory of each device, and disk, for activations of --allow cached-edit",
        f"4,{DISK_GB}",
        metavar="MEMORY[,DISK]",
    )


@dataclass(frozen=True)
class PlacementOptions(DeviceOptions, TemplateOptions):
    """Controls where stages run."""

    place: tuple[str, ...] = option(
        "STAGE=DEVICE: pin a stage; repeat to allow several devices", ()
    )
    link: str | None = option(
        "GBPS[,MS]: assumed speed of links between devices; default: measured",
    )
    allow: str = option(
        "approximations by name: stale-controlnet, async-lora[=K], cached-edit, similar-start", ""
    )
    store_link: float | None = option(
        "assumed gigabytes per second at which devices read these activations",
        metavar="GB/S",
    )
