"""Imports go one way, commands that need no model load no model library, and the wheel is complete."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import networkx as nx
import pytest

from katz_graph.core.renamed_modules import RENAMED_MODULES

ROOT = Path(__file__).parents[2]
LAYERS = {
    "kernels": set(),
    "katz_graph": {"kernels"},
    "nodes": {"katz_graph"},
    "executor": {"katz_graph", "kernels"},
    "web": {"katz_graph", "nodes", "executor", "kernels"},
}
FLOORS = (  # folders of katz_graph, lowest first: each imports only from lower ones
    {"ir"},
    {"core", "serving"},
    {"files", "host"},
    {"sampling"},
    {"settings"},
    {"ipc"},
    {"node"},
    {"picture"},
    {"models"},
    {"adapters", "upscale", "mini"},
    {"planner"},
    {"checks"},
    {"comfy"},
    {"packs"},
    {"formats"},
)
MAX_ROOMS, MAX_ARROWS = 28, 160  # first folders of the package, and imports between them
# folders of katz_graph that may import every layer and that no other folder imports
COMPOSITION_ROOT = ("api", "bench", "cli", "testing")
BENCH_TESTS = ("test_bench_", "test_docs")  # prefixes of test files that may import benches


def layer(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] != "katz_graph":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "katz_graph"


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def sources() -> Iterator[tuple[str, Path]]:
    for name in LAYERS:
        for file in sorted((ROOT / name).rglob("*.py")):
            if "node_modules" not in file.parts:
                yield name, file


def test_imports_go_one_way() -> None:
    wrong = []
    for name, file in sources():
        room = file.relative_to(ROOT).parts[1] if name == "katz_graph" else ""
        # `__init__.py` names what `api` has, and imports it on first use
        exempt = room in (*COMPOSITION_ROOT, "__init__.py")
        for module in imports(file):
            target = layer(module)
            if target not in (None, name) and target not in LAYERS[name] and not exempt:
                wrong.append(f"{file.relative_to(ROOT)} imports {module}")
            above = {
                "api": ("cli", "bench", "testing"),
                "__init__.py": ("cli", "bench", "testing"),
                "cli": ("testing",),
                "testing": ("api", "cli", "bench"),
            }.get(room, () if exempt else COMPOSITION_ROOT)
            if module.startswith(tuple(f"katz_graph.{other}" for other in above)):
                wrong.append(f"{file.relative_to(ROOT)} imports {module} of the composition root")
    assert not wrong


def test_tests_of_the_engine_import_no_bench() -> None:
    files = (ROOT / "tests").rglob("*.py")
    assert [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted(files)
        if not file.name.startswith(BENCH_TESTS)
        for module in imports(file)
        if module.startswith("katz_graph.bench")
    ] == []


def test_rooms_import_from_lower_floors() -> None:
    floors = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    wrong, seen = [], set()
    for file in sorted((ROOT / "katz_graph").rglob("*.py")):
        room = file.relative_to(ROOT / "katz_graph").parts[0]
        if room in ("__init__.py", *COMPOSITION_ROOT):
            continue
        seen.add(room)
        for module in imports(file):
            target = (
                module.split(".")[1] if layer(module) == "katz_graph" and "." in module else room
            )
            if target != room and floors.get(target, len(FLOORS)) >= floors.get(room, -1):
                wrong.append(f"{file.relative_to(ROOT)} imports {module}")
    assert not wrong
    assert seen == set(floors)


def test_rooms_and_arrows_between_them_stay_few_and_no_modules_import_each_other() -> None:
    """Imports for type checkers count too."""
    modules = {module_name(file): file for _, file in sources()}
    imported, rooms = nx.DiGraph(), nx.DiGraph()
    for module, file in modules.items():
        rooms.add_node(room_of(module))
        for name in imports(file):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                imported.add_edge(module, target)
                if room_of(target) != room_of(module):
                    rooms.add_edge(room_of(module), room_of(target))
    circles = [sorted(one) for one in nx.strongly_connected_components(imported) if len(one) > 1]
    print(
        f"{len(rooms)} rooms, {rooms.number_of_edges()} arrows, {len(circles)} circles: {circles}"
    )
    assert len(rooms) <= MAX_ROOMS
    assert rooms.number_of_edges() <= MAX_ARROWS
    assert nx.is_directed_acyclic_graph(rooms)
    assert circles == []


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "katz_graph" else ("katz_graph", *parts)).removesuffix(
        ".__init__"
    )


def room_of(module: str) -> str:
    """Returns the first folder below the package; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


