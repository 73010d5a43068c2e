"""CUDA errors are classified; a device fault in this process is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command import Katz
from stage_calls import replace_stage

from katz_graph.core.errors import RunError
from katz_graph.executor.worker.device_fault import device_fault, is_device_fault

ILLEGAL = (
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
    "asynchronously reported"
)


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ILLEGAL),
        RuntimeError(ILLEGAL),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError(
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, "
            "opb, m, n, k)`"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART"),
        RuntimeError("cuFFT error: CUFFT_EXEC_FAILED"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    ],
)
def test_a_device_has_failed(error: Exception) -> None:
    assert is_device_fault(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: invalid configuration argument"),
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RunError("CUDA error: said by somebody else"),
        ValueError(ILLEGAL),
    ],
)
def test_only_requested_work_has_failed(error: Exception) -> None:
    assert not is_device_fault(error) and device_fault(error) == ""


def test_a_fault_is_found_behind_the_error_of_a_node() -> None:
    error = RunError("node 3 (Guide): it did not work")
    error.__cause__ = RuntimeError(ILLEGAL)
    assert device_fault(error) == "CUDA error: an illegal memory access was encountered"


def test_a_fault_in_this_process_is_one_line_for_the_person(
    katz: Katz, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a worker to replace, `katz run` reports an error instead of crashing."""

    def fail(module: Any, given: Any) -> Any:
        raise torch.AcceleratorError(ILLEGAL)

    replace_stage(monkeypatch, "unet_mid", lambda real: fail)
    result = katz("run", Path(__file__).parents[2] / "workflows" / "txt2img.json")
    assert result.code == 1
    (line,) = result.errors
    assert (
        "device cpu: its worker ended: the device failed: CUDA error: an illegal memory access "
        "was encountered" in line
    )
