"""Measurements survive several processes, a damaged or locked file, and a full disk."""

from __future__ import annotations

import logging
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from katz_graph.executor.measure.store import FILE, Contention, CostStore, Rates
from katz_graph.ir.device import NetworkLink

RATES = Rates(2e12, 5e10, 1e-5)
UNET, TEXT = ("unet_encoder:1", 1), ("text_encoder:2", 1)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_stored_results_are_available_to_the_next_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CostStore(tmp_path / "cache")
    assert (
        store.rates("cpu") is None
        and store.link("a", "b", "pair") is None
        and store.contention("host", "cpu", 2) is None
    )
    store.keep_rates("cpu", RATES)
    store.keep_contention("host", "cpu", 2, Contention(1.1, 1.9))
    store.keep_link("a", "b", "pair", NetworkLink(1e9, 0.0))
    store.record("cpu", {UNET: [0.5, 0.7, 0.6]})
    store.keep_lora_level("base", "style", 1.0, 0.5, 14.6, 7.8)
    later = CostStore(tmp_path / "cache")
    assert later.rates("cpu") == RATES
    assert later.lora_level("base", "style", 1.0, 0.5, 14.6) == 7.8
    assert later.lora_level("base", "other", 1.0, 0.5, 14.6) is None
    assert (
        later.contention("host", "cpu", 2) == Contention(1.1, 1.9)
        and later.contention("host", "cpu", 4) is None
    )
    assert (
        later.link("a", "b", "pair") == NetworkLink(1e9, 0.0)
        and later.link("b", "a", "pair") is None
    )
    assert later.stages("cpu") == {(*UNET, False): 0.6}
    assert not warnings_in(caplog)


def test_without_a_folder_it_lasts_as_long_as_the_store() -> None:
    store = CostStore(None)
    store.keep_rates("cpu", RATES)
    assert store.rates("cpu") == RATES
    assert CostStore(None).rates("cpu") is None


def test_the_median_is_stored() -> None:
    store = CostStore(None)
    assert store.record("cpu", {UNET: [1.0, 1.2, 8.0], TEXT: []}) == {(*UNET, False): 1.2}
    assert store.stages("cpu") == {(*UNET, False): 1.2}


def test_times_that_are_none_do_not_count() -> None:
    store = CostStore(None)
    store.record("cpu", {UNET: [0.0, float("nan"), float("inf"), 2.0]})
    assert store.stages("cpu") == {(*UNET, False): 2.0}


def test_a_later_run_weighs_in_by_its_samples_and_a_profile_replaces() -> None:
    store = CostStore(None)
    store.record("cpu", {UNET: [*[1.0] * 10]})
    store.record("cpu", {UNET: [*[4.0] * 5]})
    assert store.stages("cpu")[*UNET, False] == pytest.approx(2.0)  # (10 · 1 + 5 · 4) / 15
    store.record("cpu", {UNET: [*[2.0] * 1000]})
    store.record("cpu", {UNET: [*[4.0] * 20]})
    # a thousand samples count as 20
    assert store.stages("cpu")[*UNET, False] == pytest.approx(3.0, rel=0.01)
    store.record("cpu", {UNET: [7.0]}, replace=True)
    assert store.stages("cpu")[*UNET, False] == 7.0


def test_a_lora_may_be_missing_as_long_as_it_was_at_least_as_strong() -> None:
    store = CostStore(None)
    store.keep_lora_level("base", "style", 1.0, 1.0, 14.6, 3.0)
    store.keep_lora_level("base", "style", 2.0, 1.0, 14.6, 8.0)
    asked = [(0.5, 0.0, 14.6), (1.0, 1.0, 3.5), (1.5, 1.0, 14.6), (2.5, 0.0, 14.6)]
    found = [store.lora_level("base", "style", *one) for one in asked]
    assert found == [3.0, 3.0, 8.0, None]
    assert store.lora_level("base", "style", 1.0, 1.5, 14.6) is None
    assert store.lora_level("base", "style", 1.0, 1.0, 80.0) is None
    store.keep_lora_level("base", "style", 1.0, 1.0, 14.6, 5.0)  # measured again
    assert store.lora_level("base", "style", 1.0, 1.0, 14.6) == 5.0