@pytest.mark.parametrize("old", RENAMED_MODULES)
def test_renamed_modules_are_found_by_their_old_names(
    monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    package, _, name = old.rpartition(".")
    monkeypatch.delattr(f"{package}.{name}", raising=False)
    new = import_module(RENAMED_MODULES[old])
    with pytest.warns(
        FutureWarning, match=f"^{old} is now {new.__name__}; the old name will be removed$"
    ):
        assert import_module(old) is new
    assert new.__spec__ is not None and new.__spec__.name == new.__name__


def test_no_module_of_ours_uses_an_old_name() -> None:
    files = [file for _, file in sources()] + sorted((ROOT / "tests").rglob("*.py"))
    renamed = tuple(RENAMED_MODULES)
    assert [
        f"{file.relative_to(ROOT)}: {module}"
        for file in files
        for module in imports(file)
        if f"{module}.".startswith(tuple(f"{old}." for old in renamed))
    ] == []


def test_commands_that_need_no_model_import_no_model_library() -> None:
    """All commands run in one interpreter; the failure names the first that imports such a library."""
    code = """
import sys
from katz_graph.cli.main import main
for command in ("nodes", "nodes KSampler", "models", "plan --help", "run --help", "serve --help", "--help"):
    sys.argv = ["katz", *command.split()]
    try:
        main()
    except SystemExit as done:
        assert not done.code, (command, done.code)
    heavy = {"torch", "diffusers", "transformers"} & set(sys.modules)
    assert not heavy, f"katz {command} imports {heavy}"
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_server_imports_no_model_library_and_runs_nothing() -> None:
    """The runner's process has all code that can crash or hang; the server only starts it."""
    modules = sorted(
        ".".join(("katz_graph", *file.relative_to(ROOT).with_suffix("").parts))
        for file in (ROOT / "web").glob("**/*.py")
    )
    server = [module.removesuffix(".__init__") for module in modules if ".runner." not in module]
    code = (
        "import importlib, sys\nfor module in sys.argv[1:]:\n    importlib.import_module(module)\n"
        "heavy = ('torch', 'diffusers', 'transformers', 'katz_graph.executor', "
        "'katz_graph.nodes')\n"
        "print(*(name for name in sys.modules if name.startswith(heavy)))"
    )
    result = subprocess.run([sys.executable, "-c", code, *server], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        # every process imports it
        ("katz_graph.executor.transport.connection", {"diffusers", "transformers", "scipy"}),
        # loads at the same time as the workers
        ("katz_graph.executor.engine", {"diffusers", "transformers", "scipy"}),
        # starts the workers before it loads the rest of the server
        ("katz_graph.cli.serve", {"torch", "numpy", "fastapi", "uvicorn"}),
        # starts the workers before it loads anything else
        ("katz_graph.web.runner.main", {"torch", "numpy"}),
        # answers requests for node types first
        ("katz_graph.web.runner.service", {"torch", "numpy"}),
    ],
)
def test_processes_that_start_first_load_no_model_library(module: str, heavy: set[str]) -> None:
    """Users wait for these imports: torch takes a second, diffusers three."""
    code = f"import sys, {module}\nprint(*sorted({heavy!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_every_package_is_declared() -> None:
    declared = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    found = set()
    for folder in [*LAYERS, "workflows"]:
        for file in (ROOT / folder).rglob("__init__.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join(parts if parts[0] == "katz_graph" else ("katz_graph", *parts)))
    assert declared == found


def test_the_wheel_runs_from_another_folder(tmp_path: Path) -> None:
    """Modules, data and entry points all come from the wheel."""
    source = tmp_path / "source"  # a copy, so that no leftover of build/ gets into the wheel
    for name in [*LAYERS, "workflows"]:
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    code = (
        "import sys\nfrom importlib.metadata import entry_points\nimport katz_graph.executor\n"
        "assert katz_graph.executor.__file__.startswith(sys.argv[1]), "
        "katz_graph.executor.__file__\n"
        "(script,) = entry_points(group='console_scripts', name='katz')\nsys.argv = ['katz', "
        "*sys.argv[2:]]\nscript.load()()"
    )
    # takes precedence over the editable install
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    workflow = tmp_path / "site" / "katz_graph" / "workflows" / "txt2img.json"
    for arguments, expected in (
        (["nodes"], "KSampler"),
        (["plan", str(workflow)], "sampler 5: 20 evaluations"),
    ):
        command = [sys.executable, "-c", code, str(tmp_path / "site"), *arguments]
        ran = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        assert expected in ran.stdout


def test_no_folder_has_more_modules_than_one_overlooks() -> None:
    """`nodes` and `bench` are exempt, because they are flat lists."""
    crowded = {
        str(folder.relative_to(ROOT)): len(modules)
        for layer in LAYERS
        for folder in (ROOT / layer, *(ROOT / layer).rglob("*"))
        if folder.is_dir() and folder.name not in ("nodes", "bench", "node_modules")
        if len(modules := [one for one in folder.glob("*.py") if one.stem != "__init__"]) > 20
    }
    assert crowded == {}
