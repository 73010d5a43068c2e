"""LoRA files are read once, off the device's thread, and cached within a budget."""

import threading
import time

import pytest
from tiny_models import lora

from katz_graph.adapters.lora import read_lora
from katz_graph.core.errors import InputError
from katz_graph.executor.weights.adapters import AdapterStore


def files(count):
    return [lora("sd1", seed=seed).file for seed in range(count)]


class Slow:
    """Reads once `go` is set."""

    def __init__(self):
        self.go, self.reads, self.given_up = threading.Event(), [], []

    def __call__(self, file, unwanted):
        self.reads.append(file)
        while not self.go.wait(0.01):
            if unwanted():
                self.given_up.append(file)
                raise InputError("nobody wants it")
        return read_lora(file)


def eventually(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_file_is_read_once_for_all_readers_and_several_at_a_time():
    slow, (one, other) = Slow(), files(2)
    store, calls = AdapterStore(read=slow), []
    first = store.want([one, other], lambda: calls.append(1))
    second = store.want([one])
    assert not first.have([one]) and not second.have([one])
    eventually(lambda: len(slow.reads) == 2)  # they are read concurrently
    slow.go.set()
    assert first.get(one) is second.get(one)
    first.get(other)
    eventually(lambda: len(calls) == 2)
    assert sorted(slow.reads, key=str) == sorted([one, other], key=str)
    first.release()
    second.release()
    assert store.get(one) is store.get(one)
    assert len(slow.reads) == 2
    assert (store.hits, store.misses) == (1, 2)


def test_abandoned_reads_stop_and_can_start_again():
    slow, (one,) = Slow(), files(1)
    store = AdapterStore(read=slow)
    first, second = store.want([one]), store.want([one])
    first.release()
    first.release()
    time.sleep(0.05)
    assert not slow.given_up
    second.release()
    eventually(lambda: slow.given_up == [one])
    slow.go.set()
    assert store.get(one).parts
    assert len(slow.reads) == 2


def test_an_unreadable_file_fails_only_its_readers(tmp_path):
    good, unreadable = files(2)
    broken = True

    def read(file, unwanted):
        if file == unreadable and broken:
            raise InputError("gone.safetensors: cannot be read")
        return read_lora(file)

    store = AdapterStore(read=read)
    wanted = store.want([good, unreadable])
    eventually(lambda: wanted.have([good, unreadable]))
    with pytest.raises(InputError, match="gone"):
        wanted.check()
    assert wanted.get(good).parts
    wanted.release()
    broken = False
    assert store.get(unreadable).parts  # its failure was not cached


def test_cached_adapters_stay_within_the_budget_except_those_in_use():
    chosen = files(6)
    size = AdapterStore().get(chosen[0]).bytes
    store = AdapterStore(budget=2.5 * size)
    wanted = store.want(chosen)
    for file in chosen:
        wanted.get(file)
    eventually(lambda: store.use().resident_bytes == 6 * size)
    wanted.release()
    assert store.use().resident_bytes == 2 * size
    assert store.use().evictions == 4
    before = store.misses
    store.get(chosen[-1])  # used last, so cached
    assert store.misses == before
    store.get(chosen[0])
    assert store.misses == before + 1
    assert store.use().resident_bytes == 2 * size
