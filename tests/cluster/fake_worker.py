"""Fake worker loops for tests: they answer pings like the real one, and misbehave on request."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace

import torch

from katz_graph.executor.launch.base import hello
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection
from katz_graph.ipc.heartbeat import Ping, Pong, Stop
from katz_graph.packs import builtin_nodes


def serve(connection: Connection) -> None:
    try:
        connection.send(hello())
        while True:
            match connection.receive():
                case Stop():
                    return
                case Ping():
                    connection.send(Pong())
                case "exit", _:
                    print("the disk is on fire", flush=True)
                    os._exit(3)
                case "environment", names:
                    connection.send(("environment", {name: os.environ.get(name) for name in names}))
                case "process", _:
                    connection.send(("process", os.getpid()))
                case "described", _:
                    connection.send(("described", bool(builtin_nodes.cache_info().currsize)))
                case "hold", seconds:
                    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # holds the interpreter lock
                case "child", _:
                    connection.send(("child", subprocess.Popen(["sleep", "600"]).pid))
                case "compute", seconds:
                    threading.Thread(target=_compute, args=(seconds,), daemon=True).start()
                    connection.send(("computing", None))
                case "echo", value:
                    connection.send(("echo", value))
    except Closed:
        return


def serve_stubbornly(connection: Connection) -> None:
    """Keeps running after a request to stop."""
    serve(connection)
    time.sleep(600)


def serve_once(connection: Connection) -> None:
    """Sends hello, then kills its process."""
    connection.send(hello())
    time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


def of_another_version(connection: Connection) -> None:
    connection.send(replace(hello(), version="0.0.1"))
    time.sleep(600)


def never_hello(connection: Connection) -> None:
    time.sleep(600)


def broken(connection: Connection) -> None:
    raise ImportError("libcuda.so.1: cannot open shared object file")


def _compute(seconds: float) -> None:
    matrix = torch.ones(4000, 4000)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        matrix @ matrix