def test_a_device_uses_measurements_with_as_many_neighbours() -> None:
    store = CostStore(None)
    store.keep_rates("cpu", RATES)
    store.keep_contention("host", "cpu", 2, Contention(1.1, 1.9))
    store.record("cpu", {UNET: [1.0]})
    store.record("cpu", {UNET: [1.3]}, together=2)
    store.record("cpu", {UNET: [2.6]}, together=4)
    store.record("gpu", {UNET: [0.1]})
    device = store.device("cpu:1", "cpu", 4, host="host", together=2, memory_bytes=1e9)
    assert device.name == "cpu:1" and device.host == "host" and device.memory_bytes == 1e9
    assert (device.flops_per_second, device.bytes_per_second, device.seconds_per_kernel) == (
        2e12,
        5e10,
        1e-5,
    )
    assert (device.contention, device.memory_contention) == (1.1, 1.9)
    assert device.measured == {(*UNET, False): 1.0, (*UNET, True): 1.3}
    assert store.device("cpu", "cpu", 4).measured == {(*UNET, False): 1.0}
    with pytest.raises(KeyError, match="gpu"):
        store.device("cuda:0", "gpu", 2)


def noise(file: Path) -> None:
    file.write_bytes(b"what was here before" * 1000)


def cut_short(file: Path) -> None:
    CostStore(file.parent).record(
        "cpu", {(f"stage {number}", 1): [0, 1.0] for number in range(2000)}
    )
    file.write_bytes(file.read_bytes()[:20000])


def middle_overwritten(file: Path) -> None:
    CostStore(file.parent).record(
        "cpu", {(f"stage {number}", 1): [0, 1.0] for number in range(2000)}
    )
    whole = bytearray(file.read_bytes())
    whole[8192:40960] = b"\xff" * 32768
    file.write_bytes(whole)


def other_tables(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(
        "create table rates (something); create table stages (other, columns); insert into "
        "rates values (1)"
    )
    connection.close()


@pytest.mark.parametrize("damage", [noise, cut_short, middle_overwritten, other_tables])
def test_a_damaged_file_is_replaced_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path / FILE)
    store = CostStore(tmp_path)
    for number in range(3):
        store.keep_rates(f"cpu {number}", RATES)
        store.record("cpu", {UNET: [1.0]})
    assert store.rates("cpu 2") == RATES
    (warning,) = warnings_in(caplog)
    assert FILE in warning and "\n" not in warning
    caplog.clear()
    later = CostStore(tmp_path)
    assert (
        later.rates("cpu 0") == later.rates("cpu 2") == RATES
        and later.stages("cpu")[*UNET, False] == 1.0
    )
    assert not warnings_in(caplog)


def test_a_file_of_an_earlier_version_keeps_what_still_holds_and_says_once_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    CostStore(tmp_path).keep_lora_level("base", "style", 1.0, 0.5, 14.6, 7.8)
    with closing(sqlite3.connect(tmp_path / FILE)) as file, file:
        file.execute("drop table calls")
        file.execute("create table stages (device, key, members, together, seconds, samples)")
        file.execute("insert into stages values ('cpu', 'unet_encoder:1', 1, 1, 1.0, 3)")
    for _ in range(2):
        store = CostStore(tmp_path)
        assert store.lora_level("base", "style", 1.0, 0.5, 14.6) == 7.8
        assert store.stages("cpu") == {}
    (warning,) = warnings_in(caplog)
    assert "earlier version" in warning and "calls" in warning and "\n" not in warning
    store.record("cpu", {UNET: [0.6]})
    assert CostStore(tmp_path).stages("cpu") == {(*UNET, False): 0.6}


def test_impossible_measurements_are_rejected(tmp_path: Path) -> None:
    CostStore(tmp_path).keep_rates("cpu", RATES)
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("pragma ignore_check_constraints = on")
        file.execute("update rates set flops = 0")
        file.execute("insert into links values ('a', 'b', 'pair', 'fast', 0, 0)")
    file.close()
    store = CostStore(tmp_path)
    assert store.rates("cpu") is None and store.link("a", "b", "pair") is None


@pytest.mark.parametrize("where", ["a folder", "below a file"])
def test_where_no_file_can_be_the_process_goes_on_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    if where == "a folder":
        (tmp_path / FILE).mkdir()
        store = CostStore(tmp_path)
    else:
        (tmp_path / "cache").write_text("")
        store = CostStore(tmp_path / "cache")
    for _ in range(3):
        store.keep_rates("cpu", RATES)
    assert store.rates("cpu") == RATES
    assert len(warnings_in(caplog)) == 1


