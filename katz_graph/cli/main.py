"""`katz`: commands, options and exit codes. Imports neither torch nor diffusers before a command needs them."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from katz_graph.cli.session import Options
from katz_graph.errors import Cancelled, InputError, KatzError
from katz_graph.garbage import expect_imports
from katz_graph.out_of_memory import memory_message
from katz_graph.settings import TOKEN, prepare_to_compute

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__.split(":")[0] if __doc__ else None
)

WorkflowArgument = Annotated[Path, typer.Argument(help="a workflow of any format, or a picture that carries one", show_default=False)]
Sets = Annotated[list[str] | None, typer.Option("--set", help="NODE.INPUT=VALUE, for example 3.steps=30")]
Seed = Annotated[int | None, typer.Option(help="for every seed in the workflow", min=0)]
Devices = Annotated[str | None, typer.Option(help="cpu, cuda:0, cpu*2, cuda:0,cuda:1, cuda*4, ray")]
Dtype = Annotated[str | None, typer.Option(help="number format: auto, float32, bfloat16, float16; auto: float16 on GPUs, else float32")]
Threads = Annotated[int | None, typer.Option(help="of each device; all cores for one device, one for each of several")]
ModelGb = Annotated[
    float | None, typer.Option("--model-gb", min=0, help="of each device, for models; what is free less what computing needs, unless given")
]
Place = Annotated[list[str] | None, typer.Option(help="STAGE=DEVICE: pin a stage; several times: any of them")]
LinkOption = Annotated[
    str | None, typer.Option("--link", help="GBPS[,MS]: what links between devices are taken for; measured unless given")
]
Allow = Annotated[str, typer.Option(help="approximations by name: stale-controlnet")]
ModelFolders = Annotated[
    list[Path] | None, typer.Option("--models", exists=True, file_okay=False, help="a folder of models (checkpoints/, loras/, ...)")
]
PackFolders = Annotated[list[Path] | None, typer.Option("--packs", help="a folder of node packs")]
ExtraPaths = Annotated[list[Path] | None, typer.Option(help="an extra_model_paths.yaml: further folders of models and packs")]
InputFolder = Annotated[Path | None, typer.Option("--input", help="where LoadImage looks")]
Json = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]


@app.command()
def run(
    workflow: WorkflowArgument,
    sets: Sets = None,
    seed: Seed = None,
    devices: Devices = None,
    dtype: Dtype = None,
    threads: Threads = None,
    place: Place = None,
    link: LinkOption = None,
    allow: Allow = "",
    model_gb: ModelGb = None,
    output: Annotated[Path | None, typer.Option(help="where pictures go")] = None,
    trace: Annotated[Path | None, typer.Option(help="write a trace for Perfetto")] = None,
    why: Annotated[bool, typer.Option("--why", help="say for every node why it ran")] = False,
    targets: Annotated[list[str] | None, typer.Option("--target", metavar="NODE", help="run only what this node needs, and it")] = None,
    cache: Annotated[str, typer.Option(help="which results stay in memory: classic, lru:N, none")] = "classic",
    models: ModelFolders = None,
    extra_model_paths: ExtraPaths = None,
    packs: PackFolders = None,
    input: InputFolder = None,
    as_json: Json = False,
) -> None:
    """Run a workflow and write its pictures."""
    from katz_graph.cli.run import RunOptions
    from katz_graph.cli.run import run as run_workflow

    folders = (models or (), packs or (), input, output, extra_model_paths or ())
    options = Options(workflow, sets or (), seed, devices, threads, place or (), link, allow, *folders, targets or (), model_gb, dtype)
    run_workflow(options, RunOptions(trace, why, as_json, cache))


@app.command()
def plan(
    workflow: WorkflowArgument,
    sets: Sets = None,
    seed: Seed = None,
    devices: Devices = None,
    dtype: Dtype = None,
    threads: Threads = None,
    link: LinkOption = None,
    place: Place = None,
    allow: Allow = "",
    after: Annotated[
        str, typer.Option(help="stop behind this pass: expand, variants, fit, hoist, decompose, cost, search, segment, emit")
    ] = "emit",
    svg: Annotated[Path | None, typer.Option(help="draw two evaluations")] = None,
    models: ModelFolders = None,
    extra_model_paths: ExtraPaths = None,
    packs: PackFolders = None,
    input: InputFolder = None,
    as_json: Json = False,
) -> None:
    """Show what a workflow compiles to, without running a model."""
    from katz_graph.cli.plan import plan as plan_workflow

    folders = (models or (), packs or (), input, None, extra_model_paths or ())
    options = Options(workflow, sets or (), seed, devices, threads, place or (), link, allow, *folders, dtype=dtype)
    plan_workflow(options, after, as_json, svg)


@app.command()
def submit(
    workflow: WorkflowArgument,
    server: Annotated[str, typer.Option(metavar="URL", help="of a running katz serve")] = "http://127.0.0.1:8188",
    sets: Sets = None,
    seed: Seed = None,
    token: Annotated[
        str | None, typer.Option(envvar=TOKEN, help="what the server asks for; on the command line others here can read it")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="where pictures go")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="print the job's id and leave")] = False,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="refuse or give up what cannot be done by then", min=0)] = None,
    priority: Annotated[float | None, typer.Option(help="place in the queue: the lowest goes first; others count up from 1")] = None,
    as_json: Json = False,
) -> None:
    """Run a workflow on a server and fetch its pictures."""
    from katz_graph.cli.submit import SubmitOptions
    from katz_graph.cli.submit import submit as submit_workflow

    submit_workflow(SubmitOptions(workflow, server, sets or (), seed, token, output, not no_wait, as_json, deadline, priority))


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="a workflow of any format, or a picture that carries one", show_default=False)
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="the file to write; - prints it", show_default=False)],
    to: Annotated[str, typer.Option(help="api, ui or katz")] = "api",
    object_info: Annotated[
        str | None, typer.Option(metavar="FILE|URL", help="a server's description of its nodes, for those that are not known here")
    ] = None,
    packs: PackFolders = None,
) -> None:
    """Write a workflow in another format."""
    from katz_graph.cli.convert import convert as convert_workflow

    convert_workflow(source, target, to, object_info, packs or ())


@app.command()
def nodes(
    name: Annotated[str | None, typer.Argument(help="explain this one", show_default=False)] = None,
    packs: PackFolders = None,
    extra_model_paths: ExtraPaths = None,
    as_json: Json = False,
) -> None:
    """List the node types, or explain one."""
    from katz_graph.cli.listings import show_nodes

    show_nodes(name, packs or (), as_json, extra_model_paths or ())


@app.command()
def models(models: ModelFolders = None, extra_model_paths: ExtraPaths = None, as_json: Json = False) -> None:
    """List the models that loaders can choose from."""
    from katz_graph.cli.listings import show_models

    show_models(models or (), as_json, extra_model_paths or ())


@app.command()
def profile(
    workflow: Annotated[Path | None, typer.Argument(help="measure every stage of its samplers too", show_default=False)] = None,
    sets: Sets = None,
    devices: Devices = None,
    dtype: Dtype = None,
    threads: Threads = None,
    models: ModelFolders = None,
    extra_model_paths: ExtraPaths = None,
    packs: PackFolders = None,
    input: InputFolder = None,
    as_json: Json = False,
) -> None:
    """Measure devices, or a workflow's stages on them, anew: what the planner's predictions rest on."""
    from katz_graph.cli.profile import profile_devices, profile_workflow

    if workflow is None:
        profile_devices(devices or "cpu", dtype or "auto", threads, as_json)
        return
    folders = (models or (), packs or (), input, None, extra_model_paths or ())
    profile_workflow(Options(workflow, sets or (), None, devices, threads, (), None, "", *folders, dtype=dtype), as_json)


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="the address to listen on; any but loopback needs a token")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free", min=0, max=65535)] = 8188,
    data: Annotated[Path, typer.Option(help="the server's own folder: jobs, people's settings and files")] = Path("katz-data"),
    token: Annotated[
        str | None, typer.Option(envvar=TOKEN, help="what clients have to show; on the command line others here can read it")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="a file with the token")] = None,
    models: ModelFolders = None,
    packs: PackFolders = None,
    extra_model_paths: Annotated[
        list[Path] | None, typer.Option("--extra-model-paths", "--extra-model-paths-config", help="an extra_model_paths.yaml")
    ] = None,
    input: InputFolder = None,
    output: Annotated[Path | None, typer.Option("--output", "--output-directory", help="where pictures go")] = None,
    devices: Devices = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="the same as --devices cpu")] = False,
    dtype: Dtype = None,
    threads: Threads = None,
    place: Place = None,
    link: LinkOption = None,
    allow: Allow = "",
    cache: Annotated[str | None, typer.Option(help="which results stay in memory: classic, lru:N, none")] = None,
    cache_classic: Annotated[bool, typer.Option("--cache-classic", help="the same as --cache classic")] = False,
    cache_lru: Annotated[int | None, typer.Option(metavar="N", min=0, help="the same as --cache lru:N; 0: classic")] = None,
    cache_none: Annotated[bool, typer.Option("--cache-none", help="the same as --cache none")] = False,
    jobs_at_once: Annotated[int | None, typer.Option(min=1, help="one for each device, unless given")] = None,
    devices_per_job: Annotated[int | None, typer.Option(min=1, help="besides those of the ControlNets; all, unless given")] = None,
    model_gb: ModelGb = None,
    control_net_gb: Annotated[float | None, typer.Option(min=0, help="of each device, for ControlNets; no limit, unless given")] = None,
    control_net_policy: Annotated[str, typer.Option(help="which ControlNets go first: lru, lfu")] = "lru",
    spare: Annotated[bool, typer.Option(help="keep a loaded worker that stands in for one that is lost")] = True,
    queue_limit: Annotated[int, typer.Option(min=1, help="jobs that wait; one more is refused with the time to come again")] = 64,
    max_upload_size: Annotated[float, typer.Option(metavar="MB", min=0, help="of a picture that is uploaded")] = 100,
    allowed_host: Annotated[list[str] | None, typer.Option(help="a further name that clients call this server by")] = None,
    allowed_origin: Annotated[list[str] | None, typer.Option(help="a further web page that may use it: https://example.org")] = None,
    previews: Annotated[bool, typer.Option(help="show the running picture to its owner")] = True,
    keep_days: Annotated[float | None, typer.Option(min=0, help="age at which finished jobs are forgotten; never, unless given")] = None,
    keep_gb: Annotated[float | None, typer.Option(min=0, help="of finished jobs' temporary files")] = None,
    drain_seconds: Annotated[float, typer.Option(min=0, help="for running jobs at the end, before they go back to the queue")] = 30,
    log_json: Annotated[bool, typer.Option("--log-json", help="log a JSON object a line")] = False,
    multi_user: Annotated[bool, typer.Option("--multi-user", help="settings apart for each name in the header Comfy-User")] = False,
    frontend: Annotated[Path | None, typer.Option(metavar="DIR", help="a built front end to serve at /")] = None,
) -> None:
    """Serve workflows over HTTP and websockets, with a queue that survives a crash."""
    from dataclasses import replace

    from katz_graph.cli import serve as server
    from katz_graph.cli.amounts import gigabytes, megabytes
    from katz_graph.web.options import Limits, ServeOptions

    if cpu and devices not in (None, "cpu"):
        raise InputError(f"give one of --cpu and --devices {devices}")
    limits = replace(Limits(), queue=queue_limit, upload_bytes=megabytes(max_upload_size))
    server.serve(
        ServeOptions(
            host=host,
            port=port,
            data=data,
            token=server.read_token(token, token_file),
            allowed_hosts=server.listed(allowed_host),
            allowed_origins=server.listed(allowed_origin),
            models=tuple(models or ()),
            packs=tuple(packs or ()),
            input=input,
            output=output,
            extra_model_paths=tuple(extra_model_paths or ()),
            devices=devices or "cpu",
            dtype=dtype or "auto",
            threads=threads,
            place=tuple(place or ()),
            link=link,
            allow=allow,
            cache=server.CacheChoice(cache, cache_classic, cache_lru, cache_none).chosen(),
            jobs_at_once=jobs_at_once,
            devices_per_job=devices_per_job,
            model_bytes=gigabytes(model_gb),
            control_net_bytes=gigabytes(control_net_gb),
            control_net_policy=server.control_net_policy(control_net_policy),
            spare=spare,
            previews=previews,
            keep_days=keep_days,
            keep_bytes=gigabytes(keep_gb),
            drain_seconds=drain_seconds,
            json_logs=log_json,
            frontend=frontend,
            multi_user=multi_user,
            limits=limits,
        )
    )


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="which one; without a name they are listed")] = None,
    as_json: Json = False,
    svg: Annotated[Path | None, typer.Option(help="draw what it found, where the bench can")] = None,
    seed: Annotated[int | None, typer.Option(help="the one case of a search that this draws")] = None,
) -> None:
    """Measure, and compare with the bounds that must hold."""
    from katz_graph.bench.command import run_bench

    if not run_bench(name, as_json, svg, seed):
        raise typer.Exit(1)


def main() -> None:
    """Entry point of `katz`: every error is a line, never a traceback."""
    prepare_to_compute()
    expect_imports()
    try:
        result = app(standalone_mode=False)
        if result == Cancelled.exit_code:  # typer takes Ctrl-C for an exit
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
    """Wrong options: click's own errors, whichever click typer brings."""
    return any(kind.__name__ == "ClickException" for kind in type(error).__mro__)


def _fail(message: str, code: int) -> None:
    for line in message.split("\n"):
        print(f"error: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
