"""`katz`: commands, options and exit codes. Torch and diffusers are not imported until a command
needs them.
"""

from __future__ import annotations

import errno
import io
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from katz_graph.cli.command import command
from katz_graph.cli.interrupts import heeded
from katz_graph.cli.options import (
    ConvertOptions,
    PlanOptions,
    ProfileOptions,
    RunOptions,
    ServeAliases,
    SubmitOptions,
    WarmOptions,
    WorkflowOptions,
)
from katz_graph.core.errors import Cancelled, InputError, KatzError
from katz_graph.host.garbage import expect_imports
from katz_graph.host.memory import memory_message
from katz_graph.settings.environment import prepare_to_compute
from katz_graph.settings.options import FolderOptions, TemplateOptions
from katz_graph.web.options import ServeOptions

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
template = typer.Typer(
    no_args_is_help=True, help="Manage the activations that --allow cached-edit reads."
)
app.add_typer(template, name="template")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"katz {metadata.version('katz-graph')}")
        raise typer.Exit


VERSION = typer.Option(
    "--version", help="print the version and exit", callback=_print_version, is_eager=True
)


@app.callback()
def katz(version: Annotated[bool, VERSION] = False) -> None:
    """Run, plan and serve workflows of diffusion models on one or several devices."""


WORKFLOW = "a workflow of any format, or a picture that carries one"
Workflow = Annotated[Path, typer.Argument(help=WORKFLOW, show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]


@command(app)
def run(workflow: Workflow, options: RunOptions, as_json: Json = False) -> None:
    """Run a workflow and write its pictures."""
    from katz_graph.cli.run import run as run_workflow

    run_workflow(workflow, options, as_json)


@command(app, without=("output", "model_bytes", "lora_bytes", "cuda_graphs", "targets"))
def plan(workflow: Workflow, options: PlanOptions, as_json: Json = False) -> None:
    """Show what a workflow compiles to, without running a model."""
    from katz_graph.cli.run import plan as plan_workflow

    plan_workflow(workflow, options, as_json)


@command(app, without=("models", "extra_model_paths", "packs", "input"))
def submit(workflow: Workflow, options: SubmitOptions, as_json: Json = False) -> None:
    """Run a workflow on a server and fetch its pictures."""
    from katz_graph.cli.submit import submit as submit_workflow

    submit_workflow(workflow, options, as_json)


@command(app, without=("models", "extra_model_paths", "input", "output"))
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help=WORKFLOW, show_default=False)],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="the file to write; - prints it", show_default=False),
    ],
    options: ConvertOptions,
) -> None:
    """Write a workflow in another format."""
    from katz_graph.cli.convert import convert as convert_workflow

    convert_workflow(source, target, options)