def test_a_locked_file_costs_some_patience(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    CostStore(tmp_path).keep_rates("cpu", RATES)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("begin exclusive")
    started = time.monotonic()
    store = CostStore(tmp_path)
    store.keep_rates("gpu", RATES)
    assert time.monotonic() - started < 5
    assert store.rates("gpu") == RATES
    assert len(warnings_in(caplog)) == 1
    other.execute("rollback")
    other.close()
    assert CostStore(tmp_path).rates("cpu") == RATES  # earlier rates are not lost


@pytest.mark.defect(45)
def test_a_locked_file_blocks_no_writer_and_gets_all_rows_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("katz_graph.executor.measure.store.PATIENCE", 30.0)
    store = CostStore(tmp_path)
    store.keep_rates("cpu", RATES)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("begin immediate")
        started = time.monotonic()
        for seconds in range(1, 21):
            store.record("cpu", {UNET: [float(seconds)]}, replace=True)
        assert time.monotonic() - started < 1
        assert store.stages("cpu")[*UNET, False] == 20.0
        other.execute("rollback")
    for thread in threading.enumerate():
        if thread.name == "katz-costs":
            thread.join()
    assert CostStore(tmp_path).stages("cpu")[*UNET, False] == 20.0  # written in order
    assert not warnings_in(caplog)


@pytest.mark.defect(45)
def test_a_file_that_stays_locked_costs_one_warning_and_no_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("katz_graph.executor.measure.store.PATIENCE", 0.05)
    store = CostStore(tmp_path)
    store.keep_rates("cpu", RATES)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("begin immediate")
        for number in range(20):
            store.keep_rates(f"gpu {number}", RATES)
        deadline = time.monotonic() + 10
        while not warnings_in(caplog) and time.monotonic() < deadline:
            time.sleep(0.01)
        other.execute("rollback")
    assert len(warnings_in(caplog)) == 1 and store.rates("gpu 19") == RATES
    for thread in threading.enumerate():
        if thread.name == "katz-costs":
            thread.join()
    store.keep_rates("later", RATES)
    assert CostStore(tmp_path).rates("later") == RATES


def script(body: str, folder: Path) -> list[str]:
    """Returns a command that waits long for other writers, because its time is not tested."""
    imports = (
        "import sys; from pathlib import Path; from katz_graph.executor.measure import store as "
        "module; from katz_graph.executor.measure.store import CostStore, Rates"
    )
    head = f"{imports}; module.PATIENCE = 30; store = CostStore(Path(sys.argv[1]))"
    return [sys.executable, "-c", f"{head}\n{body}", str(folder)]


def test_a_full_disk_costs_a_warning(tmp_path: Path) -> None:
    body = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        "for _ in range(3): store.keep_rates('cpu', Rates(1.0, 2.0, 3.0))\n"
        "assert store.rates('cpu') == Rates(1.0, 2.0, 3.0)"
    )
    done = subprocess.run(script(body, tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 1 and FILE in done.stderr, (
        done.stderr
    )


def test_several_processes_keep_at_once(tmp_path: Path) -> None:
    body = (
        "import os\n"
        "for number in range(25):\n"
        "    store.record('cpu', {(f'{os.getpid()} {number}', 1): [0, 1.0, 1.0]})\n"
        "    store.record('cpu', {('common', 1): [0, 1.0]})"
    )
    running = [
        subprocess.Popen(script(body, tmp_path), stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in running:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0 and not err, err
    assert len(CostStore(tmp_path).stages("cpu")) == 4 * 25 + 1


def test_a_file_that_another_process_has_just_made_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(folder: Path) -> None:
        CostStore(folder).keep_rates("cpu", RATES)

    for number in range(60):
        folder = tmp_path / str(number)
        writer = threading.Thread(target=write, args=(folder,))
        writer.start()
        while writer.is_alive():
            assert CostStore(folder).rates("cpu") in (None, RATES)
        for thread in threading.enumerate():
            if thread.name == "katz-costs":  # writes rows that it could not write during the read
                thread.join()
        assert CostStore(folder).rates("cpu") == RATES
    assert not warnings_in(caplog)


def test_a_process_that_is_killed_while_it_writes_spoils_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = (
        "import itertools\nfor number in itertools.count(): store.record('cpu', {(f'stage "
        "{number}', 1): [0, 1.0]})"
    )
    for _ in range(3):
        process = subprocess.Popen(script(body, tmp_path))
        deadline = time.monotonic() + 30
        while not (tmp_path / FILE).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(CostStore(tmp_path).stages("cpu")) > 10
    assert not warnings_in(caplog)


def test_half_written_rows_of_a_killed_process_are_undone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, left = tmp_path / "whole", tmp_path / "left"
    whole.mkdir()
    CostStore(whole).record("cpu", {("kept", 1): [0, 1.0, 1.0]})
    with closing(sqlite3.connect(whole / FILE)) as file:
        file.execute("pragma cache_size = 1")  # so that pages reach the file before the end
        rows = [("cpu", f"stage {number}", 1, 1, 1.0, 1) for number in range(5000)]
        file.executemany("insert into calls values (?, ?, ?, ?, ?, ?)", rows)
        shutil.copytree(whole, left)  # files as a kill at this time leaves them
    assert len(list(left.iterdir())) == 2  # the database and its rollback journal
    assert list(CostStore(left).stages("cpu")) == list(CostStore(whole).stages("cpu")) != []
    assert not warnings_in(caplog)
