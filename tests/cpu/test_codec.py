"""Values sent between processes arrive unchanged; unsuitable ones are refused with an error that
names them.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from katz_graph.core import recipe
from katz_graph.core.errors import OutOfMemory, RunError
from katz_graph.core.events import Span
from katz_graph.core.patches import FreeU, OpaquePatch
from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor import messages
from katz_graph.executor.messages import Timing
from katz_graph.executor.transport.codec import ProtocolError, as_bytes, decode, encode
from katz_graph.executor.transport.mailbox import Address
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, Target
from katz_graph.ir.program import Instance, Instruction, Program
from katz_graph.ir.region import Operation, Previous, Ref, Region
from katz_graph.ir.values import Features, Residuals, Step
from katz_graph.sampling.noise_table import noise_table
from katz_graph.sampling.spec import SamplingSpec


def there_and_back(value: Any) -> Any:
    encoded = encode(value)
    return decode(encoded.header, [as_bytes(tensor).clone() for tensor in encoded.tensors])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**63,
        2**64 - 1,
        2**200,
        -(2**70),
        1.5,
        math.inf,
        -0.0,
        "Füße\udcff",
        b"\x00\xff",
        [],
        (),
        {},
        [1, (2, [3.0])],
        (1, "a", None),
        {1: "a", "1": "b", (1, "x", True): [1], None: ()},
        {1, 2},
        frozenset({("a", 1)}),
        torch.Size([1, 2]),
        torch.bfloat16,
        ["tuple", 1],
        {"data": ["Lora"]},
    ],
)
def test_plain_values_keep_value_and_type(value: Any) -> None:
    copy = there_and_back(value)
    assert type(copy) is type(value)
    assert repr(copy) == repr(value)


def test_not_a_number_stays_one() -> None:
    assert math.isnan(there_and_back(math.nan))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.bool,
        torch.complex64,
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 5)])
def test_tensors_keep_bits_shape_and_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    copy = there_and_back([tensor])[0]
    assert (copy.dtype, copy.shape) == (dtype, tensor.shape)
    assert as_bytes(copy).tolist() == as_bytes(tensor).tolist()


def test_views_arrive_as_their_contents() -> None:
    whole = torch.arange(24.0).view(2, 3, 4)
    for view in (
        whole.transpose(0, 2),
        whole[:, 1:, ::2],
        torch.ones(1).expand(5),
        torch.nn.Parameter(whole),
    ):
        assert torch.equal(there_and_back(view), view)


def test_dense_tensors_lie_in_memory_as_before() -> None:
    """Otherwise channels-last features of a GPU would be reordered twice in a transfer."""
    last = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for dense in (last, last.transpose(0, 3), torch.rand(3, 4).t(), torch.rand(2, 3, 4)):
        copy = there_and_back([dense, dense])
        assert all(torch.equal(one, dense) and one.stride() == dense.stride() for one in copy)
        (sent,) = encode([dense, dense]).tensors
        assert sent.is_contiguous() and sent.data_ptr() == dense.data_ptr()
    for gaps in (last[..., 1:], torch.ones(3, 1).expand(3, 4)):
        assert there_and_back(gaps).is_contiguous()


def test_a_tensor_that_stands_twice_is_sent_once() -> None:
    tensor = torch.ones(8)
    assert len(encode({"a": tensor, "b": (tensor,)}).tensors) == 1
    copy = there_and_back({"a": tensor, "b": (tensor,)})
    assert torch.equal(copy["b"][0], tensor)


def model() -> recipe.ModelRecipe:
    file = recipe.FileIdentity("/models/unet.safetensors", 2**40, 1, "ab")
    first = recipe.Component("/models/sd", (file,), '{"a": 1}')
    merged = recipe.MergedComponent(
        "/models/sd",
        (file,),
        sources=((first, (recipe.Lora(file, 0.5),)),),
        scales=(("down", 0.25, 0.75),),
    )
    return recipe.ModelRecipe(
        merged, first, loras=(recipe.Lora(file, -1.0),), patches=(FreeU(2, 1.3, 1.4, 0.9, 0.2),)
    )


def test_recipes_arrive_with_the_same_digest() -> None:
    file = recipe.FileIdentity("/models/clip.safetensors", 5, 1, "ab")
    component = recipe.Component("/models", (file,))
    clip = recipe.ClipRecipe(
        (recipe.TextEncoderRecipe(component, component),),
        learned=(recipe.LearnedWords("cat", file),),
    )
    encoding = recipe.Averaged(
        recipe.Prompt(clip, "a (red:1.2) cube"),
        recipe.Zeroed(recipe.Given.of(torch.ones(1, 2, 3), None)),
        0.3,
    )
    picture = recipe.Picture.of(torch.rand(1, 4, 4, 3))
    control = recipe.ControlUse(recipe.ControlNetRecipe(component, (1,)), picture, 0.7, 0.1, 0.9)
    area, sizes = recipe.Area(0, 0, 1, 1), recipe.Sizes(8, 8)
    entry = recipe.ConditioningEntry(
        encoding, (control,), mask=recipe.MaskUse(picture), sizes=sizes, area=area
    )
    for value in (model(), (entry,)):
        copy = there_and_back(value)
        assert copy == value
        assert recipe.digest(copy) == recipe.digest(value)
    assert torch.equal(there_and_back(picture).pixels, picture.pixels)


def test_values_sent_between_devices_in_a_step_arrive() -> None:
    step = Step.of(torch.rand(1, 4, 2, 2), torch.rand(1, 4, 2, 2).half(), 1.25, 99.5)
    features = Features(
        torch.rand(1, 8, 2, 2),
        torch.rand(1, 8),
        (torch.rand(1, 8, 4, 4), torch.rand(1, 8, 2, 2)),
        step,
    )
    copy = there_and_back(features)
    assert torch.equal(copy.skips[1], features.skips[1])
    assert (copy.step.timestep.tolist(), copy.step.sigma.dtype, copy.step.model_input.dtype) == (
        [99.5],
        torch.float64,
        torch.float16,
    )
    residuals = there_and_back(Residuals((torch.ones(2),), torch.zeros(3)))
    assert isinstance(residuals.down, tuple)
    assert there_and_back(Address("r1", 2, "n7/mid", 0, None)) == Address(
        "r1", 2, "n7/mid", 0, None
    )


def test_a_program_arrives_without_functions() -> None:
    operation = Operation(
        "4", "node", "Foreign", {"x": Ref("3"), "old": Previous(1), "scale": 0.5}, required=("x",)
    )
    begin, closing = (
        Operation("1", "step_begin", "StepBegin", {"model": model()}),
        Operation("9", "step_end", "StepEnd", {}),
    )
    region = Region(begin, (operation,), closing, "5")
    device = Device("cpu:0", 1e9, 1e10, measured={("unet", 2, True): 0.5})
    end = Instruction("end", "", 4, keeps=(Instance(Ref("4"), 4),))
    target = Target((device,), allowed=frozenset({"stale-controlnet"}))
    program = Program(region, (), target, instructions={"cpu:0": (end,)})
    copy = there_and_back(program)
    (arrived,) = copy.region.operations
    assert arrived.inputs == operation.inputs
    assert (copy.target, copy.instructions) == (target, program.instructions)
    assert copy.target.device("cpu:0").memory_bytes == math.inf


def test_specifications_tables_timings_and_configurations_arrive() -> None:
    spec = SamplingSpec(
        "euler",
        (14.6, 1.0, 0.0),
        2**64 - 1,
        mask=torch.ones(2, 2),
        options=(("eta", 0.5), ("solver_type", "heun")),
    )
    copy = there_and_back(spec)
    assert (copy.sigmas, copy.seed, copy.choice) == (spec.sigmas, spec.seed, spec.choice)
    table = noise_table({})
    assert torch.equal(there_and_back(table).sigmas, table.sigmas)
    timing = Timing(load=1.0, spans=[Span("cpu:0", "unet", 0.0, 1.0, 3)])
    assert there_and_back(timing) == timing
    config = WorkerConfig("cpu:0", shared_rows=SharedRows(4, fixed=True))
    assert there_and_back(config) == config


def test_unsendable_values_are_named_with_their_path() -> None:
    with pytest.raises(TypeError, match=r"builtins\.object at value\['a'\]\[1\]:"):
        encode({"a": (1, object())})
    opaque = OpaquePatch("cfg_function", "pack:1", print)
    with pytest.raises(
        TypeError, match=r"OpaquePatch at value\.patches\[1\]: it contains a pack's function"
    ):
        encode(model().with_patch(opaque))
    with pytest.raises(TypeError, match="dense tensors"):
        encode(torch.eye(3).to_sparse())


def damaged() -> list[tuple[bytes, list[Tensor]]]:
    import msgpack

    four = torch.zeros(4, dtype=torch.uint8)
    return [
        (b"", []),
        (b"\xc1", []),
        (msgpack.packb(["unheard", 1]), []),
        (msgpack.packb([]), []),
        (msgpack.packb([["list"]]), []),
        (msgpack.packb(["data", "Popen", "ls"]), []),
        (msgpack.packb(["data", "Ref", "a"]), []),
        (msgpack.packb(["dict", 1]), []),
        (msgpack.packb(["dict", ["list"], 1]), []),
        (msgpack.packb(["dtype", "load"]), []),
        (msgpack.packb(["tensor", 0, "torch.float32", [1], [0]]), []),
        (msgpack.packb(["tensor", 0, "torch.float32", [2**40], [0]]), [four]),
        (msgpack.packb(["tensor", 0, "torch.uint8", [-2, -2], [0, 1]]), [four]),
        (msgpack.packb(["tensor", 0, "torch.uint8", ["4"], [0]]), [four]),
        (msgpack.packb(["tensor", 0, "torch.uint8", [4]]), [four]),
        (msgpack.packb(["tensor", 0, "torch.uint8", [2, 2], [1, 1]]), [four]),
        (msgpack.packb(["tensor", 0, "torch.uint8", [2, 2], [0]]), [four]),
        (msgpack.packb(["tensor", 0, "torch.uint8", [2, 2], [0, "1"]]), [four]),
        (msgpack.packb(["tensor", 0, "torch.uint8", [2, 2], 1]), [four]),
        (encode([1, 2]).header[:-1], []),
        (encode([1, 2]).header + b"\x00", []),
    ]


@pytest.mark.parametrize(("header", "buffers"), damaged())
def test_damage_is_a_protocol_error(header: bytes, buffers: list[Tensor]) -> None:
    with pytest.raises(ProtocolError):
        decode(header, buffers)


@pytest.mark.parametrize(
    "kind",
    [messages.Failure, *get_args(messages.ToWorker), *get_args(messages.FromWorker)],
    ids=lambda kind: kind.__name__,
)
def test_a_message_arrives_except_for_process_local_parts(kind: type[Any]) -> None:
    sent = kind(
        **{
            field.name: object() if field.metadata else (field.name, number)
            for number, field in enumerate(fields(kind))
        }
    )
    stays = {field.name: field.default for field in fields(kind) if field.metadata}
    assert there_and_back(sent) == replace(sent, **stays)


def test_an_error_keeps_its_kind_between_processes_and_is_itself_within_one() -> None:
    error = OutOfMemory("too large")
    failure = messages.Failure("OutOfMemory", str(error), error)
    assert failure.as_error() is error
    came = there_and_back(failure).as_error()
    assert type(came) is OutOfMemory and str(came) == "too large"
    assert type(messages.Failure("Strange", "unknown here").as_error()) is RunError
