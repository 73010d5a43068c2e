"""Weights are read into the page cache before they are loaded, while texts are encoded."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import pipeline_folder

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import FileIdentity
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.messages import Begin
from katz_graph.executor.weights import prefetch
from katz_graph.executor.weights.prefetch import WINDOW_BYTES, Prefetcher
from katz_graph.executor.worker import host
from katz_graph.executor.worker.first_calls import first_calls
from katz_graph.executor.worker.host import Host
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.loadable import Loadable
from katz_graph.models.loading.residents import Residents
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region


def hollow_file(path: Path, shapes: Mapping[str, Sequence[int]]) -> Path:
    """Writes a file with tensors of bytes, which are a hole, so they take no space on the disk."""
    entries: dict[str, Any] = {"__metadata__": {}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape)
        entries[name] = {"dtype": "U8", "shape": [*shape], "data_offsets": [begin, end]}
    head = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end)
    return path


def model(path: Path, prefix: str, size: int = 0) -> Loadable:
    files = (FileIdentity(str(path), 0, 0, ""),)
    return Loadable((path, prefix), prefix, lambda: size, lambda: None, files, prefix)


class Reading:
    """A prefetcher of files that are not cached. Records the bytes that it reads instead of reading
    them. `after`: called after each window.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        free: float = 1e12,
        on_host: bool = False,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self.loaded: set[object] = set()
        self._read: list[range] = []
        self.prefetcher = Prefetcher(self.loaded.__contains__, on_host, lambda: free)

        def read(descriptor: int, window: range) -> None:
            self._read.append(window)
            after()

        monkeypatch.setattr(prefetch, "_is_cached", lambda descriptor, window: False)
        monkeypatch.setattr(prefetch, "_read_window", read)

    def windows(self) -> list[int]:
        """Waits until nothing is left to read; returns the numbers of the file's windows read."""
        finish()
        read, self._read = self._read, []
        assert all(len(window) == WINDOW_BYTES for window in read)
        return [window.start // WINDOW_BYTES for window in read]


def finish() -> None:
    for thread in threading.enumerate():
        if thread.name == "katz-prefetch":
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the tensors a.weight, other and b.weight, of 2, 1 and 1 windows."""
    sizes = {"a.weight": [2 * WINDOW_BYTES], "other": [WINDOW_BYTES], "b.weight": [WINDOW_BYTES]}
    return hollow_file(tmp_path / "model.safetensors", sizes)


def is_cached(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], path.stat().st_size - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
    return True


def test_a_file_is_cached_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.rand(WINDOW_BYTES // 8)}, path)
    with path.open("rb+") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(path):
        pytest.skip("the file system does not tell which pages are cached, or drops none")
    prefetcher = Prefetcher(lambda key: False, on_host=False)
    prefetcher.want([model(path, "")], 1.0)
    finish()
    assert is_cached(path)
    monkeypatch.setattr(prefetch, "_read_window", lambda *_: pytest.fail("read again"))
    prefetcher.want([model(path, "")], 1.0)
    finish()


def test_only_the_bytes_of_missing_models_are_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(monkeypatch)
    reading.prefetcher.want([model(file, "b."), model(file, "a.")], 1.0)
    assert reading.windows() == [3, 0, 1]
    reading.loaded.add((file, "a."))
    reading.prefetcher.want([model(file, "a."), model(file, "b.")], 1.0)
    assert reading.windows() == [3]


@pytest.mark.parametrize(
    ("free", "on_host", "size", "read"),
    [
        (4 * WINDOW_BYTES, False, 9 * WINDOW_BYTES, [0, 1, 3]),
        (4 * WINDOW_BYTES - 2, False, 0, [3]),
        (7 * WINDOW_BYTES, True, 2 * WINDOW_BYTES, [3]),
    ],
    ids=["fits", "a does not fit", "a and its weights do not fit"],
)
def test_no_model_takes_more_than_half_of_the_free_memory(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    on_host: bool,
    size: int,
    read: list[int],
) -> None:
    reading = Reading(monkeypatch, free, on_host)
    reading.prefetcher.want([model(file, "a.", size), model(file, "b.")], 1.0)
    assert reading.windows() == read


def test_reading_ends_with_its_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, after=lambda: reading.prefetcher.drop(1.0))
    reading.prefetcher.want([model(file, "a.")], 1.0)
    reading.prefetcher.want([model(file, "b.")], 2.0)
    assert reading.windows() == [0, 3]


def test_reading_ends_when_its_model_is_loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, after=lambda: reading.loaded.add((file, "a.")))
    reading.prefetcher.want([model(file, "a."), model(file, "b.")], 1.0)
    assert reading.windows() == [0, 3]


def test_an_unreadable_file_only_ends_its_own_reading(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(monkeypatch)
    missing = model(file.with_name("missing.safetensors"), "a.")
    reading.prefetcher.want([missing, model(file, "b.")], 1.0)
    assert reading.windows() == [3]


def case(folder: Path) -> Case:
    return Case("one step", folder, "euler", 1)


@pytest.fixture
def network_read(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when the prefetcher reads a network. No file is cached."""
    read = threading.Event()

    def read_window(descriptor: int, window: range) -> None:
        if "unet" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            read.set()

    monkeypatch.setattr(prefetch, "_is_cached", lambda descriptor, window: False)
    monkeypatch.setattr(prefetch, "_read_window", read_window)
    return read


def test_the_network_is_read_while_texts_are_encoded(
    network_read: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding waits until the network's file is read, as if storage was slower."""
    order: list[str] = []
    encode, load = DeviceModels.encode_text, Residents._loaded

    def encode_text(self: DeviceModels, *given: Any) -> Any:
        assert network_read.wait(20)
        order.append("encode")
        return encode(self, *given)

    def loaded(self: Residents, wanted: Loadable) -> Any:
        is_network = "unet" in wanted.files[-1].path
        order.append("load the network" if is_network else "load another")
        return load(self, wanted)

    monkeypatch.setattr(DeviceModels, "encode_text", encode_text)
    monkeypatch.setattr(Residents, "_loaded", loaded)
    with local_engine() as engine:
        region = sampler_region(case(pipeline_folder("sd1")))
        first = sample(engine, region)
        assert order == ["load another", "encode", "encode", "load the network"]
        order.clear()
        assert torch.equal(sample(engine, region), first)
        assert order == ["encode", "encode"]  # everything is loaded


def test_files_are_read_while_a_device_starts_its_libraries(
    network_read: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine starts and plans meanwhile; the first request waits for the device."""
    found: list[bool] = []

    def initialise(worker: Any) -> None:
        found.append(network_read.wait(20))

    monkeypatch.setitem(host.WORK, "initialise_libraries", initialise)
    with local_engine() as engine:
        region = sampler_region(case(pipeline_folder("sd1")))
        assert engine.plan(region).prediction is not None and found == []
        sample(engine, region)
        assert found == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_first_calls_of_a_device_run_in_each_number_format(dtype: torch.dtype) -> None:
    first_calls(torch.device("cpu"), dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline's folder that a test may change."""
    shutil.copytree(pipeline_folder("sd1"), tmp_path / "model")
    return tmp_path / "model"


def test_a_file_that_is_lost_meanwhile_fails_its_request_in_one_line(folder: Path) -> None:
    with local_engine() as engine:
        program = engine.plan(sampler_region(case(folder)))
        network = next((folder / "unet").glob("*.safetensors"))
        network.unlink()
        with pytest.raises(InputError) as raised:
            engine.cluster.run(program, bare_context(engine))
    assert str(raised.value) == f"{network}: No such file or directory"


def test_plans_read_no_weights(folder: Path) -> None:
    """The network's file is far longer than the system's read-ahead after its header."""
    configuration, weights = folder / "unet/config.json", next(folder.glob("unet/*.safetensors"))
    wide = {"block_out_channels": [1024, 2048, 2048]}
    configuration.write_text(json.dumps(json.loads(configuration.read_text()) | wide))
    module = blank(pipeline_recipes(folder)[0].network)
    hollow_file(weights, {name: one.shape for name, one in module.named_parameters()})
    with local_engine() as engine:
        program = engine.plan(sampler_region(case(folder)))
    assert program.prediction is not None
    assert resident_bytes(weights) < weights.stat().st_size / 10


def resident_bytes(path: Path) -> int:
    """Returns how much of a file is in the page cache."""
    library, size = ctypes.CDLL(None, use_errno=True), path.stat().st_size
    library.mmap.restype = ctypes.c_void_p
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with path.open("rb") as file:
        place = ctypes.c_void_p(
            library.mmap(
                None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0
            )
        )
    assert library.mincore(place, ctypes.c_size_t(size), pages) == 0
    library.munmap(place, ctypes.c_size_t(size))
    return mmap.PAGESIZE * sum(page & 1 for page in pages.raw)


def test_loaders_announce_the_models_that_other_nodes_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VAE's file is read during sampling, although only a later node uses it."""
    wanted: dict[str, tuple[float, int]] = {}
    want = Prefetcher.want

    def watched(self: Prefetcher, models: Iterable[Loadable], run: float, order: int = 0) -> None:
        wanted.update((Path(one.files[0].path).parent.name, (run, order)) for one in models)
        want(self, models, run, order)

    def begin(self: Host, message: Begin) -> None:
        order.append([*wanted])
        started(self, message)

    order: list[list[str]] = []
    started = Host.begin
    monkeypatch.setattr(Prefetcher, "want", watched)
    monkeypatch.setattr(Host, "begin", begin)
    document = json.loads(files("katz_graph.workflows").joinpath("txt2img.json").read_text())
    for node in document.values():
        changes = {"ckpt_name": str(pipeline_folder("sd1")), "steps": 1, "width": 64, "height": 64}
        node["inputs"] |= {name: changes[name] for name in node["inputs"].keys() & changes}
    graph = from_api(document)
    with local_engine() as engine:
        context = RunContext(engine, Folders(), tmp_path)
        run_graph(graph, context, ResultCache("none")).raise_failures()
        engine.run_ended(context)
    assert order == [["unet", "text_encoder", "vae"]]
    assert set(wanted.values()) == {(context.arrival, number) for number in range(3)}
