"""Starts the servers that the bench compares: `katz serve`, and the ComfyUI of the user. Both speak
ComfyUI's protocol and read the same model files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from katz_graph.bench.gpu.originals import Originals
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.core.errors import InputError
from katz_graph.testing.server_process import Served

OURS, COMFYUI = "ours", "comfyui"

Start = Callable[[Path], Served]
"""Returns a server, not yet started, that stores its data in a folder."""


def peer_program(peer: str | None) -> Path | None:
    """Returns ComfyUI's program of `comfyui=PATH`. Raises InputError for any other text, and if the
    folder has no such program.
    """
    if peer is None:
        return None
    name, _, path = peer.partition("=")
    if name != COMFYUI or not path:
        raise InputError(f"--peer {peer}: expected {COMFYUI}=PATH, the folder of its main.py")
    program = Path(path).expanduser().absolute() / "main.py"
    if not program.is_file():
        raise InputError(f"--peer {peer}: {program} does not exist; pass ComfyUI's folder")
    return program


class Ours(Served):
    """Runs `katz serve` as on a machine without compiled kernels: Triton's cache is in the cache
    folder, too.
    """

    @property
    def _environment(self) -> Mapping[str, str]:
        return {**super()._environment, "TRITON_HOME": str(self._cache)}

    def phases(self) -> dict[str, float]:
        """Returns the seconds of each phase of the start, by process and phase."""
        return phases_in(self.get("/metrics").body.decode())


def phases_in(text: str) -> dict[str, float]:
    """Returns the seconds of each phase in the text of `/metrics`, by process and phase."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        f"{sample.labels['process']}: {sample.labels['phase']}": sample.value
        for metric in text_string_to_metric_families(text)
        if metric.name == "katz_start_seconds"
        for sample in metric.samples
    }


class ComfyUI(Served):
    """Runs ComfyUI's main.py in its default settings, with the Python of its virtual environment if
    there is one.
    """

    ready_path = "/object_info"

    def __init__(self, folder: Path, program: Path, model_paths: Path) -> None:
        super().__init__(folder)
        self._program, self._model_paths = program, model_paths

    def _command(self) -> Sequence[str]:
        pythons = (self._program.parent / name / "bin" / "python" for name in (".venv", "venv"))
        python = next((str(one) for one in pythons if one.exists()), sys.executable)
        options = {
            "listen": "127.0.0.1",
            "port": self.port,
            "extra-model-paths-config": self._model_paths,
        }
        for name in ("output", "input", "temp", "user"):
            (self.folder / name).mkdir(exist_ok=True)
            options[f"{name}-directory"] = self.folder / name
        given = (word for name, value in options.items() for word in (f"--{name}", str(value)))
        return (python, str(self._program), *given, "--disable-auto-launch")


def starts(setting: Setting, files: Originals, peer: Path | None) -> dict[str, Start]:
    """Returns how to start each server, by name. Ours is the first."""
    options = ("--extra-model-paths", str(files.model_paths), "--devices", str(setting.device))
    ours: dict[str, Start] = {OURS: lambda folder: Ours(folder, *options, cache=files.cache)}
    if peer is None:
        return ours
    theirs = partial(ComfyUI, program=peer, model_paths=files.model_paths)
    return ours | {COMFYUI: theirs}


def compare(rows: Rows, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Adds a row with the figures of both servers, if both were measured. `figures`: by their name,
    then by server.
    """
    for what, by_server in figures.items():
        if len(by_server) > 1:
            ratio = by_server[OURS] / by_server[COMFYUI]
            rows.add(f"{what}, compared", **by_server, ours_of_theirs=ratio)
