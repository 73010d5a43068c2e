"""Fills, reads and drops random templates, with errors of the disk and killed processes, for tests
of the template store and `katz bench edit --part store`.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from torch import Tensor

from katz_graph.executor.templates import manifest as files
from katz_graph.executor.templates.store import StoredTemplate, Template, TemplateStore
from katz_graph.executor.transport.registration import Mapping as Bytes

# of memory and disk: with room for two or three of the templates, and without memory
BUDGETS = (9_000, 12_000), (0, 12_000)
NAMES = 6  # templates that processes fill and use
DTYPES = torch.float32, torch.float16, torch.bfloat16
MAX_USED = 3  # templates that one process uses at the same time
MAX_LINES = 4000  # lines of the store that a process executes before it is killed
KILLED_IN = "/executor/templates/", "/files/locks.py", "/shutil.py"


def name_of(number: int) -> str:
    return f"{sha256(str(number).encode()).hexdigest()[:24]}-{number:024x}"


def evaluations_of(number: int) -> int:
    return 1 + number % 3


@cache
def activations(number: int, evaluation: int) -> dict[str, Tensor]:
    """Returns the outputs of a template's layers, which differ in every template and evaluation."""
    generator = torch.Generator().manual_seed(1000 * number + evaluation)
    shape = 1 + number % 2, 16 >> evaluation % 2, 8
    return {
        f"blocks.{layer}": torch.randn(shape, generator=generator).to(DTYPES[(number + layer) % 3])
        for layer in range(2 + number % 2)
    }


