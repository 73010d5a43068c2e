"""Reads settings and folders from the environment. No other module reads the environment, except
for variables named in a file of extra paths.
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
TEMPLATES = "templates"  # folder of the cache with activations for edits
FETCHED_GB = "KATZ_FETCHED_GB"
DEFAULT_FETCHED_GB = 20.0  # default limit of downloaded files
GB = 2**30
WAITING = {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""Spin settings of OpenMP threads at the runtimes' defaults: 300,000 spins (GNU) or 200 ms
(others). ACTIVE raises GNU's spins from 100 to 1,000 if threads outnumber cores, which is a third
faster in that case.
"""

ALLOCATION = "MALLOC_", "GLIBC_TUNABLES"  # beginnings of names of glibc's variables


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders of this machine. `models` and `packs` are searched in order; `cache` holds
    reproducible data (measured costs, downloads, activations).

    `extra`: content of extra model path files; `packs` already includes their packs. `fetch`: URLs
    that may name models; None if unset.
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
        KATZ_FETCH (words separated by spaces). Raises InputError if a file of extra model paths
        cannot be read or `fetch` is invalid.

        Defaults: `models`, `input` and `output` in the current folder, no packs, and a folder in
        the user's cache.
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
        """Returns the settings with absolute paths, independent of the working directory."""
        return replace(
            self,
            models=tuple(folder.absolute() for folder in self.models),
            packs=tuple(folder.absolute() for folder in self.packs),
            input=self.input.absolute(),
            output=self.output.absolute(),
            cache=self.cache.absolute(),
        )

    def folders(self, fetch: FetchRule = ANY) -> Folders:
        """Returns the folders of models and pictures. `fetch`: default rule for URLs that may name
        models.
        """
        return Folders(
            self.models,
            self.input,
            self.output,
            extra=self.extra,
            fetch=fetch if self.fetch is None else self.fetch,
        )


def lora_keys() -> Literal["strict", "lenient"]:
    """Reads KATZ_LORA_KEYS: "strict" refuses a LoRA file with keys that match no layer; "lenient",
    the default, skips them with a warning. Raises InputError for other values.
    """
    match os.environ.get("KATZ_LORA_KEYS") or "lenient":
        case "strict" | "lenient" as said:
            return said
        case other:
            raise InputError(f"KATZ_LORA_KEYS is {other!r}, expected 'strict' or 'lenient'")


def fetched_files() -> tuple[Path, float]:
    """Returns the folder of downloaded files and its size limit in bytes (KATZ_FETCHED_GB; inf: no
    limit). Raises InputError if that is no number.
    """
    text = os.environ.get(FETCHED_GB) or str(DEFAULT_FETCHED_GB)
    try:
        most = float(text)
    except ValueError:
        most = -1.0
    if not most >= 0:
        raise InputError(f"{FETCHED_GB} is {show(text)}, expected a number of GB or inf")
    return _cache() / "fetched", most * GB


def made_tokenizers() -> Path:
    """Returns the folder of tokenizers made from vocabularies in other formats."""
    return _cache() / "tokenizers"


def pin_cache() -> None:
    """Makes the cache folder independent of the working directory."""
    os.environ["KATZ_CACHE"] = str(_cache().absolute())


def prepare_to_compute(threads: int | None = None) -> None:
    """Sets this process's thread count and, unless the user has, how OpenMP threads of this process
    and its children spin. Call it before importing torch, because OpenMP reads the environment when
    it is loaded.
    """
    if not any(variable in os.environ for variable in WAITING):
        os.environ.update(WAITING)
    if threads is not None:
        os.environ.update(
            dict.fromkeys(
                ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)
            )
        )
        # suppresses warnings about addresses without host names
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def waiting_is_ours() -> bool:
    """Returns whether the spin settings are unset or equal ours."""
    return all(os.environ.get(variable, value) == value for variable, value in WAITING.items())


def allocation_is_ours() -> bool:
    """Returns whether no variable sets how glibc allocates memory."""
    return not any(name.startswith(ALLOCATION) for name in os.environ)


def checks_weights() -> bool:
    """Returns whether restored weights are verified (KATZ_CHECK_WEIGHTS=1)."""
    return os.environ.get("KATZ_CHECK_WEIGHTS", "") not in ("", "0")


def environment_of_children() -> dict[str, str]:
    """Returns the environment for processes that run packs. Omits the token for clients of the
    server.
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
