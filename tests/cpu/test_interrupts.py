"""Ctrl-C is obeyed where Python would lose it or abort."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import signal, sys, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
from katz_graph.cli.interrupts import heeded
from katz_graph.host.garbage import expect_imports, imports_are_done

class Thing:
    pass

def interrupt(_):
    signal.raise_signal(signal.SIGINT)
"""
LOST = """
    thing = Thing()
    watcher = weakref.ref(thing, interrupt)
    del thing
    time.sleep(20)
"""


def ended(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code], cwd=folder, capture_output=True, text=True
    )


def test_one_that_a_callback_swallows_comes_again(tmp_path: Path) -> None:
    prints = "    print('not heeded')\n"
    done = ended(f"with heeded():\n{LOST}{prints}", tmp_path)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr, done
    assert "not heeded" not in done.stdout and "Exception ignored" not in done.stderr


def test_python_alone_loses_it(tmp_path: Path) -> None:
    """Shows that the test above can fail."""
    short = LOST.replace("sleep(20)", "sleep(0.5)")
    done = ended(f"if True:\n{short}    print('not heeded')\n", tmp_path)
    assert done.returncode == 0 and "not heeded" in done.stdout
    assert "Exception ignored" in done.stderr


@pytest.mark.parametrize("expected", [True, False])
def test_one_in_an_import_ends_the_process_before_work_begins(
    expected: bool, tmp_path: Path
) -> None:
    """The module catches the KeyboardInterrupt of its import; C++ code in libraries cannot."""
    (tmp_path / "stubborn.py").write_text(
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\n"
        "except BaseException as error:\n    print(type(error).__name__)\n"
    )
    phase = "expect_imports()" if expected else "expect_imports(); imports_are_done()"
    done = ended(f"{phase}\nwith heeded():\n    import stubborn\n    print('on')\n", tmp_path)
    if expected:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: cancelled\n")
    else:
        assert (done.returncode, done.stdout) == (0, "KeyboardInterrupt\non\n")


def test_other_unretrieved_errors_are_reported_as_before(tmp_path: Path) -> None:
    done = ended(
        "with heeded():\n    thing = Thing()\n"
        "    watcher = weakref.ref(thing, lambda _: 1 / 0)\n    del thing\n",
        tmp_path,
    )
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr


def test_whoever_ignores_it_goes_on_doing_so(tmp_path: Path) -> None:
    done = ended(
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "with heeded():\n    signal.raise_signal(signal.SIGINT)\n    print('on')\n",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
