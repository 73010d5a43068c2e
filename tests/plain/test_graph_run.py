"""Nodes run in the right order, and failures have the right effects."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from trivial_graphs import SUM, custom
from trivial_nodes import RecordingContext, node, run

from katz_graph.core.errors import Cancelled, DiskFull, InputError, OutOfMemory, RunError
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.files.output_files import write_numbered

# Execution and order.


def test_only_needed_nodes_run_in_file_order() -> None:
    ran = run(SUM)
    assert ran.result.outputs == {"4": (3,)}
    assert ran.nodes("start") == ["9", "3", "5", "4"]


def test_targets() -> None:
    assert run(SUM, targets=["7", "5"]).nodes("start") == ["9", "3", "5", "7"]
    with pytest.raises(InputError, match='target node "99" is not in the workflow'):
        run(SUM, targets=["99"])
    with pytest.raises(InputError, match="no output node"):
        run({"1": node("Number", value=0)})
    with pytest.raises(InputError, match="no output node"):
        run(SUM, targets=[])


def test_nodes_that_two_read_run_once() -> None:
    document = {
        "1": node("Number", value=2),
        "2": node("Add", a=["1", 0], b=["1", 0]),
        "3": node("Save", value=["2", 0]),
        "4": node("Save", value=["1", 0]),
    }
    ran = run(document)
    assert ran.result.outputs == {"3": (4,), "4": (2,)}
    assert sorted(ran.nodes("start")) == ["1", "2", "3", "4"]


def test_the_order_does_not_depend_on_the_hash_seed() -> None:
    names = [f"node-{number * 7919 % 101}" for number in range(60)]
    document: dict[str, Any] = {
        name: node("Number", value=number) for number, name in enumerate(names)
    }
    document |= {f"sum-{name}": node("Add", a=[name, 0], b=[names[0], 0]) for name in names}
    document |= {f"out-{name}": node("Save", value=[f"sum-{name}", 0]) for name in reversed(names)}
    code = (
        "import sys, json; from trivial_nodes import run; "
        "print(json.dumps(run(json.load(sys.stdin)).nodes('start')))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(document),
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42")
    }
    assert len(seen) == 1
    assert json.loads(seen.pop())[:3] == names[:3]


def test_links_to_undeclared_inputs_are_followed() -> None:
    """ComfyUI packs accept inputs that they do not declare."""
    types = custom(
        "Collect", lambda context, values: (dict(values),), is_output=True, undeclared="links"
    )
    document = {"1": node("Number", value=4), "2": node("Collect", anything=["1", 0])}
    assert run(document, types=types).result.outputs["2"] == ({"anything": 4},)


def test_a_linked_knob_is_checked_as_a_literal_is() -> None:
    document = {
        "1": node("Number", value=50),
        "2": node("Knobs", count=["1", 0]),
        "3": node("Save", value=["2", 0]),
    }
    with pytest.raises(
        InputError,
        match=r"node 2 \(Knobs\): input count: got 50, expected a whole number from 1 to 10",
    ):
        run(document).result.raise_failures()
    document["1"] = node("Number", value=5)
    assert run(document).result.outputs["3"] == (5,)


def test_a_single_output_may_be_a_tuple() -> None:
    """Conditioning is a tuple and must not be taken for several outputs."""
    types = custom("Pair", lambda context, values: ((1, 2),))
    assert run({"1": node("Pair"), "2": node("Save", value=["1", 0])}, types=types).result.outputs[
        "2"
    ] == ((1, 2),)


# Failures.


def failing(kind: str = "ValueError", title: str = "") -> dict[str, Any]:
    bad = {**node("Fail", error=kind, value=["1", 0]), "_meta": {"title": title}}
    return {
        "1": node("Number", value=1),
        "2": bad,
        "3": node("Echo", value=["2", 0]),
        "4": node("Save", value=["3", 0]),
        "5": node("Save", value=["1", 0]),
    }


def test_a_failing_node_leaves_independent_outputs_alone() -> None:
    result = run(failing()).result
    assert result.outputs == {"5": (1,)} and result.refused == ("4",)
    with pytest.raises(RunError) as caught:
        result.raise_failures()
    assert caught.value.exit_code == 1
    assert str(caught.value).split("\n") == [
        f"node 2 (Fail): ValueError: shapes do not fit (trivial_nodes.py:{raise_line()})",
        "some outputs were refused: node 4",
    ]
    assert isinstance(caught.value.__cause__.__cause__, ValueError)  # type: ignore[union-attr]


@pytest.mark.defect(31)
@pytest.mark.parametrize("others", [False, True], ids=["", "beside an output that is written"])
def test_a_full_disk_stays_one_whatever_else_happened(tmp_path: Path, others: bool) -> None:
    def refuse(file: IO[bytes]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    types = custom("Write", lambda context, values: write_numbered(tmp_path, "a", ".png", refuse))
    graph = {"1": node("Write"), "2": node("Save", value=["1", 0])}
    if others:
        graph |= {"3": node("Number", value=1), "4": node("Save", value=["3", 0])}
    result = run(graph, types=types).result
    with pytest.raises(DiskFull, match="No space left"):
        result.raise_failures()
    assert not list(tmp_path.iterdir())


def raise_line() -> int:
    source = (Path(__file__).parent / "trivial_nodes.py").read_text().split("\n")
    return source.index("        raise errors[self.error]") + 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "MemoryError",
            'node 2 (Fail "upscale"): out of memory; use a smaller picture or batch, tiles, a '
            "smaller number format",
        ),
        (
            "full disk",
            'node 2 (Fail "upscale"): the disk is full (/out/picture.png); free some space or '
            "choose another --output",
        ),
        ("exit", 'node 2 (Fail "upscale"): SystemExit: 3'),
    ],
)
def test_failures_are_one_clear_line(kind: str, expected: str) -> None:
    (error,) = run(failing(kind, "upscale")).result.failures.values()
    assert str(error).startswith(expected) and "\n" not in str(error)


def test_foreign_code_may_raise_anything() -> None:
    class Odd(BaseException):
        pass

    def leave(context: Any, values: Any) -> Any:
        raise Odd("gone")

    (error,) = run(
        {"1": node("Leave"), "2": node("Save", value=["1", 0])}, types=custom("Leave", leave)
    ).result.failures.values()
    assert str(error).startswith("node 1 (Leave): Odd: gone")


def test_out_of_device_memory() -> None:
    torch = pytest.importorskip("torch")

    def allocate(context: Any, values: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\n(GPU 0 ...)")

    (error,) = run(
        {"1": node("Big"), "2": node("Save", value=["1", 0])}, types=custom("Big", allocate)
    ).result.failures.values()
    assert isinstance(error, OutOfMemory)
    assert str(error) == (
        "node 1 (Big): out of memory: 21.47 GB more could not be allocated; use a smaller picture "
        "or batch, tiles, a smaller number format (--dtype) or a smaller model"
    )


def test_wrong_input_found_while_running_is_wrong_input() -> None:
    def refuse(context: Any, values: Any) -> Any:
        raise InputError("a.safetensors: the header lies about its size")

    types = custom("Load", refuse)
    with pytest.raises(InputError) as caught:
        run(
            {"1": node("Load"), "2": node("Save", value=["1", 0])}, types=types
        ).result.raise_failures()
    assert str(caught.value) == "node 1 (Load): a.safetensors: the header lies about its size"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, "returned a NoneType, expected 1 outputs"),
        ((1, 2), "returned 2 outputs, expected 1 outputs"),
    ],
)
def test_a_node_that_gives_the_wrong_number_of_outputs(result: Any, expected: str) -> None:
    (error,) = run(
        {"1": node("Odd"), "2": node("Save", value=["1", 0])},
        types=custom("Odd", lambda context, values: result),
    ).result.failures.values()
    assert expected in str(error)


def test_each_failure_is_reported_once_and_named_in_events() -> None:
    ran = run({**failing(), "6": node("Save", value=["2", 0])})
    assert ran.nodes("failed") == ["2"]
    assert list(ran.result.failures) == ["2"]
    assert ran.result.refused == ("4", "6")


def test_failed_nodes_run_again() -> None:
    cache = ResultCache()
    run(failing(), cache)
    again = run(failing(), cache)
    assert again.nodes("start") == ["2"] and again.nodes("failed") == ["2"]


def test_cancellation_between_nodes_keeps_finished_results() -> None:
    cache = ResultCache()
    with pytest.raises(Cancelled):
        run(SUM, cache, context=RecordingContext(cancel_after=2))
    assert run(SUM, cache).nodes("start") == ["5", "4"]


def test_ctrl_c_is_a_cancellation() -> None:
    with pytest.raises(Cancelled) as caught:
        run(failing("KeyboardInterrupt"))
    assert caught.value.exit_code == 130
