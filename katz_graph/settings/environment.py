"""Reads settings: the folders of this machine. The only module that reads the environment, but for
variables that a file of extra paths names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from katz_graph.core.errors import InputError
from katz_graph.core.messages import show
from katz_graph.files.extra_paths import ExtraPaths, read_extra_paths
from katz_graph.files.folders import Folders
from katz_graph.files.urls import ANY, FetchRule

TOKEN = "KATZ_TOKEN"
FETCHED_GB = "KATZ_FETCHED_GB"
KEPT_GB = 20.0  # of what URLs name, where nobody has said how much
GB = 2**30
WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""How OpenMP's threads wait for each other: as they do by themselves, GNU's for 300,000 looks,
others' for 200 ms. ACTIVE means, beside the others, that GNU's look 1,000 times instead of 100
where there are more threads than processors: a third faster there.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """The folders of this machine. `models` and `packs` are searched in order; `cache` holds data
    that can be made again (measured costs, downloads).

    `extra` is what files of further model folders say; the packs in it stand in `packs` already.
    `fetch`: which URLs may name models; None where nobody has said.
    """

    models: tuple[Path, ...]
    packs: tuple[Path, ...]
    input: Path
    output: Path
    cache: Path
    extra: ExtraPaths = field(default_factory=ExtraPaths)
    fetch: FetchRule | None = None

    @classmethod
    def read(
        cls,
        models: Sequence[Path] = (),
        packs: Sequence[Path] = (),
        input: Path | None = None,
        output: Path | None = None,
        cache: Path | None = None,
        extra_model_paths: Sequence[Path] = (),
        fetch: Sequence[str] = (),
    ) -> Settings:
        """Reads settings from the arguments, else from KATZ_MODELS, KATZ_PACKS and
        KATZ_EXTRA_MODEL_PATHS (lists, as in PATH), KATZ_INPUT, KATZ_OUTPUT, KATZ_CACHE and
        KATZ_FETCH (words with spaces between them). InputError when a file of extra model paths
        cannot be read, or `fetch` is not understood.

        Without either: `models`, `input` and `output` in the current folder, no packs, and a folder
        in the user's cache.
        """
        extra = read_extra_paths(tuple(extra_model_paths) or _listed("KATZ_EXTRA_MODEL_PATHS"))
        fetch = tuple(fetch) or tuple(os.environ.get("KATZ_FETCH", "").split())
        return cls(
            models=tuple(models) or _listed("KATZ_MODELS") or (Path("models"),),
            packs=(*(tuple(packs) or _listed("KATZ_PACKS")), *extra.packs),
            input=input or _one("KATZ_INPUT") or Path("input"),
            output=output or _one("KATZ_OUTPUT") or Path("output"),
            cache=cache or _cache(),
            extra=extra,
            fetch=FetchRule.parse(fetch) if fetch else None,
        )

    def absolute(self) -> Settings:
        """Returns the same folders wherever this process goes."""
        return replace(
            self,
            models=tuple(folder.absolute() for folder in self.models),
            packs=tuple(folder.absolute() for folder in self.packs),
            input=self.input.absolute(),
            output=self.output.absolute(),
            cache=self.cache.absolute(),
        )

    def folders(self, fetch: FetchRule = ANY) -> Folders:
        """Returns model folders, and those of pictures. `fetch`: which URLs may name models, where
        nobody has said.
        """
        return Folders(
            self.models,
            self.input,
            self.output,
            extra=self.extra,
            fetch=fetch if self.fetch is None else self.fetch,
        )


def lora_keys() -> Literal["strict", "lenient"]:
    """Reads from KATZ_LORA_KEYS whether a LoRA file with something that no layer of a model takes
    is refused ("strict"), or used without it and a warning ("lenient", also where nothing is said).
    InputError for other words.
    """
    match os.environ.get("KATZ_LORA_KEYS") or "lenient":
        case "strict" | "lenient" as said:
            return said
        case other:
            raise InputError(f"KATZ_LORA_KEYS is {other!r}, expected 'strict' or 'lenient'")


def fetched_files() -> tuple[Path, float]:
    """Returns the folder of files that URLs name, and the bytes that they may take there
    (KATZ_FETCHED_GB; inf: as many as there are). InputError when that is no number.
    """
    told = os.environ.get(FETCHED_GB) or str(KEPT_GB)
    try:
        most = float(told)
    except ValueError:
        most = -1.0
    if not most >= 0:
        raise InputError(f"{FETCHED_GB} is {show(told)}, expected a number of GB, or inf")
    return _cache() / "fetched", most * GB


def pin_cache() -> None:
    """Makes the cache folder the same wherever this process goes."""
    os.environ["KATZ_CACHE"] = str(_cache().absolute())


def prepare_to_compute(threads: int | None = None) -> None:
    """Sets how OpenMP's threads wait for each other in this process and in those that it starts,
    unless a person has set it, and how many there are in this one. To be called before torch is
    imported: the library reads the environment when it is loaded.
    """
    if not any(variable in os.environ for variable in WAITING):
        os.environ.update(WAITING)
    if threads is not None:
        os.environ.update(
            dict.fromkeys(
                ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)
            )
        )
        # it warns of addresses that have no names
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def waiting_is_ours() -> bool:
    """Checks that nobody else has set how OpenMP's threads wait."""
    return all(os.environ.get(variable, value) == value for variable, value in WAITING.items())


def checks_weights() -> bool:
    """Returns whether every restored weight is compared with what it was (KATZ_CHECK_WEIGHTS=1)."""
    return os.environ.get("KATZ_CHECK_WEIGHTS", "") not in ("", "0")


def environment_of_children() -> dict[str, str]:
    """Returns this process's environment for processes that run packs: without the token, which is
    for clients of the server.
    """
    return {name: value for name, value in os.environ.items() if name != TOKEN}


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return _one("KATZ_CACHE") or home / "katz_graph"


def _one(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


def _listed(variable: str) -> tuple[Path, ...]:
    return tuple(
        Path(part).expanduser() for part in os.environ.get(variable, "").split(os.pathsep) if part
    )
