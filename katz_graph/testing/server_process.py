"""Starts a server as a user does: a separate process in a separate folder, reached only over HTTP
and the websocket.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from katz_graph.core.errors import RunError

READY = 120.0  # seconds, timeout of a server's start
EXIT_TIMEOUT_S = 60.0  # timeout of a server's exit
POLL = 0.05  # seconds
IN_QUEUE = 32  # jobs submitted before the queue is drained to half


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds an HTTP response. `seconds`: from the request to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def data(self) -> Any:
        return json.loads(self.body) if self.body else None


class Served:
    """Runs `katz serve` in `folder`, with the miniature models. A restart on the same folder
    continues with the same data. `cache`: folder of the server's measurements, by default inside
    `folder`.
    """

    ready_path = "/readyz"  # answers 200 once the server takes jobs

    def __init__(self, folder: Path, *options: str, cache: Path | None = None) -> None:
        self.folder = folder
        self._cache = cache or folder / "cache"
        self.port = _free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self, wait: bool = True) -> Self:
        """Starts the server. Raises RunError with its last output if it does not become ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self._command()
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                cwd=self.folder,
            )
        if wait:
            try:
                self.wait_until_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def _command(self) -> Sequence[str]:
        katz = (sys.executable, "-m", "katz_graph.cli.main", "serve", "--port", str(self.port))
        places = (f"--{name}={self.folder / name}" for name in ("data", "output", "input"))
        return (*katz, *self._options, *places)

    @property
    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "KATZ_CACHE": str(self._cache)}

    def run_katz(self, *arguments: str) -> str:
        """Runs `katz` in another process, with the server's measurements; returns its output.
        Raises CalledProcessError if it fails.
        """
        command = [sys.executable, "-m", "katz_graph.cli.main", *arguments]
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True
        ).stdout

    @property
    def pid(self) -> int:
        assert self._process is not None  # it was started
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def wait_until_ready(self) -> float:
        """Waits until the server is ready; returns the seconds waited."""
        assert self._process is not None  # it was started
        started = time.perf_counter()
        while time.perf_counter() - started < READY:
            if self._process.poll() is not None:
                break
            try:
                if self.get(self.ready_path).status == 200:
                    return time.perf_counter() - started
            except OSError:
                pass
            time.sleep(POLL)
        raise RunError(f"the server was not ready; last output: {self.log[-600:]}")

    def kill(self) -> None:
        """Sends SIGKILL, and waits for the end of the process."""
        assert self._process is not None  # it was started
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Stops the server; kills it if it does not exit in time."""
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()

    def stop(self) -> tuple[int, float]:
        """Sends SIGTERM; returns the exit status and the seconds until the exit."""
        assert self._process is not None  # it was started
        started = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(EXIT_TIMEOUT_S), time.perf_counter() - started

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self._ask("GET", path, None, headers or {})

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        return self._ask(
            "POST", path, data, {"Content-Type": "application/json", **(headers or {})}
        )

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            started = time.perf_counter()
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            data = answer.read()
            return Answer(answer.status, dict(answer.headers), data, time.perf_counter() - started)
        except http.client.HTTPException as error:
            raise OSError(str(error) or type(error).__name__) from None
        finally:
            connection.close()

    def submit(self, prompt: Mapping[str, Any], **more: Any) -> Answer:
        return self.post("/prompt", {"prompt": prompt, **more})

    def finished(self) -> dict[str, Any]:
        """Returns the history, by job id."""
        found: dict[str, Any] = self.get("/history").data
        return found

    def waiting(self) -> int:
        """Returns the number of jobs that have not ended."""
        left: int = self.get("/prompt").data["exec_info"]["queue_remaining"]
        return left

    def drain(self, left: int = 0) -> None:
        """Waits until at most `left` jobs remain in the queue or running."""
        while self.waiting() > left:
            time.sleep(POLL)

    def wait_for(self, ids: Sequence[str], seconds: float) -> dict[str, Any]:
        """Waits until all jobs are in the history, and returns it. Raises RunError on timeout."""
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            history = self.finished()
            if all(identifier in history for identifier in ids):
                return history
            time.sleep(0.1)
        raise RunError(
            f"{sum(identifier not in history for identifier in ids)} of {len(ids)} jobs did not "
            f"end within {seconds} s"
        )

    def pictures(self, entry: Mapping[str, Any]) -> list[bytes]:
        """Returns the pictures of a history entry."""
        images = [
            image for output in entry["outputs"].values() for image in output.get("images", ())
        ]
        return [
            self.get(
                f"/view?filename={one['filename']}&subfolder={one['subfolder']}&type={one['type']}"
            ).body
            for one in images
        ]

    def fetched(self) -> list[Path]:
        """Returns the files that the server has fetched, completely or in part."""
        return [path for path in (self._cache / "fetched").rglob("*") if path.is_file()]

    def family(self) -> list[int]:
        """Returns the process ids of the server and all its descendants."""
        parents = {pid: _parent(pid) for pid in _processes()}
        found = [self.pid]
        for pid in found:
            found += [
                child for child, parent in parents.items() if parent == pid and child not in found
            ]
        return found


@contextmanager
def serving(folder: Path, *options: str, cache: Path | None = None) -> Iterator[Served]:
    """Yields a server that is ready; kills it at the end if it still runs."""
    with Served(folder, *options, cache=cache) as server:
        yield server


def resident(pids: Sequence[int]) -> int:
    """Sums the bytes of anonymous and shared memory (PSS) of processes. Excludes mapped files,
    because their share depends on other processes that map them.
    """
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(
            int(line.split()[1]) * 1024
            for line in lines
            if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
        )
    return total


def descriptors(pids: Sequence[int]) -> list[str]:
    """Returns the targets of the processes' open file descriptors."""
    found = []
    for pid in pids:
        try:
            found += [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
    return found


def shared_memory(pids: Sequence[int]) -> int:
    """Counts the processes' memfd descriptors and the entries of `/dev/shm`."""
    return sum("memfd:" in target for target in descriptors(pids)) + sum(
        1 for _ in Path("/dev/shm").iterdir()
    )


def carry_out(server: Served, prompts: Iterable[Mapping[str, Any]]) -> None:
    """Submits jobs as fast as the queue accepts them, and waits for all; asserts that the last one
    succeeded.
    """
    ids: list[str] = []
    for prompt in prompts:
        while (answer := server.submit(prompt)).status == 429:
            time.sleep(POLL)
        ids.append(answer.data["prompt_id"])
        if len(ids) % IN_QUEUE == 0:
            server.drain(IN_QUEUE // 2)
    server.drain()
    last = server.get(f"/history/{ids[-1]}").data
    assert last[ids[-1]]["status"]["status_str"] == "success", last


def processor_seconds(pid: int) -> float:
    """Sums the CPU seconds of a process's threads, in nanosecond resolution. `stat` counts only
    whole ticks, and charges a whole tick to a thread that wakes with the timer.
    """
    total = 0
    for entry in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that ended
            total += int(Path(entry, "schedstat").read_text().split()[0])
    return total / 1e9


def total_processor_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process, with its ended threads and children, in whole ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def alive(pids: Sequence[int]) -> list[int]:
    """Returns the processes that have not ended."""
    return [pid for pid in pids if _state(pid) not in ("", "Z", "X")]


def painting(
    seed: int, steps: int, side: int = 64, prefix: str = "bench", guidance: float = 4.0
) -> dict[str, Any]:
    """Builds a text-to-picture graph with the miniature models."""
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "katz-mini"}},
        "2": {
            "class_type": "CLIPTextEncode",
            "inputs": {"clip": ["1", 1], "text": "a large red star at the top left on grass"},
        },
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": ""}},
        "4": {
            "class_type": "EmptyLatentImage",
            "inputs": {"width": side, "height": side, "batch_size": 1},
        },
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["2", 0],
                "negative": ["3", 0],
                "latent_image": ["4", 0],
                "seed": seed,
                "steps": steps,
                "cfg": guidance,
                "sampler_name": "euler",
                "scheduler": "normal",
                "denoise": 1.0,
            },
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": prefix}},
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0
