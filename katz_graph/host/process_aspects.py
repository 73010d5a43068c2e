"""Lists the process-wide state that a pack's code may change (working folder, environment, defaults
of libraries), and how to read and restore it.

`ASPECTS` is the list; adding an aspect takes one line.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import decimal
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katz_graph.host.deferred_imports import is_importing

ENVIRON = os.environ
PRECISIONS = (
    *(("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)  # torch's settings of float32 precision, per backend and operation
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGALRM", "SIGUSR1")
)
MERSENNE_TWISTER_BYTES = 2_500  # NumPy's mt19937_state: 624 words and a position
State = Any


@dataclass(frozen=True, slots=True, eq=False)  # a dictionary key, hashed by identity
class Aspect:
    """Describes one part of the process state. `read` returns a comparable value. `module`: must be
    loaded before `read`. `own`: each thread has a separate value. `reported`: whether to warn of
    changes.
    """

    name: str
    read: Callable[[], State]
    restore: Callable[[State], object]
    module: str = ""
    own: bool = False
    reported: bool = True
    grows: bool = False  # additions made by imports stay


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "a deleted directory"


def _umask() -> int:
    """Returns the umask. Reading it requires setting it, so a strict umask applies in between."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _environment() -> State:
    return ENVIRON._data.copy()  # type: ignore[attr-defined]  # os.environb takes 500 times as long


def _set_environment(wanted: Mapping[bytes, bytes]) -> None:
    for name in os.environb.keys() - wanted.keys():
        del os.environb[name]
    os.environb.update(wanted)
    time.tzset()


def _handlers() -> State:
    """Returns the signal handlers. Empty outside the main thread, because other threads cannot
    change them.
    """
    main = threading.current_thread() is threading.main_thread()
    return tuple(map(signal.getsignal, SIGNALS)) if main else ()


def _set_handlers(wanted: State) -> None:
    for number, handler in zip(SIGNALS, wanted, strict=True):
        if handler is not None and handler is not signal.getsignal(number):
            signal.signal(number, handler)


def _set_filters(wanted: State) -> None:
    warnings.filters[:] = wanted  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _torch() -> Any:
    return sys.modules["torch"]


def _numpy() -> Any:
    return sys.modules["numpy"]


def _determinism() -> State:
    torch = _torch()
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _backends() -> State:
    cudnn = _torch().backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic


def _set_backends(wanted: State) -> None:
    cudnn = _torch().backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = wanted


def _precision() -> State:
    """Returns the float32 matmul precision by the older settings and per operation. An older
    setting is None if torch cannot report it because newer settings were used.
    """
    older = tuple(map(_or_none, (_all_products, _cudnn_tf32, _cuda_tf32)))
    return older, tuple(_torch()._C._get_fp32_precision_getter(*one) for one in PRECISIONS)


def _or_none(read: Callable[[], State]) -> State:
    try:
        return read()
    except RuntimeError:
        return None


def _all_products() -> State:
    return _torch().get_float32_matmul_precision()


def _cudnn_tf32() -> State:
    return _torch().backends.cudnn.allow_tf32


def _cuda_tf32() -> State:
    return _torch().backends.cuda.matmul.allow_tf32


def _set_precision(wanted: State) -> None:
    """Sets the older settings first, because torch does not report settings that newer ones
    contradict.
    """
    torch = _torch()
    (products, cudnn, cuda), by_operation = wanted
    if products is not None:
        torch.set_float32_matmul_precision(products)
    if cudnn is not None:
        torch.backends.cudnn.allow_tf32 = cudnn
    if cuda is not None:
        torch.backends.cuda.matmul.allow_tf32 = cuda
    for operation, precision in zip(PRECISIONS, by_operation, strict=True):
        if torch._C._get_fp32_precision_getter(*operation) != precision:
            torch._C._set_fp32_precision_setter(*operation, precision)


def _autocast() -> State:
    torch = _torch()
    enabled = tuple(map(torch.is_autocast_enabled, ("cpu", "cuda")))
    return enabled, torch.is_anomaly_enabled()


def _set_autocast(wanted: State) -> None:
    torch = _torch()
    enabled, anomaly = wanted
    for device, on in zip(("cpu", "cuda"), enabled, strict=True):
        torch.set_autocast_enabled(device, on)
    torch.set_anomaly_enabled(anomaly)


def _dtype() -> State:
    return _torch().get_default_dtype()


