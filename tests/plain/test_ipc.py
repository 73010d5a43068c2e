"""Child processes end as expected and send heartbeats."""

from __future__ import annotations

import subprocess
from io import TextIOWrapper

import pytest
from processes import eventually, runs

from katz_graph.ipc.child import (
    LONGEST_LINE,
    PYTHON,
    ChildOutput,
    describe_exit,
    kill_session,
    start_child,
)
from katz_graph.ipc.heartbeat import Heartbeat


def test_a_late_tick_of_silence_counts_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 2.0, 4.5, 100.0))  # the process was suspended before the last time
    monkeypatch.setattr("katz_graph.ipc.heartbeat.time.monotonic", lambda: next(times))
    heartbeat = Heartbeat(2.0)
    for silence in (2.0, 4.5, 8.5):
        heartbeat.tick()
        assert heartbeat.silence == silence
    heartbeat.received()
    assert heartbeat.silence == 0


def printing(code: str) -> tuple[subprocess.Popen[bytes], ChildOutput, list[str]]:
    """Starts a child that runs `code`; returns it, its output, and the forwarded pieces."""
    process, ours = start_child([*PYTHON, "-c", code], stdout=subprocess.PIPE)
    ours.close()
    echoed: list[str] = []
    assert process.stdout is not None
    return process, ChildOutput(TextIOWrapper(process.stdout), echoed.append, "test"), echoed


def test_child_output_is_forwarded_and_its_end_stored() -> None:
    long = LONGEST_LINE + 5
    process, output, echoed = printing(
        f"print('first'); print('x' * {long}); print(' last \\n'); exit(3)"
    )
    assert describe_exit(process.wait(10)) == "exit status 3"
    output.join()
    assert echoed == ["first\n", "x" * LONGEST_LINE, "xxxxx\n", " last \n", "\n"]
    assert output.after("it ended") == "it ended; it last printed: last"


def test_a_child_is_killed_with_its_children() -> None:
    code = "import subprocess as s; left = s.Popen(['sleep', '600']); print(left.pid); left.wait()"
    process, _, echoed = printing(code)
    eventually(lambda: bool(echoed), 10)
    kill_session(process.pid)
    assert describe_exit(process.wait(10)) == "killed by SIGKILL"
    eventually(lambda: not runs(int(echoed[0])), 10)
    kill_session(process.pid)  # again, with no process left
