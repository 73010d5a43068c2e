"""Kernels compile with their committed tiles for GPUs that are absent; Triton includes the
assembler.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from katz_graph.kernels import configurations
from katz_graph.kernels.configurations import Tiles, listed_for

triton = pytest.importorskip("triton")

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 120: 99}
"""KiB of shared memory that a program may have, by architecture (CUDA's programming guide)."""
OPTIONS = ("num_warps", "num_stages")
ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Compiled:
    """Holds the assembler's figures."""

    shared: int  # bytes
    registers: int
    spilled: int  # bytes of the stack
    ptx: str


def compiled(
    function: Any, signature: Mapping[str, str], constants: Tiles, architecture: int, folder: Path
) -> Compiled:
    """Compiles a kernel; pointers and sizes are multiples of 16."""
    own = {name: value for name, value in constants.items() if name not in OPTIONS}
    source = triton.compiler.ASTSource(
        fn=function,
        signature={**signature, **dict.fromkeys(own, "constexpr")},
        constexprs=own,
        attrs={
            (place,): ALIGNED for place, kind in enumerate(signature.values()) if kind != "fp32"
        },
    )
    target = triton.backends.compiler.GPUTarget("cuda", architecture, 32)
    made = triton.compile(
        source,
        target=target,
        options={name: constants[name] for name in OPTIONS if name in constants},
    )
    binary = folder / "kernel.cubin"
    binary.write_bytes(made.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    result = subprocess.run(
        [tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True
    ).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", result)}
    return Compiled(made.metadata.shared, usage["REG"], usage["STACK"], made.asm["ptx"])


def choices(kernel: str) -> list[tuple[int, Tiles]]:
    """Lists each architecture's tiles once."""
    found = []
    for architecture in SHARED:
        for tiles in listed_for(kernel, architecture).values():
            if tiles and (architecture, tiles) not in found:
                found.append((architecture, tiles))
    return found


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("architecture", "tiles"), choices("linear_geglu"))
def test_the_gated_product_fits(
    architecture: int, tiles: Tiles, dtype: str, tmp_path: Path
) -> None:
    from katz_graph.kernels.triton.linear_geglu import _linear_geglu

    signature = dict.fromkeys(("x", "weight", "bias", "out"), f"*{dtype}") | dict.fromkeys(
        ("rows", "width", "inner"), "i32"
    )
    made = compiled(
        _linear_geglu, signature, {"BIASED": True, "UPCAST": False, **tiles}, architecture, tmp_path
    )
    assert made.shared <= SHARED[architecture] * 1024 and made.spilled == 0
    # uses tensor cores and asynchronous loads
    assert ("wgmma.mma" if architecture == 90 else "mma.sync") in made.ptx
    assert "cp.async" in made.ptx


def bf16(function: Any, floats: Sequence[str] = (), numbers: Sequence[str] = ()) -> dict[str, str]:
    """Returns the types of a kernel's arguments: pointers to bfloat16, except for those named."""
    names = [one.name for one in function.params if not one.is_constexpr]
    others = dict.fromkeys(numbers, "i32") | dict.fromkeys(floats, "*fp32") | {"eps": "fp32"}
    return {name: others.get(name, "*bf16") for name in names}


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_norms_and_gates_of_rows_stay_in_registers(architecture: int, tmp_path: Path) -> None:
    """With all options, at the widths of T5, Qwen3 and Z-Image."""
    from katz_graph.kernels.triton.gated_activation import _gated_activation
    from katz_graph.kernels.triton.layer_norm import _shifted_or_joined_norm
    from katz_graph.kernels.triton.norm_rotary import _norm_rotary
    from katz_graph.kernels.triton.rms_norm import _rms_norm

    options = dict.fromkeys(("INNER", "GATED", "ADDED", "NORMALISED", "SCALED"), True)
    norms = dict.fromkeys(("JOINED", "WEIGHTED", "BIASED", "SHIFTED"), True)
    widest = listed_for("rms_norm", architecture)["4096"] | {"BLOCK": 4096}
    joined = listed_for("residual_layer_norm", architecture)["4096"] | {"BLOCK": 4096}
    gaps = ("batch_gap", "token_gap", "head_gap", "table_batch", "table_token", "table_gap")
    counts = ("tokens", "heads", "half", *gaps)
    heads = listed_for("norm_rotary", architecture)["64"] | {"HALF": 64}
    gate = listed_for("gated_activation", architecture)["10240"]
    for function, types, constants in (
        (_rms_norm, bf16(_rms_norm, (), ("width", "rows")), options | widest),
        (
            _shifted_or_joined_norm,
            bf16(_shifted_or_joined_norm, (), ("width", "rows")),
            norms | joined,
        ),
        (
            _norm_rotary,
            bf16(_norm_rotary, ("cosine", "sine"), counts),
            {"CENTRED": True, "ADJACENT": True} | heads,
        ),
        (
            _gated_activation,
            bf16(_gated_activation, (), ("width", "gate_row", "value_row")),
            {"GELU": True} | gate,
        ),
    ):
        made = compiled(function, types, constants, architecture, tmp_path)
        assert made.spilled == 0
        if function in (_rms_norm, _gated_activation):  # others read pairs or two rows
            assert "ld.global.v4" in made.ptx and "st.global.v4" in made.ptx


@pytest.mark.parametrize(("architecture", "tiles"), choices("modulated_norm"))
def test_a_modulated_norm_stays_in_registers(
    architecture: int, tiles: Tiles, tmp_path: Path
) -> None:
    from katz_graph.kernels.triton.modulated_norm import _gated_norms

    signature = bf16(_gated_norms, (), ("tokens", "width", "apart"))
    # a block of the widest rows, with all terms and norms
    block = {4: 2048, 8: 4096}[tiles["num_warps"]]
    constants = {"TERMS": 2, "NORMS": 2, "BLOCK": block, **tiles}
    made = compiled(_gated_norms, signature, constants, architecture, tmp_path)
    assert made.spilled == 0
    assert "ld.global.v4" in made.ptx and "st.global.v4" in made.ptx


@pytest.mark.parametrize(("width", "rotary", "rounds"), [(128, True, False), (64, False, True)])
@pytest.mark.parametrize("architecture", SHARED)
def test_a_head_norm_stays_in_registers(
    architecture: int, width: int, rotary: bool, rounds: bool, tmp_path: Path
) -> None:
    from katz_graph.kernels.triton.head_norm import _head_norm

    tiles = listed_for("head_norm", architecture)[str(width)]
    numbers = ("tokens", "end", "heads", "batch_stride", "token_stride")
    signature = bf16(_head_norm, ("cosines", "sines"), numbers) | {"positions": "*i64"}
    options = {"PARTS": 2, "ROTARY": rotary, "LISTED": rotary, "ROUNDS": rounds}
    constants = {"WIDTH": width, "PAIRS": width // 2, **options, **tiles}
    made = compiled(_head_norm, signature, constants, architecture, tmp_path)
    assert made.spilled == 0
    assert "ld.global.v4" in made.ptx and "st.global.v4" in made.ptx


@pytest.mark.parametrize(("architecture", "tiles"), choices("joined_gelu"))
def test_gelu_behind_another_tensor_reads_wide(
    architecture: int, tiles: Tiles, tmp_path: Path
) -> None:
    from katz_graph.kernels.triton.joined_gelu import _joined_gelu

    numbers = ("tokens", "before", "width", "batch_stride", "token_stride")
    made = compiled(_joined_gelu, bf16(_joined_gelu, (), numbers), tiles, architecture, tmp_path)
    assert made.spilled == 0
    assert "ld.global.v4" in made.ptx and "st.global.v4" in made.ptx


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_norms_and_gates_of_features_read_wide(architecture: int, tmp_path: Path) -> None:
    """Features are channels-last."""
    from katz_graph.kernels.triton import geglu, group_norm, layer_norm
    from katz_graph.kernels.triton import upsampled_convolution as upsampled

    single = ("means", "squares", "mean_of", "scale_of")
    counts = ("channels", "width", "positions", "parts", "size", "across", "along", "blocks")
    strides = ("by_output", "by_input", "by_picture", "by_channel", "by_row", "by_column")
    counts += (*strides, "inputs", "outputs", "height")
    features = {"SHIFTED": True, "across": 1}
    merging = {"SIZE": group_norm.MAX_MERGED, "num_warps": group_norm.MERGING_WARPS}
    moments, normalise = (
        listed_for(f"group_norm_{name}", architecture)["320"] for name in ("moments", "normalise")
    )
    rows = {"ADDED": True, "WEIGHTED": True, "BIASED": True, "BLOCK": 2048}
    for function, constants in (
        (group_norm._moments, features | {"ONCE": False} | moments),
        (group_norm._moments, features | {"ONCE": True} | moments),
        (group_norm._groups, merging),
        (group_norm._normalise, features | {"SILU": True} | normalise),
        (layer_norm._layer_norm, rows | listed_for("residual_layer_norm", architecture)["2048"]),
        (
            upsampled._phase_weights,
            {"by_input": 1} | listed_for("phase_weights", architecture)["1280"],
        ),
        (
            upsampled._interleaved,
            {"by_channel": 1} | listed_for("interleaved", architecture)["1048576"],
        ),
        (geglu._geglu, {"SHORT": True} | listed_for("geglu", architecture)["2560"]),
    ):
        types = bf16(function, single, (*counts, "rows"))
        made = compiled(function, types, constants, architecture, tmp_path)
        assert made.spilled == 0
        if function is not group_norm._groups:  # reads by group
            assert re.search(r"ld\.global\S*\.v4", made.ptx)


@pytest.mark.parametrize(
    ("weight", "factor", "single"),
    [
        (torch.float16, torch.float16, True),
        (torch.bfloat16, torch.bfloat16, False),
        (torch.float16, torch.float32, True),
        (torch.float32, torch.float32, False),
    ],
)
@pytest.mark.parametrize(("architecture", "tiles"), choices("lora_patch"))
def test_the_patch_of_loras_fits_and_reads_wide(
    architecture: int,
    tiles: Tiles,
    weight: torch.dtype,
    factor: torch.dtype,
    single: bool,
    tmp_path: Path,
) -> None:
    from katz_graph.kernels.triton import lora_patch as patch

    signature = {
        "programs": "*i32",
        "layers": "*i64",
        "deltas": "*i64",
        "scales": "*fp32",
        "strength": "fp32",
    }
    constants: dict[str, Any] = {
        "WEIGHT": patch.FORMATS[weight],
        "FACTOR": patch.FORMATS[factor],
        "MULTIPLE": patch.ALIGNED,
        "FACTOR_MULTIPLE": patch.FACTORS_ALIGNED,
        "SINGLE": single,
        "PRECISION": patch.precision(weight),
        "UPCAST": False,
    }
    made = compiled(patch._lora_patch, signature, constants | tiles, architecture, tmp_path)
    assert made.shared <= SHARED[architecture] * 1024
    # in float32 a product is three, or uses no tensor cores: it takes all registers
    assert made.spilled == 0 or factor == torch.float32
    # addresses come from a table: Triton must be given their alignment
    assert "ld.global.v4" in made.ptx and "st.global.v4" in made.ptx


@pytest.mark.parametrize(
    ("architecture", "sizes", "expected"),
    [
        ((8, 0), (100, 1000), 1),
        ((8, 9), (100, 1000), 1),
        ((9, 0), (100, 1000), 3),
        ((12, 0), (100, 1000), 3),
        ((7, 5), (100, 1000), 1),
        # by ratio: 300 is nearer to 1000 than to 64
        ((8, 0), (300, 1000), 2),
        ((9, 0), (1, 1), 3),
    ],
)
def test_the_nearest_entry_counts(
    architecture: tuple[int, int],
    sizes: tuple[int, int],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {
        "one": {
            "sm80": {"64x1000": {"BLOCK": 1}, "1000x1000": {"BLOCK": 2}},
            "sm90": {"64x1000": {"BLOCK": 3}},
        }
    }
    monkeypatch.setattr(configurations, "read", lambda: table)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: architecture)
    choose = configurations.tiles.__wrapped__
    assert choose("one", torch.device("cuda"), *sizes) == {"BLOCK": expected}
