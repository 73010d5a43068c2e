"""Documents agree with the program: options, variables, routes, metrics, bodies, and figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from web_server import Served, run

from katz_graph.cli.main import app
from katz_graph.settings import environment as settings
from katz_graph.web.http import bodies

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
PAGES = [page for page in PAGES if page.name != "log.md"]  # a record of experiments
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
SOURCES = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("katz_graph", "web", "executor", "nodes", "kernels")
    for path in (ROOT / folder).rglob("*.py")
)
OTHERS = {"--data-binary", "--help", "--include"}  # options of curl, of every command, of grep
OWN_PROGRAMS = {"--beside-shipped", "--record", "--strict", "--work"}  # of modules, and of mypy
TESTS = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("tests", "web/editor/e2e", "web/editor/src")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".ts", ".sh") and path != Path(__file__)
)
UNDESCRIBED = ("/api/assets", "/internal", "/ws", "/assets", "/extensions", "/templates", "/")

pytestmark = pytest.mark.defect(43)


def options() -> Iterator[tuple[str, frozenset[str], bool]]:
    """Yields each option: its command, its names, and whether one name is enough."""
    program = typer.main.get_command(app)
    assert isinstance(program, click.Group) or hasattr(program, "commands")
    for name, one in program.commands.items():
        for parameter in one.params:
            if parameter.param_type_name == "option" and "--help" not in parameter.opts:
                flags = frozenset((*parameter.opts, *parameter.secondary_opts))
                yield name, flags, bool(parameter.secondary_opts)


def named_options() -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", TEXT))


def test_every_option_is_named_on_a_page() -> None:
    named = named_options()
    missing = [
        (command, sorted(flags))
        for command, flags, either in options()
        if not (flags & named if either else flags <= named)
    ]
    assert missing == []


def test_every_option_that_a_page_names_exists() -> None:
    known = {flag for _, flags, _ in options() for flag in flags}
    known |= {"--version", "--install-completion"}
    assert named_options() - known - OTHERS - OWN_PROGRAMS == set()


@pytest.mark.defect(47)
def test_variables_are_those_that_the_program_reads() -> None:
    variable = re.compile(r"\bKATZ_[A-Z_]+\b")
    read = set(variable.findall(SOURCES)) | {*settings.WAITING}
    named = set(variable.findall(TEXT)) | {name for name in settings.WAITING if name in TEXT}
    assert read <= named
    assert named - read <= set(variable.findall(TESTS))


@pytest.mark.defect(47)
def test_defaults_of_variables_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares usage.md's table with `Settings.read` in an empty environment."""
    text = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(KATZ_\w+)` \| (?:`(.*?)`)? ?\|", text, re.MULTILINE))
    for name in (*rows, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    read = settings.Settings.read()
    _, fetched_bytes = settings.fetched_files()
    home = str(Path.home())
    assert rows == {
        "KATZ_MODELS": ":".join(map(str, read.models)),
        "KATZ_PACKS": ":".join(map(str, read.packs)),
        "KATZ_EXTRA_MODEL_PATHS": "",
        "KATZ_INPUT": str(read.input),
        "KATZ_OUTPUT": str(read.output),
        "KATZ_CACHE": str(read.cache).replace(home, "~"),
        "KATZ_FETCHED_GB": f"{fetched_bytes / settings.GB:g}",
        "KATZ_FETCH": "" if read.fetch is None else str(read.fetch),
        "KATZ_LORA_KEYS": settings.lora_keys(),
        "KATZ_CHECK_WEIGHTS": str(int(settings.checks_weights())),
        "KATZ_LIBRARY_PRODUCTS": "0",
        "KATZ_TOKEN": "",
    }


def paths_of(routes: Any, prefix: str = "") -> Iterator[str]:
    """Yields the paths of an app and of apps mounted in it."""
    for route in routes:
        path = prefix + getattr(route, "path", "")
        if getattr(route, "routes", None):
            yield from paths_of(route.routes, path)
        elif path:
            yield path


def test_routes_are_described_or_listed_as_left_out(tmp_path: Path) -> None:
    serving = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert [path for path in UNDESCRIBED if f"`{path}`" not in serving] == []

    async def scenario(server: Served) -> None:
        described = set((await server.client.get("/openapi.json")).json()["paths"])
        own = set(re.findall(r"(?:GET|POST|PUT|DELETE) (/[\w/{}.-]+)", serving))
        shapes = {re.sub(r"\{[^}]*\}", "ID", path) for path in described}
        shapes |= {path.removeprefix("/api") for path in shapes}
        shown = {path.removeprefix("/api").replace("/NAME", "/ID") for path in own}
        assert shown - shapes == {"/status"}

    run(tmp_path, scenario)


@pytest.mark.defect(47)
def test_the_table_of_metrics_matches_a_server(tmp_path: Path) -> None:
    serving = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = re.search(r"(?<=<!-- metrics -->\n).*?(?=<!-- end of metrics -->)", serving, re.DOTALL)

    async def scenario(server: Served) -> str:
        return (await server.client.get("/metrics")).text

    scraped = run(tmp_path, scenario)
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", scraped, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (.*)$", scraped, re.MULTILINE))
    rows = [f"| `{name}` | {kinds[name]} | {helps[name]} |" for name in sorted(helps)]
    rows = [row for row in rows if "_created`" not in row]
    head = ["| metric | type | meaning |", "|---|---|---|"]
    assert table is not None and table[0].split("\n") == [*head, *rows, ""]


@pytest.mark.defect(47)
def test_bodies_that_are_shown_are_accepted() -> None:
    serving = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```json (\w+)\n(.*?)^```", serving, re.DOTALL | re.MULTILINE)
    assert {name for name, _ in blocks} >= {"PromptBody", "PlanBody", "CancelBody", "MoveBody"}
    for name, text in blocks:
        model = getattr(bodies, name)
        data = json.loads(text)
        assert set(data) <= set(model.model_fields), name
        model.model_validate(data)
    choices = json.loads(dict(blocks)["PromptBody"])["extra_data"]["katz"]
    bodies.ChoicesBody.model_validate(choices)


@pytest.mark.defect(46)
def test_counts_that_pages_state_are_those_of_the_files() -> None:
    usage = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    nodes = json.loads((ROOT / "workflows" / "hires_inpaint_ui.json").read_text())["nodes"]
    assert f"{len(nodes)} nodes" in usage
    extending = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    counted = re.findall(r"`(tests/[\w/]+\.py)` is a whole family in (\d+) lines", extending)
    counted += re.findall(
        r"`(katz_graph/[\w/]+\.py)` has a table of names\s.*?in (\d+) lines", extending, re.DOTALL
    )
    assert len(counted) == 2
    for path, lines in counted:
        assert len((ROOT / path).read_text().splitlines()) == int(lines), path


def test_blocks_of_commands_give_the_reason_if_not_run() -> None:
    fences = re.findall(r"^```(sh.*)$", TEXT, re.MULTILINE)
    assert [fence for fence in fences if not re.fullmatch(r"sh( not-run: .+)?", fence)] == []