@command(app, without=("models", "input", "output"))
def nodes(
    folders: FolderOptions,
    name: Annotated[
        str | None, typer.Argument(help="node type to explain", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the node types, or explain one."""
    from katz_graph.cli.listings import show_nodes

    show_nodes(folders, name, as_json)


@command(app, without=("packs", "input", "output"))
def models(folders: FolderOptions, as_json: Json = False) -> None:
    """List the models that loaders can choose from."""
    from katz_graph.cli.listings import show_models

    show_models(folders, as_json)


@command(
    app,
    without=("seed", "place", "link", "allow", "output", "model_bytes", "lora_bytes", "targets"),
)
def profile(
    options: ProfileOptions,
    workflow: Annotated[
        Path | None,
        typer.Argument(help="workflow whose stages to measure, too", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure devices, or a workflow's stages, LoRAs or similar prompts on them."""
    from katz_graph.cli.profile import (
        check,
        profile_devices,
        profile_loras,
        profile_similar,
        profile_workflow,
    )

    check(workflow, options)
    if workflow is None:
        profile_devices(options, as_json)
    elif options.loras:
        profile_loras(workflow, options, as_json)
    elif options.similar:
        profile_similar(workflow, options, as_json)
    else:
        profile_workflow(workflow, options, as_json)


@command(
    app,
    without=(
        *("seed", "output", "devices", "threads", "place", "link", "allow"),
        *("model_bytes", "lora_bytes", "cuda_graphs", "targets"),
    ),
)
def warm(
    workflows: Annotated[list[Path], typer.Argument(help=WORKFLOW, show_default=False)],
    options: WarmOptions,
    as_json: Json = False,
) -> None:
    """Compile the GPU kernels of workflows ahead, without running a model."""
    from katz_graph.cli.warm import warm as warm_workflows

    warm_workflows(workflows, options, as_json)


@command(template, without=("seed", "output", "link", "allow", "targets"))
def fill(workflow: Workflow, options: WorkflowOptions, as_json: Json = False) -> None:
    """Compute and store the activations of the pictures that a workflow edits."""
    from katz_graph.cli.template import fill as fill_templates

    fill_templates(workflow, options, as_json)


@command(template, named="list")
def list_templates(options: TemplateOptions, as_json: Json = False) -> None:
    """List the stored templates, the most recently used first."""
    from katz_graph.cli.template import show

    show(options, as_json)


@command(template)
def drop(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="the begin of a name, or all", show_default=False),
    ],
    options: TemplateOptions,
) -> None:
    """Remove stored templates, except those in use."""
    from katz_graph.cli.template import drop as drop_templates

    drop_templates(names, options)


@command(app)
def serve(options: ServeOptions, aliases: ServeAliases) -> None:
    """Serve workflows over HTTP and websockets, with a queue that survives a crash."""
    from katz_graph.cli.serve import resolved
    from katz_graph.cli.serve import serve as serve_workflows

    serve_workflows(resolved(options, aliases))


@app.command()
def schema() -> None:
    """Print JSON Schemas of a server's messages, of plans and reports."""
    import json

    from katz_graph.web.schema import schema

    print(json.dumps(schema(), indent=2))


@command(app)
def bench(
    name: Annotated[
        str | None,
        typer.Argument(help="bench to run; without a name, lists all"),
    ] = None,
    as_json: Json = False,
    svg: Annotated[
        Path | None,
        typer.Option(help="file for a drawing of the result, if the bench supports it"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="draw only this case of a search"),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="part of a bench that has parts; default: the first"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="folder for rows, written as they are measured"),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="file for the table of the fastest tiles of kernels"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="run all parts that fit into this time, the most useful first", min=0),
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(
            help="another server to measure with the same workflows", metavar="comfyui=PATH"
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="simulate devices instead of measuring a server"),
    ] = False,
    loads: Annotated[
        str | None,
        typer.Option(help="shares of a server's capacity", metavar="0.9,1.1,..."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="jobs at each load", min=1),
    ] = None,
) -> None:
    """Run a benchmark, and compare its figures with their bounds."""
    from katz_graph.bench.command import run_bench

    options = {"part": part, "out": out, "write": write, "minutes": minutes, "peer": peer}
    options |= {"simulate": simulate or None, "loads": loads, "jobs": jobs}
    if not run_bench(name, as_json, svg, seed=seed, **options):
        raise typer.Exit(1)


def main() -> None:
    """Runs `katz`. Prints every error as a line, never as a traceback."""
    prepare_to_compute()
    expect_imports()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # its encoding may lack the characters of plan drawings
            stream.reconfigure(errors="backslashreplace")
    with heeded():
        _run()


def _run() -> None:
    try:
        result = app(standalone_mode=False)
        if result == Cancelled.exit_code:  # typer turns Ctrl-C into an exit
            _fail("cancelled", result)
        sys.exit(result if isinstance(result, int) else 0)
    except typer.Exit as exit:
        sys.exit(exit.exit_code)
    except KatzError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("cancelled", Cancelled.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except MemoryError as error:
        _fail(memory_message(error), 1)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = f"{error.filename}: " if error.filename else ""
        _fail(where + ("the disk is full" if full else error.strerror or str(error)), 1)
    except Exception as error:
        if _is_usage(error):
            _fail(getattr(error, "format_message")(), InputError.exit_code)  # noqa: B009
        _fail(f"internal error: {type(error).__name__}: {error}".splitlines()[0], 1)


def _is_usage(error: Exception) -> bool:
    """Returns whether the error is a click usage error, for any click module that typer uses."""
    return any(kind.__name__ == "ClickException" for kind in type(error).__mro__)


def _fail(message: str, code: int) -> None:
    for line in message.split("\n"):
        print(f"error: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