def folder_bytes(folder: Path) -> int:
    """Returns the bytes of all files of a store that no other thread or process changes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass
class LiveBytes:
    """Counts the bytes of mapped host memory; a `Register` of a store."""

    bytes: int = 0
    peak: int = 0

    def __call__(self, mapping: Bytes) -> None:
        size = mapping.nbytes
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

        def unmapped() -> None:
            self.bytes -= size

        weakref.finalize(mapping, unmapped)


@dataclass
class Counts:
    """Counts operations, and lists violations in words."""

    fills: int = 0
    reads: int = 0
    misses: int = 0
    drops: int = 0
    evictions: int = 0
    wrong: list[str] = field(default_factory=list)


class RandomTemplates:
    """Performs random operations on a store, and records violations in `counts`.

    memory_bytes, disk_bytes: budgets, which are checked at every write.
    """

    def __init__(
        self, folder: Path, memory_bytes: int, disk_bytes: int, choices: random.Random
    ) -> None:
        self.folder, self.budgets, self._choices = folder, (memory_bytes, disk_bytes), choices
        self.counts, self._live = Counts(), LiveBytes()
        self._used: list[tuple[int, Template, ExitStack]] = []
        self._may_reopen = True
        self.store = self._opened()

    def for_thread(self, choices: random.Random) -> RandomTemplates:
        """Returns operations on the same store, for another thread. The store is not reopened."""
        self._may_reopen = False
        other = copy(self)
        other._choices, other.counts, other._used = choices, Counts(), []
        return other

    def _opened(self) -> TemplateStore:
        return TemplateStore(self.folder, *self.budgets, self._live)

    def reopen(self) -> None:
        """Replaces the store by a new one, as a new process does."""
        if not self._may_reopen:
            return
        self.close()
        use = self.store.counts
        self.counts.evictions += use.memory_evictions + use.disk_evictions
        self.store = self._opened()

    def close(self) -> None:
        while self._used:
            self._used.pop()[-1].close()

    def run(self, number: int) -> None:
        """Performs operations with checks of both budgets."""
        for _ in range(number):
            self._choices.choices(
                (self._fill, self._use, self._end_use, self._drop, self.reopen),
                (6, 6, 5, 1, 0.3),
            )[0]()
            self._check()

    def _check(self) -> None:
        """Reads from every template in use, and compares the bytes with the budgets."""
        for number, template, _ in self._used:
            self._read(number, template)
        memory = self.budgets[0]
        if self._live.peak > memory:
            self.counts.wrong.append(f"{self._live.peak} bytes in memory, the budget is {memory}")

    def check_disk(self) -> None:
        """Compares the bytes of the folder with the budget. No other process may change it."""
        if self.folder.is_dir() and (size := folder_bytes(self.folder)) > self.budgets[1]:
            self.counts.wrong.append(f"{size} bytes on the disk, the budget is {self.budgets[1]}")

    def _fill(self) -> None:
        number = self._choices.randrange(NAMES)
        evaluations = evaluations_of(number)
        fill = self.store.begin_fill(name_of(number), evaluations, {"number": str(number)})
        if fill is None:
            return
        self.counts.fills += 1
        with fill:
            for evaluation in self._choices.sample(range(evaluations), evaluations):
                if self._choices.random() < 0.05:
                    return
                if not fill.put(evaluation, activations(number, evaluation)):
                    return
            fill.finish()

    def _use(self) -> None:
        if len(self._used) == MAX_USED:
            return
        number, stack = self._choices.randrange(NAMES), ExitStack()
        template = stack.enter_context(self.store.use(name_of(number)))
        if template is None:
            self.counts.misses += 1
            return
        self._used.append((number, template, stack))

    def _end_use(self) -> None:
        if self._used:
            self._used.pop(self._choices.randrange(len(self._used)))[-1].close()

    def _drop(self) -> None:
        number = self._choices.randrange(NAMES)
        with suppress(OSError):
            dropped, _ = self.store.drop(name_of(number))
            self.counts.drops += 1
            if dropped and any(used == number for used, _, _ in self._used):
                self.counts.wrong.append(f"template {number} was dropped while in use")

    def _read(self, number: int, template: Template) -> None:
        evaluation = self._choices.randrange(evaluations_of(number))
        for layer, right in activations(number, evaluation).items():
            self.counts.reads += 1
            try:
                found = template.read(evaluation, layer)
            except Exception as error:  # every error is a violation
                self.counts.wrong.append(f"template {number}: {error!r}")
                return
            if found.dtype != right.dtype or not torch.equal(found, right):
                self.counts.wrong.append(f"template {number} has a wrong {evaluation}/{layer}")

    def check_all(self) -> None:
        """Reads every stored template, and looks for files that no template has."""
        numbers = {name_of(number): number for number in range(NAMES)}
        expected = {self.folder / "all.lock"}
        for stored in self.store.templates():
            name = stored.manifest.name
            with self.store.use(name) as template:
                if template is None:
                    self.counts.wrong.append(f"template {numbers[name]} is listed but damaged")
                    continue
                for evaluation in range(len(stored.manifest.evaluations)):
                    for layer, right in activations(numbers[name], evaluation).items():
                        if not torch.equal(template.read(evaluation, layer), right):
                            self.counts.wrong.append(f"{numbers[name]} has a wrong {layer}")
            expected |= _files_of(self.folder, stored)
        left = {path for path in self.folder.rglob("*") if path.is_file()} - expected
        if left:
            self.counts.wrong.append(f"left: {sorted(map(str, left))}")

    @contextmanager
    def checked_writes(self) -> Iterator[None]:
        """Compares the bytes of the folder with the budget after each write."""
        write = safetensors.torch.save_file

        def written(tensors: Any, path: Path, *rest: Any) -> None:
            write(tensors, path, *rest)
            self.check_disk()

        with patch.object(safetensors.torch, "save_file", written):
            yield


def _files_of(folder: Path, stored: StoredTemplate) -> set[Path]:
    own = folder / stored.manifest.name
    names = map(files.file_name, range(len(stored.manifest.evaluations)))
    return {own / files.MANIFEST, *(own / name for name in names)}


@contextmanager
def failing_disk(choices: random.Random, share: float) -> Iterator[Callable[[], int]]:
    """Makes a share of the writes, renames and removals fail, some of them after a part is done.
    Yields a function that returns how many have failed.
    """
    failed, save = 0, safetensors.torch.save_file

    def failing(operation: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*given: Any, **named: Any) -> Any:
            nonlocal failed
            if choices.random() >= share:
                return operation(*given, **named)
            failed += 1
            if operation is shutil.rmtree and choices.random() < 0.5:
                for entry in list(Path(given[0]).iterdir())[:1]:
                    entry.unlink()
            if operation is save and choices.random() < 0.5:
                operation(*given, **named)
                os.truncate(given[1], choices.randrange(Path(given[1]).stat().st_size))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return attempt

    with ExitStack() as patches:
        for owner, name in (
            (safetensors.torch, "save_file"),
            (os, "fsync"),
            (Path, "rename"),
            (Path, "write_text"),
            (Path, "unlink"),
            (shutil, "rmtree"),
        ):
            patches.enter_context(patch.object(owner, name, failing(getattr(owner, name))))
        yield lambda: failed


def kill_at_random(folder: Path, memory_bytes: int, disk_bytes: int, seed: int) -> int:
    """Forks a process that operates on a store until SIGKILL ends it before a random line of the
    store's code. Returns its id.
    """
    if (child := os.fork()) != 0:
        return child
    try:
        choices = random.Random(seed)
        left = choices.randrange(1, MAX_LINES)

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if not any(part in frame.f_code.co_filename for part in KILLED_IN):
                return None
            if event == "line":
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        mine = RandomTemplates(folder, memory_bytes, disk_bytes, choices)
        while not mine.counts.wrong:
            mine.run(1)
        print(*mine.counts.wrong, sep="\n", file=sys.stderr, flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # only violations and errors end here


def was_killed(child: int) -> bool:
    """Waits for a process of `kill_at_random`; returns false if it found a violation."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