def _threads() -> State:
    return _torch().get_num_threads()


def _grad() -> State:
    return _torch().is_grad_enabled()


def _set_grad(wanted: State) -> None:
    _torch()._C._set_grad_enabled(wanted)


def _set_determinism(wanted: State) -> None:
    _torch().use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


def _device() -> State:
    return str(_torch().get_default_device())


def _set_device(wanted: State) -> None:
    _torch().set_default_device(None if wanted == "cpu" else wanted)


def _numbers() -> State:
    context = decimal.getcontext()
    traps = tuple(kind for kind, on in context.traps.items() if on)
    return context.prec, context.rounding, context.Emin, context.Emax, context.clamp, traps


def _set_numbers(wanted: State) -> None:
    prec, rounding, low, high, clamp, traps = wanted
    decimal.setcontext(decimal.Context(prec, rounding, low, high, 1, clamp, [], list(traps)))


def _attributes(*names: str) -> tuple[Callable[[], State], Callable[[State], None]]:
    """Returns functions that read and restore module attributes, each named `module.name`."""
    places = [name.rsplit(".", 1) for name in names]

    def read() -> State:
        return tuple(getattr(sys.modules.get(module), name, None) for module, name in places)

    def restore(wanted: State) -> None:
        for (module, name), value in zip(places, wanted, strict=True):
            if module in sys.modules and getattr(sys.modules[module], name, None) is not value:
                setattr(sys.modules[module], name, value)

    return read, restore


def _disabled() -> State:
    """Returns the disabled loggers; configuring logging from a file disables all others."""
    loggers = logging.root.manager.loggerDict.items()
    return {name for name, one in list(loggers) if getattr(one, "disabled", False)}


def _set_disabled(wanted: State) -> None:
    for name in _disabled() ^ wanted:
        logging.getLogger(name).disabled = name in wanted


def _root_log() -> State:
    return logging.root.level, tuple(logging.root.handlers)


def _set_root_log(wanted: State) -> None:
    logging.root.setLevel(wanted[0])
    logging.root.handlers[:] = wanted[1]


def _policy() -> State:
    return asyncio.get_event_loop_policy()


def _set_policy(wanted: State) -> None:
    asyncio.set_event_loop_policy(wanted)


def _timer() -> State:
    """Returns whether a real-time timer is running; its signal would end this process."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _set_timer(wanted: State) -> None:
    if not wanted:
        signal.setitimer(signal.ITIMER_REAL, 0)


class ImportedModules:
    """Snapshot of `sys.modules` without modules that a thread is still importing, because imports
    may fail.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._importing: tuple[str, ...] = ()
        self._imported: dict[str, Any] = {}

    def read(self) -> Mapping[str, Any]:
        changed = sys.modules != self._seen
        modules = sys.modules.copy() if changed else self._seen
        new = (name for name, one in modules.items() if self._seen.get(name) is not one)
        candidates = dict.fromkeys((*self._importing, *new) if changed else self._importing)
        importing = tuple(name for name in candidates if is_importing(modules.get(name)))
        if changed or importing != self._importing:
            self._seen, self._importing = modules, importing
            self._imported = {
                name: module for name, module in modules.items() if name not in importing
            }
        return self._imported


def _set_modules(wanted: State) -> None:
    """Restores missing modules. Removes none, because other threads may import at any time."""
    sys.modules.update(wanted)


def _builtins() -> State:
    return vars(builtins).copy()


def _set_builtins(wanted: State) -> None:
    for name in vars(builtins).keys() - wanted.keys():
        delattr(builtins, name)
    vars(builtins).update(wanted)


# A node may draw from shared random generators but not reseed them for others. After any change, a
# generator is reseeded from its previous state, so that two runs of a node never draw the same.


def _jump_random(before: State) -> None:
    random.setstate(before)
    random.seed(random.getrandbits(256))


def _numpy_state() -> int:
    """Returns the address of NumPy's generator state; NumPy's own copy takes 100 times as long."""
    return int(_numpy().random.get_bit_generator().ctypes.state_address)


def _numpy_random() -> State:
    return ctypes.string_at(_numpy_state(), MERSENNE_TWISTER_BYTES)


def _jump_numpy(before: State) -> None:
    random_ = _numpy().random
    ctypes.memmove(_numpy_state(), before, MERSENNE_TWISTER_BYTES)
    random_.seed(random_.randint(0, 2**32, 8, _numpy().uint32))


