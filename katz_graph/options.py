"""Declares options once, as fields with type, default, bounds and help, for commands and the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from katz_graph.devices import DeviceList, parse_devices
from katz_graph.settings import Settings

GB = 2**30


@dataclass(frozen=True, slots=True)
class Option:
    """Puts a field on the command line: `steps: Annotated[int, Option("how many")] = 1`.

    Its name is the flag unless `flags` are given, separated by spaces. Tuples may be repeated.
    """

    help: str
    flags: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    unit: int | None = None  # of bytes, which people give in MB or GB
    commas: bool = False  # separate values as well
    folder: bool = False  # has to exist
    envvar: str | None = None


Models = Annotated[
    tuple[Path, ...],
    Option("a folder of models (checkpoints/, loras/, ...)", folder=True),
]
Packs = Annotated[tuple[Path, ...], Option("a folder of node packs")]
ExtraModelPaths = Annotated[
    tuple[Path, ...],
    Option("an extra_model_paths.yaml: further folders of models and packs"),
]
ModelBytes = Annotated[
    int | None,
    Option(
        "of each device, for models; what is free less what computing needs, unless given",
        "--model-gb",
        unit=GB,
    ),
]
CACHE = Option("which results stay in memory: classic, lru:N, none")


# Groups have no slots: a class cannot inherit from two that have.
@dataclass(frozen=True)
class FolderOptions:
    """Locate models, packs and pictures to load. The environment gives what is left out."""

    models: Models = ()
    extra_model_paths: ExtraModelPaths = ()
    packs: Packs = ()
    input: Annotated[Path | None, Option("where LoadImage looks")] = None

    def settings(self, output: Path | None = None) -> Settings:
        """InputError when a file of extra model paths cannot be read."""
        extra = self.extra_model_paths
        return Settings.read(self.models, self.packs, self.input, output, extra_model_paths=extra)


@dataclass(frozen=True)
class DeviceOptions:
    """Choose devices, and how each of them computes."""

    devices: Annotated[str | None, Option("cpu, cuda:0, cpu*2, cuda:0,cuda:1, cuda*4, ray")] = None
    dtype: Annotated[
        str | None,
        Option(
            "number format: auto, float32, bfloat16, float16; auto: float16 on GPUs, else float32",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option("of each device; all cores for one device, one for each of several"),
    ] = None

    def device_list(self, otherwise: str | None = None) -> DeviceList:
        """Parse `devices`; if not given, `otherwise`; if neither is, the processor."""
        return parse_devices(self.devices or otherwise or "cpu")


@dataclass(frozen=True)
class PlacementOptions(DeviceOptions):
    """Steer where stages run."""

    place: Annotated[
        tuple[str, ...],
        Option("STAGE=DEVICE: pin a stage; several times: any of them"),
    ] = ()
    link: Annotated[
        str | None,
        Option("GBPS[,MS]: what links between devices are taken for; measured unless given"),
    ] = None
    allow: Annotated[str, Option("approximations by name: stale-controlnet")] = ""
