"""CUDA graphs give the bits of eager computing, and kernels the values of their references. Skipped
without a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from stage_calls import Computed
from test_same_picture import cases
from torch import Tensor, nn

from katz_graph.executor.calls.computing import Eagerly
from katz_graph.executor.recorded.cuda import CudaGraphs
from katz_graph.executor.recorded.recorder import (
    NO_MEMORY,
    NOT_DECLARED,
    WARMING_UP,
    Recorder,
)
from katz_graph.executor.worker.stream import CudaStream, HostLap, Lap, Made
from katz_graph.kernels import (
    bias_residual,
    gated_activation,
    geglu,
    group_norm_silu,
    head_norm,
    joined_gelu,
    layer_norm,
    linear_geglu,
    modulated_norm,
    norm_rotary,
    rms_norm,
    upsampled_convolution,
)
from katz_graph.kernels.configurations import listed_for
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.triton import linear_geglu as gated_product
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.testing.model_files import Models, random_models
from katz_graph.testing.requests import local_engine, sample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return random_models(tmp_path_factory.mktemp("sdxl"), "sdxl")


def test_replayed_graphs_give_the_bits_of_eager_calls_also_after_dropping(models: Models) -> None:
    with local_engine("cuda:0", batching=True) as engine:
        engine.models.compute = Eagerly()
        regions = cases(models)[::4]
        expected = [sample(engine, region) for region in regions]
        engine.models.compute = compute = Recorder(CudaGraphs(torch.device("cuda:0")))
        for _ in range(3):
            made = [sample(engine, region) for region in regions]
            assert all(map(torch.equal, made, expected))
            captures = compute.use.captures
        assert captures > 0 and compute.use.replays > captures
        compute.drop()
        assert all(
            torch.equal(sample(engine, one), two)
            for one, two in zip(regions, expected, strict=True)
        )
        assert compute.use.eager.keys() <= {WARMING_UP, NOT_DECLARED}


def test_concurrent_graphs_give_the_bits_of_eager_calls(models: Models) -> None:
    """Uses two streams, even if slower."""

    class Hurried(CudaStream):
        """Reports two streams as taking 0 s."""

        took = 1.0

        def concurrently(
            self, aside: Callable[[], Made], here: Callable[[], Made]
        ) -> tuple[Made, Made]:
            self.took = 0.0
            return super().concurrently(aside, here)

        def timing(self) -> Callable[[], Lap]:
            self.took = 1.0
            return lambda: HostLap(self.took)

    with local_engine("cuda:0", batching=True) as engine:
        engine.models.compute = Eagerly()
        regions = cases(models)[::4]
        expected = [sample(engine, region) for region in regions]
        device = torch.device("cuda:0")
        backends = CudaGraphs(device), CudaGraphs(device)
        engine.models.compute = compute = Recorder(*backends, stream=Hurried(device))
        for _ in range(6):
            made = [sample(engine, region) for region in regions]
            assert all(map(torch.equal, made, expected))
        concurrently = compute.use.concurrently
        compute.drop()
        assert torch.equal(sample(engine, regions[0]), expected[0])
    assert concurrently > 0


def test_a_recording_that_fails_leaves_the_device_as_it_was() -> None:
    device = torch.device("cuda:0")
    graphs, ones = CudaGraphs(device), torch.ones(3, device=device)

    def waits() -> Tensor:
        doubled = 2 * ones
        torch.cuda.synchronize()
        return doubled

    with CudaStream(device).entered():
        for _ in range(2):
            with pytest.raises(RuntimeError, match="captur"):
                graphs.record(waits, (ones,))
            recording = graphs.record(lambda: 2 * ones, (ones,))
            recording.replay()
            assert torch.equal(recording.outputs.cpu(), torch.full((3,), 2.0))
            assert float(torch.rand(3, device=device).max()) < 1
    torch.cuda.empty_cache()


class Scale(nn.Module):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, device=device))


LARGE_STAGE = Computed(call=lambda module, given: (given["x"] * module.weight + 1).mean(1))
MB = 1 << 20


@pytest.mark.defect(33)
def test_memory_in_the_pools_of_graphs_is_not_free() -> None:
    device = torch.device("cuda:0")
    graphs, memory = CudaGraphs(device), DeviceMemory(device)
    x = torch.ones(64, MB, device=device)
    with CudaStream(device).entered():
        recording = graphs.record(lambda: (2 * x + 1).mean(1), (x,))
        recording.replay()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    assert recording.size >= x.nbytes
    assert free <= memory.free() <= free + recording.size / 4


@pytest.mark.defect(34)
def test_a_graph_in_memory_that_its_pool_had_does_not_go_alone() -> None:
    device = torch.device("cuda:0")
    modules = [Scale(device), Scale(device)]
    x = torch.ones(16, MB, device=device)
    with CudaStream(device).entered(), torch.no_grad():
        compute = Recorder(CudaGraphs(device), eager=0)
        for module in modules:
            compute(LARGE_STAGE, module, {"x": x})
        compute.forget(modules[1])  # its graph added no memory
        assert compute.use.drops == 1 and compute.use.bytes == 0
        (made,) = compute(LARGE_STAGE, modules[0], {"x": x})
        assert float(made.sum()) == 32.0


@pytest.mark.defect(36)
def test_a_call_that_ran_out_of_memory_is_recorded_when_there_is_some() -> None:
    device = torch.device("cuda:0")
    module, x = Scale(device), torch.ones(16, MB, device=device)
    with CudaStream(device).entered(), torch.no_grad():
        compute = Recorder(CudaGraphs(device))
        for _ in range(2):
            compute(LARGE_STAGE, module, {"x": x})  # warms up; torch caches the memory
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved(device) / total)
        try:
            compute(LARGE_STAGE, module, {"x": x})
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert compute.use.eager == {WARMING_UP: 2, NO_MEMORY: 1} and compute.use.bytes == 0
        for _ in range(3):
            (made,) = compute(LARGE_STAGE, module, {"x": x})
            assert float(made.sum()) == 32.0
        assert compute.use.captures == 1 and compute.use.replays > 0


@pytest.mark.defect(35)
def test_tensors_read_by_a_gpu_are_released_when_a_request_ends() -> None:
    device = torch.device("cuda:0")
    message = torch.ones(64, MB, pin_memory=True)
    held, stream = weakref.ref(message), CudaStream(device)
    with stream.entered():
        torch.cuda._sleep(100_000_000)
        there = message.to(device, non_blocking=True)
        stream.hold(message)
        del message
        assert held() is not None
        stream.drain()
    assert held() is None and float(there.sum()) == 64.0 * MB


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_gated_product_is_right_with_all_its_tiles(dtype: torch.dtype) -> None:
    """Tests the tiles of all sizes listed for the oldest architecture."""
    generator = torch.Generator("cuda:0").manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, device="cuda:0", generator=generator).to(dtype)
        for shape in ((2, 333, 640), (2 * 1300, 640), (2 * 1300,))
    )
    weight /= 25
    expected = linear_geglu.reference(x.float(), weight.float(), bias.float())
    for cut in listed_for("linear_geglu", 80).values():
        made = gated_product.linear_geglu(x, weight, bias, cut)
        assert (made - expected).abs().max() <= torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_match_their_references(dtype: torch.dtype) -> None:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda:0", dtype=dtype)

    x = random(2, 320, 33, 31).to(memory_format=torch.channels_last)
    weight, bias, shift, rows = random(320), random(320), random(2, 320), x.permute(0, 2, 3, 1)
    assert uses_kernels(x)
    norm, rest = (x, 32, weight, bias, 1e-5, shift, True), (rows, rows, weight, bias, 1e-5)
    gate, scale, two = random(2, 320), random(2, 320), random(2, 1023, 3 * 320)
    tokens, weights = rows.flatten(1, 2), head_norm.HeadNorm((random(80), random(80)), 1e-6, True)
    angles = torch.randn(1023, 40, device="cuda:0").repeat_interleave(2, dim=1)
    norm_of_heads = (4, weights, weights, 500, (angles.cos(), angles.sin()))
    by_head, expected_by_head = two.clone(), two.clone()
    head_norm.head_norm(by_head, *norm_of_heads)
    head_norm.reference(expected_by_head, *norm_of_heads)
    queries, expected_queries, one = two.clone(), two.clone(), weights.one(0)
    listed = 4, one, one, *norm_of_heads[3:], torch.randint(523, (2, 523), device="cuda:0")
    head_norm.head_norm(queries, *listed)
    head_norm.reference(expected_queries, *listed)
    gated = (tokens, [(gate, tokens)], [(scale, shift)], 1e-6)
    by_position, turns = two.unflatten(-1, (12, 80)), (angles.cos()[None, :, ::2],) * 2
    heads = random(80), random(80), 1e-6, *turns, True
    turned, expected_turned = (
        function(by_position.clone(), *heads)
        for function in (norm_rotary.norm_rotary, norm_rotary.reference)
    )
    chain = tokens, tokens, weight, 1e-6, scale[:, None], bias, gate[:, None]
    kernel = (random(50, 320, 3, 3) / 50).to(memory_format=torch.channels_last)
    shifted, joined = (tokens, shift, weight, bias, 1e-6), (two, two, None, None, 1e-6)
    pairs = [
        (by_head, expected_by_head),
        (queries, expected_queries),
        (turned, expected_turned),
        (rms_norm.residual_rms_norm(*chain)[1], rms_norm.residual_norm_reference(*chain)[1]),
        (layer_norm.shifted_layer_norm(*shifted), layer_norm.shifted_reference(*shifted)),
        (layer_norm.joined_layer_norm(*joined), layer_norm.joined_reference(*joined)),
        *(
            (function(tokens, tokens), reference(tokens, tokens))
            for function, reference in (
                (gated_activation.silu_gated, gated_activation.silu_reference),
                (gated_activation.gelu_gated, gated_activation.gelu_reference),
            )
        ),
        (modulated_norm.computed(*gated)[1], modulated_norm.reference(*gated)[1]),
        (joined_gelu.joined_gelu(tokens, two), joined_gelu.reference(tokens, two)),
        (group_norm_silu.group_norm_silu(*norm), group_norm_silu.reference(*norm)),
        (
            layer_norm.residual_layer_norm(*rest)[1],
            layer_norm.residual_reference(*rest)[1],
        ),
        (geglu.geglu(rows), geglu.reference(rows)),
        (bias_residual.bias_residual(x, bias, x), bias_residual.reference(x, bias, x)),
        tuple(
            function(x, kernel, bias[:50])
            for function in (
                upsampled_convolution.upsampled_convolution,
                upsampled_convolution.reference,
            )
        ),
    ]
    for made, expected in pairs:
        apart = (made.float() - expected.float()).abs().max()
        assert apart <= 8 * torch.finfo(dtype).eps * expected.float().abs().max()
