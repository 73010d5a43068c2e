"""The template store returns the stored activations or nothing, within its budgets, whatever fails."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from katz_graph.executor.templates.store import TemplateStore
from katz_graph.executor.worker.opened_template import open_template
from katz_graph.executor.worker.stream import HostStream, Reading
from katz_graph.ir.reuse import TemplateUse
from katz_graph.testing.random_templates import (
    BUDGETS,
    LiveBytes,
    RandomTemplates,
    activations,
    evaluations_of,
    failing_disk,
    folder_bytes,
    kill_at_random,
    name_of,
    was_killed,
)

SOME_BYTES = 10**6  # more than all random templates take


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed processes lose nothing that they have written, so no test waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def filled(store: TemplateStore, number: int) -> bool:
    fill = store.begin_fill(name_of(number), evaluations_of(number), {"number": str(number)})
    if fill is None:
        return False
    with fill:
        for evaluation in range(evaluations_of(number)):
            fill.put(evaluation, activations(number, evaluation))
        return fill.finish()


def right(store: TemplateStore, number: int) -> bool | None:
    """Returns whether all tensors of a template are right; None if the store has no such template."""
    with store.use(name_of(number)) as template:
        if template is None:
            return None
        return all(
            torch.equal(template.read(evaluation, layer), tensor)
            for evaluation in range(evaluations_of(number))
            for layer, tensor in activations(number, evaluation).items()
        )


@pytest.mark.parametrize("budgets", BUDGETS)
def test_random_operations_read_right_tensors_within_the_budgets(
    tmp_path: Path, budgets: tuple[int, int]
) -> None:
    choices = random.Random(1)
    random_templates = RandomTemplates(tmp_path / "templates", *budgets, choices)
    with random_templates.checked_writes():
        random_templates.run(250)
        with failing_disk(choices, 0.05) as failed:
            random_templates.run(250)
    random_templates.reopen()
    random_templates.check_all()
    counts = random_templates.counts
    assert counts.wrong == []
    assert counts.reads > 500 and counts.fills > 60 and counts.drops > 10
    assert failed() > 5


@pytest.mark.parametrize("budgets", BUDGETS)
def test_threads_share_a_store(tmp_path: Path, budgets: tuple[int, int]) -> None:
    first = RandomTemplates(tmp_path / "templates", *budgets, random.Random(0))
    threads = [first.for_thread(random.Random(seed)) for seed in range(3)]

    def run(one: RandomTemplates) -> None:
        for _ in range(5):  # how many operations are reads depends on the threads' turns
            one.run(80)
            if one.counts.reads > 100 / len(threads):
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(threads)) as pool:
            for done in [pool.submit(run, one) for one in threads]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    for one in (*threads, first):
        one.close()
        first.check_all()
        assert one.counts.wrong == []
    assert sum(one.counts.reads for one in threads) > 100


def test_killed_processes_leave_nothing_half_written(tmp_path: Path) -> None:
    """Two processes at a time share the folder, and SIGKILL ends both before random lines."""
    folder, budgets = tmp_path / "templates", BUDGETS[0]
    for turn in range(10):
        children = [kill_at_random(folder, *budgets, 2 * turn + child) for child in range(2)]
        assert [was_killed(child) for child in children] == [True, True]
        heir = RandomTemplates(folder, *budgets, random.Random(turn))
        heir.check_disk()
        heir.check_all()
        assert heir.counts.wrong == []


def test_templates_evicted_from_memory_stay_on_the_disk(tmp_path: Path) -> None:
    sizes = [
        sum(t.nbytes for e in range(evaluations_of(n)) for t in activations(n, e).values())
        for n in (1, 2)
    ]
    store = TemplateStore(tmp_path, max(sizes), SOME_BYTES)
    assert filled(store, 1) and filled(store, 2) and not filled(store, 1)
    for number, level in ((1, "disk"), (1, "memory"), (2, "disk"), (1, "disk")):
        found = store.find(name_of(number))
        assert found is not None and found.level == level
        assert right(store, number)
    use = store.counts
    assert (use.hits, use.misses, use.memory_evictions, use.disk_evictions) == (4, 0, 2, 0)
    assert (use.read_disk_bytes, use.read_memory_bytes) == (2 * sizes[0] + sizes[1], sizes[0])
    with store.use(name_of(1)) as one, store.use(name_of(2)) as two:
        assert one is not None and two is not None  # the second is read from the disk
        assert torch.equal(two.read(0, "blocks.0"), activations(2, 0)["blocks.0"])
    assert store.counts.memory_bytes == sizes[0]
    listed = store.templates()
    assert [one.manifest.details for one in listed] == [{"number": "2"}, {"number": "1"}]


def test_memory_of_evicted_templates_is_free_at_once(tmp_path: Path) -> None:
    live, size = LiveBytes(), sum(one.nbytes for one in activations(3, 0).values())
    store = TemplateStore(tmp_path, size, SOME_BYTES, live)
    filled(store, 0)
    filled(store, 3)
    held = []
    for number in (3, 0):
        with store.use(name_of(number)) as template:
            assert template is not None
            template.read(0, "blocks.0")
            held.append(template)
    assert store.counts.memory_evictions == 1 and live.peak == size


def test_layers_of_one_evaluation_are_read_alone(tmp_path: Path) -> None:
    store = TemplateStore(tmp_path, 0, SOME_BYTES)
    filled(store, 5)
    with store.use(name_of(5)) as template:
        assert template is not None
        form = template.layers(2)["blocks.1"]
        assert torch.equal(template.read(2, "blocks.1"), activations(5, 2)["blocks.1"])
        with pytest.raises(KeyError):
            template.read(2, "blocks.9")
    with pytest.raises(RuntimeError, match="has ended"):
        template.read(2, "blocks.1")
    assert store.counts.read_disk_bytes == form.nbytes


def cut(folder: Path, other: Path) -> None:
    file = folder / "0001.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def swap_evaluations(folder: Path, other: Path) -> None:
    for old, new in ((0, 9), (2, 0), (9, 2)):
        (folder / f"{old:04}.safetensors").rename(folder / f"{new:04}.safetensors")


def take_other(folder: Path, other: Path) -> None:
    (folder / "0000.safetensors").write_bytes((other / "0000.safetensors").read_bytes())


def take_manifest(folder: Path, other: Path) -> None:
    (folder / "template.json").write_bytes((other / "template.json").read_bytes())


def replace_all(folder: Path, other: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes((other / file.name).read_bytes())


def age(folder: Path, other: Path) -> None:
    manifest = folder / "template.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), "version": 0}))


def scramble(folder: Path, other: Path) -> None:
    (folder / "template.json").write_text('{"version": 1, "name": []}')


def reshape(folder: Path, other: Path) -> None:
    """Exchanges the sides of a shape in a header; the file stays as long as it was."""
    file = folder / "0000.safetensors"
    content = file.read_bytes()
    assert b"[2,16,8]" in content
    file.write_bytes(content.replace(b"[2,16,8]", b"[2,8,16]"))


def lose(folder: Path, other: Path) -> None:
    (folder / "0002.safetensors").unlink()


@pytest.mark.parametrize(
    "damage",
    [cut, swap_evaluations, take_other, take_manifest, replace_all, age, scramble, reshape, lose],
)
def test_damaged_templates_are_absent_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path, Path], None]
) -> None:
    """Template 11 has the forms of template 5."""
    filling = TemplateStore(tmp_path, 0, SOME_BYTES)
    assert filled(filling, 5) and filled(filling, 11)
    damage(tmp_path / name_of(5), tmp_path / name_of(11))
    store = TemplateStore(tmp_path, SOME_BYTES, SOME_BYTES)
    with caplog.at_level(logging.WARNING, "katz_graph"):
        assert right(store, 5) is None and right(store, 5) is None
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is damaged and removed" in line and "\n" not in line
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [name_of(11)]
    assert right(store, 11) and filled(store, 5) and right(store, 5)
    damage(tmp_path / name_of(5), tmp_path / name_of(11))
    assert filled(store, 5) and right(store, 5)  # damaged ones do not prevent a fill


class Child:
    """Runs `work` in a forked process, which then waits until it is killed."""

    def __init__(self, work: Callable[[ExitStack], None]) -> None:
        ready, done = os.pipe()
        if (process := os.fork()) == 0:
            with suppress(BaseException), ExitStack() as stack:
                work(stack)
                os.write(done, b"!")
                signal.pause()
            os._exit(1)
        os.close(done)
        self._process = process
        with os.fdopen(ready, "rb") as result:
            self.ready = result.read(1) == b"!"

    def kill(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def test_other_processes_spare_what_a_process_uses_or_fills(tmp_path: Path) -> None:
    store = TemplateStore(tmp_path, 0, SOME_BYTES)
    filled(store, 1)
    filled(store, 2)

    def work(stack: ExitStack) -> None:
        mine = TemplateStore(tmp_path, 0, SOME_BYTES)
        assert stack.enter_context(mine.use(name_of(1))) is not None
        fill = mine.begin_fill(name_of(4), evaluations_of(4))
        assert fill is not None and stack.enter_context(fill).put(0, activations(4, 0))

    child = Child(work)
    try:
        assert child.ready
        narrow = TemplateStore(tmp_path, 0, 1)
        assert [one.manifest.details for one in narrow.templates()] == [{"number": "1"}]
        assert narrow.drop(name_of(1)) == ([], [name_of(1)])
        assert store.begin_fill(name_of(4), evaluations_of(4)) is None
        assert (tmp_path / f"{name_of(4)}.fill" / "0000.safetensors").exists()
    finally:
        child.kill()
    TemplateStore(tmp_path, 0, SOME_BYTES)
    assert not (tmp_path / f"{name_of(4)}.fill").exists()
    assert filled(store, 4) and right(store, 4)
    assert store.drop("") == (sorted([name_of(1), name_of(4)]), [])
    assert folder_bytes(tmp_path) == 0


def test_what_does_not_fit_is_not_cached_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = TemplateStore(tmp_path, SOME_BYTES, 1_000)
    assert not filled(store, 5) and not filled(store, 5)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "bytes, more than the budget of 1,000 bytes for" in line
    caplog.clear()
    store = TemplateStore(tmp_path, 1_000, SOME_BYTES)
    assert filled(store, 5) and right(store, 5) and right(store, 5)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is read from the disk: takes 5,120 bytes, more than the budget of 1,000 bytes" in line
    caplog.clear()
    store = TemplateStore(tmp_path, SOME_BYTES, 9_000)
    assert filled(store, 2)
    with store.use(name_of(2)):
        assert not filled(store, 5)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "templates in use or being filled leave too little of the budget of 9,000 bytes" in line
    assert filled(store, 5) and right(store, 2) is None
    store.drop("")
    started = store.begin_fill(name_of(2), evaluations_of(2))
    assert started is not None
    with started:
        assert started.put(0, activations(2, 0))  # reserves the rest, too
        assert not filled(store, 5)
    assert filled(store, 5)


def test_a_full_disk_abandons_the_fill(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TemplateStore(tmp_path, 0, SOME_BYTES)
    filled(store, 1)
    with failing_disk(random.Random(1), 1.0):
        fill = store.begin_fill(name_of(5), evaluations_of(5))
        assert fill is not None
        assert [fill.put(number, activations(5, number)) for number in range(3)] == [False] * 3
        assert not fill.finish()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("No space left on device")
    assert right(store, 1) and filled(store, 5) and right(store, 5)
    blocked = TemplateStore(tmp_path / "all.lock", 0, SOME_BYTES)
    caplog.clear()
    assert not filled(blocked, 5) and right(blocked, 5) is None
    assert len(caplog.records) == 2


def test_fills_are_complete_and_of_one_writer(tmp_path: Path) -> None:
    store = TemplateStore(tmp_path, SOME_BYTES, SOME_BYTES)
    fill = store.begin_fill(name_of(5), 3)
    assert fill is not None and store.begin_fill(name_of(5), 3) is None
    fill.put(1, activations(5, 1))
    with pytest.raises(ValueError, match="1 is stored"):
        fill.put(1, activations(5, 1))
    with pytest.raises(ValueError, match=r"\[0, 2\] are missing"):
        fill.finish()
    assert store.find(name_of(5)) is None and right(store, 5) is None
    with pytest.raises(RuntimeError), fill:
        raise RuntimeError
    assert not fill.put(0, activations(5, 0)) and store.counts.abandoned == 1
    assert filled(store, 5) and right(store, 5)


class LateStream(HostStream):
    """A device that computes a tensor when the host waits for it."""

    def read(self, tensor: Tensor) -> Reading:
        return lambda: tensor.neg_()


def test_fills_store_what_the_device_has_completed(tmp_path: Path) -> None:
    store, name = TemplateStore(tmp_path, 0, SOME_BYTES), name_of(5)
    use = TemplateUse(name, tuple(range(evaluations_of(5))), fills=True)
    with ThreadPoolExecutor(1) as thread:
        template = open_template(store, LateStream(), thread, use, lambda: None)
        for number in use.numbers:
            outputs = activations(5, number)
            template.write(number, "positive", {layer: -one for layer, one in outputs.items()})
        while not template.completed:
            pass
        template.close()
    found = open_template(store, HostStream(), thread, replace(use, fills=False), lambda: None)
    for number in use.numbers:
        for layer, tensor in activations(5, number).items():
            read = found.read(number, "positive", layer)
            assert read is not None and torch.equal(read, tensor)
    assert found.read(0, "negative", "blocks.0") is None
    found.close()
