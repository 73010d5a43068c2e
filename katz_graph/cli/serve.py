"""Runs `katz serve`: checks the server's options, then serves."""

from __future__ import annotations

import logging
import math
import stat
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from katz_graph.cli.options import ServeAliases
from katz_graph.cli.session import check_writable
from katz_graph.core.allowed_approximations import allowed_names
from katz_graph.core.devices import (
    AUTO,
    DeviceList,
    check_dtype,
    parse_lane,
    parse_link,
    threads_for,
)
from katz_graph.core.errors import InputError
from katz_graph.core.eviction import POLICIES
from katz_graph.core.phases import Phases, process_start
from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor.launch.fork_server import Forked, ForkServer
from katz_graph.executor.templates.budget import parse_template_place
from katz_graph.planner.changes import parse_places, permissions
from katz_graph.web.logs import set_up
from katz_graph.web.options import ServeOptions

SHORTEST_TOKEN = 16
LATE_ACTIONS = ("finish", "fail")
RUNNER = "katz_graph.web.runner.main:run_forked"


def resolved(options: ServeOptions, aliases: ServeAliases) -> ServeOptions:
    """Applies aliases to their options. InputError for conflicting options."""
    if aliases.cpu and options.devices not in (None, "cpu"):
        raise InputError(f"choose either --cpu or --devices {options.devices}")
    if (policy := options.control_net_policy) not in POLICIES:
        raise InputError(f"--control-net-policy {policy}: expected {' or '.join(POLICIES)}")
    if options.slo is not None and not 1 <= options.slo < math.inf:
        raise InputError(
            f"--slo {options.slo:g}: expected a number of at least 1, as no job ends before its "
            "predicted seconds"
        )
    if options.late not in LATE_ACTIONS:
        raise InputError(f"--late {options.late}: expected {' or '.join(LATE_ACTIONS)}")
    return replace(
        options,
        devices="cpu" if aliases.cpu else options.devices,
        token=_checked_token(options.token, aliases.token_file),
        cache=_cache_policy(options.cache, aliases),
    )


def serve(options: ServeOptions) -> None:
    """Checks the options, then serves until a signal arrives. InputError names the option."""
    phases = Phases("server", process_start())
    phases.end("load the command line")
    devices = options.device_list()
    parse_places(options.place, devices.names)
    check_dtype(options.dtype or AUTO, devices)
    parse_lane(options.devices_per_job, devices.names)
    allowed_names(options.allow)
    permissions(options.permit)
    parse_link(options.link)
    parse_template_place(Path(), options.template_gb, options.store_link)
    SharedRows.parse(options.shared_rows, options.limits.batch)
    check_writable(options.data.absolute(), "--data")
    if options.output is not None:
        check_writable(options.output.absolute(), "--output")
    if options.input is not None:
        check_writable(options.input.absolute(), "--input")
    if options.frontend is not None and not (options.frontend / "index.html").is_file():
        raise InputError(f"--frontend {options.frontend}: the folder has no index.html")
    set_up(options.json_logs)
    with ForkServer(
        threads_for(devices, options.threads), echo=logging.getLogger("katz.workers").info
    ) as workers:
        begin = partial(_begin, devices, workers)
        # before the rest of the server is imported
        first = None if begin() is None else _first_runner(workers)
        phases.end("check the options")
        from katz_graph.web.serve import serve as serve_forever

        serve_forever(options, lambda line: print(line, flush=True), begin, first, phases)


def _begin(devices: DeviceList, workers: ForkServer) -> int | None:
    """Starts the fork server unless it runs. Returns None if no worker runs on this host, or if the
    fork server cannot start; each runner then starts its own, or reports the error.
    """
    try:
        return workers.begin() if devices.launcher == "spawn" else None
    except (OSError, RuntimeError):  # no process or thread can be created
        return None


def _first_runner(workers: ForkServer) -> Forked | None:
    """Requests a process for the first runner. Returns None if it cannot be forked."""
    try:
        return workers.fork_early(RUNNER)
    except OSError:
        return None


def _checked_token(token: str | None, file: Path | None) -> str | None:
    """Returns the token that clients must send. InputError if it cannot be read, or is too easy to
    guess.
    """
    if token is not None and file is not None:
        raise InputError("choose either --token or --token-file")
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
            if stat.S_IMODE(file.stat().st_mode) & 0o077:
                print(
                    f"warning: {file} is readable by other users of this machine; run chmod 600 "
                    "on it",
                    file=sys.stderr,
                )
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--token-file {file}: {getattr(error, 'strerror', None) or 'not text'}"
            ) from None
    if token is None:
        return None
    if (
        len(token) < SHORTEST_TOKEN
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise InputError(
            f"the token has to be at least {SHORTEST_TOKEN} printable characters without spaces: "
            "openssl rand -hex 32"
        )
    return token


def _cache_policy(text: str | None, aliases: ServeAliases) -> str:
    """Returns the cache policy. InputError for several policies or an unknown one."""
    from katz_graph.executor.graph.result_store import ResultCache

    count = aliases.cache_lru
    said = [
        text,
        "classic" if aliases.cache_classic else None,
        None if count is None else f"lru:{count}" if count > 0 else "classic",
        "none" if aliases.cache_none else None,
    ]
    policies = [policy for policy in said if policy is not None]
    if len(policies) > 1:
        raise InputError(
            "choose only one of --cache, --cache-classic, --cache-lru and --cache-none"
        )
    policy = policies[0] if policies else "classic"
    ResultCache.parse(policy)
    return policy
