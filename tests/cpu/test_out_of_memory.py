"""A job that runs out of memory fails alone, with an error that gives sizes and a way out, or
continues; the next one runs as on a fresh engine.

Errors of torch, Python and the system are simulated, on a worker that is connected by messages like
another process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
from node_calls import call, context_in
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextModel

from katz_graph.core.errors import OutOfMemory
from katz_graph.core.recipe import Compact, Tile, UpscaleModelRecipe
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.execution import Execution
from katz_graph.executor.worker.host import WORK
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.host.memory import is_out_of_memory
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stages import Stage
from katz_graph.testing.model_files import Models as Files
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads
from katz_graph.upscale.files import upscale_model
from katz_graph.upscale.networks import CompactNet

ERRORS: dict[str, Callable[[], Exception]] = {
    "GPU": lambda: torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.76 GiB"
    ),
    "host": lambda: RuntimeError(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "2147483648 bytes."
    ),
    "Python": lambda: MemoryError(),
}
WAY_OUT = (
    r".*use a smaller picture or batch, tiles, a smaller number format \(--dtype\) "
    r"or a smaller model"
)


class Jobs:
    """Runs one job with all kinds of work, on an engine whose worker is reached by messages."""

    def __init__(self, files: Files, folder: Path) -> None:
        self.engine = DeviceEngine(
            [WorkerConfig("cpu:0")], cache=folder, launchers={"cpu:0": WorkerThreads()}
        )
        controls = (ControlCase(files.controls[0], 0.8, 0.0, 1.0),)
        self.region = sampler_region(
            Case(
                "x",
                files.pipeline,
                "euler",
                2,
                guidance=1.0,
                loras=((files.loras[1], 0.5),),
                controls=controls,
            )
        )
        self.vae = pipeline_recipes(files.pipeline)[2]
        self.net = upscaler(folder)

    def run(self) -> list[Tensor]:
        context = bare_context(self.engine)
        latent = sample(self.engine, self.region)
        picture = self.engine.decode_latent(self.vae, latent, context)
        again = self.engine.encode_image(self.vae, picture, context)
        return [
            latent,
            picture,
            again,
            self.engine.upscale(self.net, picture.movedim(-1, 1), context),
        ]


def upscaler(folder: Path) -> UpscaleModelRecipe:
    torch.manual_seed(0)
    save_file(CompactNet(Compact(4, 1, 2)).state_dict(), folder / "net.safetensors")
    return upscale_model(folder / "net.safetensors")


@pytest.fixture(scope="module")
def jobs(sd1: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    jobs = Jobs(sd1, tmp_path_factory.mktemp("out-of-memory"))
    with jobs.engine:
        yield jobs


@pytest.fixture(scope="module")
def fresh(jobs: Jobs) -> list[Tensor]:
    return jobs.run()


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(mine, yours) for mine, yours in zip(one, other, strict=True))


class Failing:
    """Wraps a function: its first `times` calls chosen by `when` fail."""

    def __init__(
        self,
        real: Callable[..., Any],
        error: Callable[[], Exception],
        times: int,
        when: Callable[[Any], bool],
    ) -> None:
        self.real, self.error, self.left, self.when = real, error, times, when

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]:
        return lambda *given, **named: self(instance, *given, **named)

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.left and self.when(given[0]):
            self.left -= 1
            raise self.error()
        return self.real(*given, **named)


def of(kind: type) -> Callable[[Any], bool]:
    return lambda given: isinstance(given, kind)


Place = tuple[Any, str, Callable[[Any], bool]]
ANY = of(object)
LOADS: dict[str, Place] = {
    f"load {kind.__name__}": (nn.Module, "to", of(kind))
    for kind in (UNet2DConditionModel, CLIPTextModel, ControlNetModel, AutoencoderKL)
} | {"load upscaler": (nn.Module, "load_state_dict", of(CompactNet))}
COMPUTES: dict[str, Place] = {
    "LoRAs": (WeightSets, "_patch", ANY),
    "text": (CLIPTextModel, "forward", ANY),
    "VAE decode": (AutoencoderKL, "decode", ANY),
    "VAE encode": (AutoencoderKL, "encode", ANY),
    "upscale": (CompactNet, "forward", lambda network: not next(network.parameters()).is_meta),
    "result": (Execution, "_unscaled", ANY),
}
STAGES: dict[str, Place] = {
    name: (Stage, "computed", lambda stage, name=name: stage.name == name)
    for name in (
        "text_encoder",
        "keys_values",
        "controlnet_reference",
        "controlnet",
        "unet_encoder",
        "unet_mid",
        "unet_decoder",
    )
}
EVERY_CALL = 1_000_000


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def fail(place: str, error: str, times: int) -> None:
        owner, name, when = (LOADS | COMPUTES | STAGES)[place]
        monkeypatch.setattr(owner, name, Failing(getattr(owner, name), ERRORS[error], times, when))

    return fail


PLACES = [*LOADS, *COMPUTES, *STAGES]


@pytest.mark.parametrize(
    ("place", "error"), [(place, list(ERRORS)[number % 3]) for number, place in enumerate(PLACES)]
)
def test_that_job_alone_fails_and_reports_the_memory(
    jobs: Jobs,
    fresh: list[Tensor],
    fails: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: str,
) -> None:
    if place in (*LOADS, "LoRAs", "text"):
        jobs.engine.unload()
    fails(place, error, EVERY_CALL)
    with pytest.raises(
        OutOfMemory,
        match=rf"(?s)out of memory.* of \d+\.\d\d GB of cpu are free, models in use take {WAY_OUT}",
    ) as caught:
        jobs.run()
    assert "\n" not in str(caught.value)
    assert ("2.15 GB more could not be allocated" in str(caught.value)) == (error != "Python")
    monkeypatch.undo()
    assert equal(jobs.run(), fresh)


@pytest.mark.parametrize(
    ("place", "error"), [(place, list(ERRORS)[number % 3]) for number, place in enumerate(PLACES)]
)
def test_a_job_goes_on_when_room_can_be_made(
    jobs: Jobs, fresh: list[Tensor], fails: Callable[..., None], place: str, error: str
) -> None:
    """After one failure, unused models are evicted for a retry."""
    if place in (*LOADS, "LoRAs", "text"):
        jobs.engine.unload()
    fails(place, error, 1)
    assert equal(jobs.run(), fresh)


@pytest.mark.parametrize("error", ERRORS)
def test_other_memory_errors_of_a_worker_have_the_same_class(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    def fail(worker: object) -> None:
        raise ERRORS[error]()

    monkeypatch.setitem(WORK, "adapter_use", fail)
    with pytest.raises(OutOfMemory, match=rf"^out of memory{WAY_OUT}$"):
        jobs.engine.cluster.call("cpu:0", "adapter_use")


@pytest.mark.parametrize(
    "place", ["load UNet2DConditionModel", "text", "VAE decode", "unet_mid", "result"]
)
def test_nothing_of_a_failed_attempt_is_left_in_memory(
    jobs: Jobs, fails: Callable[..., None], place: str
) -> None:
    """A second attempt within the first's `except` clause would keep the first's tensors."""
    jobs.engine.unload()
    before = {id(tensor) for tensor in gc.get_objects() if issubclass(type(tensor), Tensor)}
    fails(place, "GPU", EVERY_CALL)
    with suppress(OutOfMemory):
        jobs.run()
    jobs.engine.unload()
    left = [
        tensor
        for tensor in gc.get_objects()
        if issubclass(type(tensor), Tensor) and id(tensor) not in before
    ]
    assert sum(tensor.nbytes for tensor in left) < 100_000  # the UNet alone takes 1.8 MB


class Small(DeviceMemory):
    """Has `size` bytes free."""

    def __init__(self, size: float) -> None:
        super().__init__("cpu")
        self.size = size

    def free(self) -> float:
        return self.size


def small(size: float) -> DeviceModels:
    return DeviceModels(store=partial(ModelStore, model_bytes=10**9, memory=Small(size)))


def shapes_seen(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[tuple[int, ...]]:
    seen: list[tuple[int, ...]] = []
    real = getattr(owner, name)

    def noted(self: Any, x: Tensor) -> Any:
        if not x.is_meta:  # calls that only count
            seen.append(tuple(x.shape))
        return real(self, x)

    monkeypatch.setattr(owner, name, noted)
    return seen


@pytest.mark.parametrize(
    ("size", "shapes", "words"),
    [
        (2e9, [(2, 4, 40, 36)], None),
        (40e6, [(1, 4, 40, 36)] * 2, "one by one"),
        (25e6, [(1, 4, 32, 32)] * 8, "in tiles"),
        (20e6, [(1, 4, 16, 16)] * 18, "in tiles"),
    ],
)
def test_parts_are_chosen_by_free_memory(
    sd1: Files,
    monkeypatch: pytest.MonkeyPatch,
    size: float,
    shapes: list[tuple[int, ...]],
    words: str | None,
) -> None:
    """Work that exceeds memory is not tried; the picture equals the whole, or is close in tiles."""
    vae = pipeline_recipes(sd1.pipeline)[2]
    samples = torch.randn(2, 4, 40, 36, generator=torch.Generator().manual_seed(0))
    whole, _ = DeviceModels().decode_latent(vae, samples)
    seen = shapes_seen(monkeypatch, AutoencoderKL, "decode")
    picture, notes = small(size).decode_latent(vae, samples)
    assert seen == shapes
    assert (notes == ()) if words is None else (len(notes) == 1 and words in notes[0])
    if words == "in tiles":
        assert (picture - whole).abs().mean() < 0.3 * (whole - whole.flip(0)).abs().mean()
    else:
        # batches round differently; random weights amplify it
        assert (picture - whole).abs().max() <= 1e-4


def test_work_that_does_not_fit_in_parts_is_not_started(
    sd1: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = pipeline_recipes(sd1.pipeline)[2]
    decoded, encoded = (
        shapes_seen(monkeypatch, AutoencoderKL, "decode"),
        shapes_seen(monkeypatch, AutoencoderKL, "encode"),
    )
    with pytest.raises(
        OutOfMemory,
        match=r"^VAE decode of 1 x 320 x 320 pixels: needs 0.01 GB; 0.00 of .* GB of cpu are "
        rf"free{WAY_OUT}$",
    ):
        small(1e6).decode_latent(vae, torch.zeros(1, 4, 40, 40))
    with pytest.raises(
        OutOfMemory, match=r"^VAE encode of 1 x 4096 x 4096 pixels: needs \d\.\d\d GB;"
    ):
        small(40e6).encode_image(vae, torch.zeros(1, 4096, 4096, 3))
    with pytest.raises(OutOfMemory, match=r"^VAE decode of 1 x 320 x 320 pixels"):
        # only requested tiles
        small(15e6).decode_latent(vae, torch.zeros(1, 4, 40, 40), Tile(256, 64))
    assert decoded == encoded == []


def test_other_models_go_before_a_picture_is_cut_up(
    sd1: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    vae = pipeline_recipes(sd1.pipeline)[2]
    models, taken = small(0), 60e6
    models.patch(pipeline_recipes(sd1.pipeline)[0])
    monkeypatch.setattr(
        Small, "free", lambda self: taken if models.residents.use.evictions else 10e6
    )
    monkeypatch.setattr(type(models.residents), "within_reach", lambda self: taken)
    _, notes = models.decode_latent(vae, torch.zeros(1, 4, 40, 36))
    assert notes == () and models.residents.use.evictions == 1


def test_an_upscaler_takes_smaller_tiles_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node gets its worker's free memory."""
    (tmp_path / "models" / "upscale_models").mkdir(parents=True)
    torch.manual_seed(0)
    save_file(
        CompactNet(Compact(16, 1, 2)).state_dict(),
        tmp_path / "models" / "upscale_models" / "net.safetensors",
    )
    with DeviceEngine(
        [WorkerConfig("cpu:0")], cache=tmp_path, launchers={"cpu:0": WorkerThreads()}
    ) as engine:
        context = context_in(tmp_path, engine=engine)
        recipe = call("UpscaleModelLoader", context, model_name="net.safetensors")
        image = torch.rand(1, 300, 300, 3, generator=torch.Generator().manual_seed(1))
        whole = call("ImageUpscaleWithModel", context, upscale_model=recipe, image=image)
        seen = shapes_seen(monkeypatch, CompactNet, "forward")
        monkeypatch.setattr(DeviceMemory, "free", lambda self: 8e6)
        tiled = call("ImageUpscaleWithModel", context, upscale_model=recipe, image=image)
    assert {shape[-2:] for shape in seen} == {(128, 128)} and context.warnings[-1].endswith(
        "continuing in tiles of 128 pixels"
    )
    assert (tiled - whole).abs().max() < 0.05


def test_out_of_memory_errors() -> None:
    assert all(is_out_of_memory(error()) for error in ERRORS.values())
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert is_out_of_memory(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    )
    assert not is_out_of_memory(
        RuntimeError("CUDA error: an illegal memory access was encountered")
    )
    assert not is_out_of_memory(OSError(28, "No space left on device"))