def _torch_random() -> State:
    return _torch().default_generator.get_state().numpy().tobytes()


def _jump_torch(before: State) -> None:
    torch = _torch()
    generator = torch.default_generator
    generator.set_state(torch.frombuffer(bytearray(before), dtype=torch.uint8))
    drawn = torch.empty((), dtype=torch.int64).random_(generator=generator)
    generator.manual_seed(int(drawn))


def _set_locale(wanted: State) -> None:
    locale.setlocale(locale.LC_ALL, wanted)


def _set_path(wanted: State) -> None:
    sys.path[:] = wanted


def _set_garbage(wanted: State) -> None:
    (gc.enable if wanted else gc.disable)()


def _set_temporary(wanted: State) -> None:
    tempfile.tempdir = wanted


MODULES = Aspect("sys.modules", ImportedModules().read, _set_modules, grows=True)
FILTERS = Aspect("the warning filters", lambda: list(warnings.filters), _set_filters, grows=True)
THREADS = Aspect(
    "torch's number of threads", _threads, lambda count: _torch().set_num_threads(count), "torch"
)
ASPECTS = (
    Aspect("the working directory", _folder, os.chdir),
    Aspect("the umask", _umask, os.umask),
    Aspect("os.environ", *_attributes("os.environ")),  # before its content
    Aspect("the environment", _environment, _set_environment, grows=True),
    Aspect("signal handlers", _handlers, _set_handlers),
    Aspect("the locale", lambda: locale.setlocale(locale.LC_ALL), _set_locale),
    Aspect("sys.path", lambda: list(sys.path), _set_path, grows=True),
    FILTERS,
    Aspect("the default timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    Aspect("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Aspect("the thread switch interval", sys.getswitchinterval, sys.setswitchinterval),
    Aspect("garbage collection", gc.isenabled, _set_garbage),
    Aspect("the log level", lambda: logging.root.manager.disable, logging.disable),
    Aspect("the root logger", _root_log, _set_root_log),
    Aspect("disabled loggers", _disabled, _set_disabled),
    Aspect("the standard streams", *_attributes("sys.stdin", "sys.stdout", "sys.stderr")),
    Aspect(
        "error hooks",
        *_attributes("sys.excepthook", "sys.unraisablehook", "threading.excepthook"),
    ),
    Aspect("timers", _timer, _set_timer),
    Aspect("sys.argv", lambda: list(sys.argv), lambda wanted: setattr(sys, "argv", wanted)),
    Aspect("the event loop policy", _policy, _set_policy),
    Aspect("sockets", *_attributes("socket.socket", "socket.getaddrinfo")),
    Aspect(
        "certificate checks",
        *_attributes("ssl._create_default_https_context", "ssl.create_default_context"),
    ),
    Aspect(
        "Pillow's limits",
        *_attributes("PIL.Image.MAX_IMAGE_PIXELS", "PIL.ImageFile.LOAD_TRUNCATED_IMAGES"),
        "PIL.ImageFile",
    ),
    Aspect("builtins", _builtins, _set_builtins, grows=True),
    MODULES,
    Aspect(
        "the directory of temporary files", lambda: tempfile.tempdir, _set_temporary, grows=True
    ),
    Aspect("random numbers", random.getstate, _jump_random, reported=False),
    Aspect("NumPy's random numbers", _numpy_random, _jump_numpy, "numpy.random", reported=False),
    Aspect("torch's random numbers", _torch_random, _jump_torch, "torch", reported=False),
    Aspect("torch's default dtype", _dtype, lambda kind: _torch().set_default_dtype(kind), "torch"),
    THREADS,
    Aspect("torch's deterministic mode", _determinism, _set_determinism, "torch"),
    Aspect("torch's backends", _backends, _set_backends, "torch"),
    Aspect("torch's float32 precision", _precision, _set_precision, "torch"),
    Aspect("torch's autocast", _autocast, _set_autocast, "torch", own=True),
    Aspect("torch's default device", _device, _set_device, "torch", own=True),
    Aspect("torch's gradient mode", _grad, _set_grad, "torch", own=True),
    Aspect(
        "NumPy's error handling",
        lambda: _numpy().geterr(),
        lambda e: _numpy().seterr(**e),
        "numpy",
        own=True,
    ),
    Aspect("tracing", sys.gettrace, sys.settrace, own=True),
    Aspect("the decimal context", _numbers, _set_numbers, own=True),
)
