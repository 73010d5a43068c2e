"""Fields of a dataclass declare the options of a command."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from katz_graph.cli.command import command
from katz_graph.settings.options import option


@dataclass(frozen=True, slots=True)
class Bounds:
    most: int = option("in MB", 3 * 2**20, "--most-mb", min=0, unit=2**20)
    fixed: int = 7


@dataclass(frozen=True)
class Shared:
    folders: tuple[Path, ...] = option("a folder", ())
    names: tuple[str, ...] = option("a name", (), "--name", commas=True)
    kind: Literal["a", "b"] = option("a or b", "a")


@dataclass(frozen=True)
class Options(Shared):
    loud: bool = option("say more", False)
    colour: bool = option("say it in colour", True)
    internal: int = 5
    bounds: Bounds = field(default_factory=Bounds)


def invoked(*line: str, without: tuple[str, ...] = ()) -> tuple[Options | None, str]:
    app, given = typer.Typer(), []

    @command(app, without)
    def show(options: Options) -> None:
        """Show them."""
        given.append(options)

    result = CliRunner().invoke(app, list(line))
    return (given[0] if given else None), result.output


def test_without_options_a_command_gets_the_defaults() -> None:
    assert invoked()[0] == Options()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--folders", "x", "--folders", "y"], {"folders": (Path("x"), Path("y"))}),
        (["--name", "a, b", "--name", "c"], {"names": ("a", "b", "c")}),
        (["--kind", "b"], {"kind": "b"}),
        (["--loud", "--no-colour"], {"loud": True, "colour": False}),
        (["--most-mb", "1.5"], {"bounds": Bounds(3 * 2**19)}),
        (["--most-mb", "inf"], {"bounds": Bounds(sys.maxsize)}),
    ],
)
def test_given_values_have_the_field_s_type(line: list[str], expected: dict[str, Any]) -> None:
    assert invoked(*line)[0] == Options(**expected)


@pytest.mark.parametrize("line", ["--no-loud", "--internal 3", "--fixed 3", "--most-mb -1"])
def test_nothing_else_is_an_option(line: str) -> None:
    assert invoked(*line.split())[0] is None


def test_the_help_has_the_texts_and_defaults() -> None:
    text = invoked("--help")[1]
    expected = ("Show them.", "in MB", "[default: 3]", "say more", "--no-colour")
    assert all(part in text for part in expected)


def test_a_command_may_do_without_an_option() -> None:
    assert invoked(without=("loud", "most"))[0] == Options()
    assert invoked("--loud", without=("loud",))[0] is None
    with pytest.raises(TypeError, match="quiet"):
        invoked(without=("quiet",))
