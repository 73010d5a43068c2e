"""Defers imports of modules that diffusers and transformers import but that few jobs use, until
their first use: scipy, torch's compiler and distributed tensors, and peft. They take a third of the
time of the libraries' import.

A deferred module is in `sys.modules`, without attributes. Its code runs on the first access to an
attribute, in the same module object. The libraries import some names from such modules; these names
are placeholders, which import the module when they are called, subclassed, or asked for an
attribute. Nothing is an instance of a placeholder while its module has not run. Functions that
torch's compiler marks are marked when the compiler is imported. `importlib.util.LazyLoader` has no
placeholders: it runs a module as soon as a name is imported from it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

COMPILER = "torch._dynamo"
DEFERRED: Mapping[str, Sequence[str]] = {
    "scipy.stats": (),
    "scipy.integrate": (),
    "scipy.optimize": ("linear_sum_assignment",),
    "peft": (),
    "peft.helpers": ("disable_input_dtype_casting",),
    "peft.tuners": (),
    "peft.tuners.tuners_utils": ("BaseTunerLayer",),
    COMPILER: (),
    f"{COMPILER}._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
    "torch.distributed._composable": (),
    "torch.distributed._composable.fsdp": ("fully_shard",),
    "torch.distributed.checkpoint": (),
    "torch.distributed.checkpoint.hf_storage": (
        "HuggingFaceStorageReader",
        "HuggingFaceStorageWriter",
    ),
    "torch.distributed.fsdp": ("CPUOffloadPolicy", "MixedPrecisionPolicy"),
    "torch.fx.experimental.symbolic_shapes": (
        "GuardOnDataDependentSymNode",
        "guard_or_false",
        "statically_known_true",
    ),
}
"""Deferred modules, with the names that `LIBRARIES` import from them."""
LIBRARIES = ("diffusers.", "transformers.", "torch.distributed.tensor.")
MARKS = ("allow_in_graph", "assume_constant_result")
"""Decorators of the compiler that mark a function or class and return it."""
DUNDERS = ("__all__", "__version__")
"""Attributes of this form that import a deferred module; tools look for others in every module."""


def import_deferring(name: str) -> None:
    """Imports a module and defers imports by it and by later modules. If that fails, imports it
    without deferring.
    """
    if name in sys.modules:
        return
    installed = (one for one in sys.meta_path if isinstance(one, DeferredImports))
    deferred = next(installed, None)
    if deferred is None:
        deferred = DeferredImports()
        sys.meta_path.insert(0, deferred)
    try:
        import_module(name)
    except Exception:  # a version of a library that uses a deferred module in another way
        deferred.stop()
        import_module(name)


def is_importing(module: Any) -> bool:
    """Returns whether a thread is still running a module's code."""
    spec = getattr(module, "__dict__", {}).get("__spec__")
    return bool(getattr(spec, "_initializing", False))


class DeferredImports(MetaPathFinder):
    """Finds deferred modules before other finders do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names = dict(DEFERRED)
        self.waiting: dict[str, Deferred] = {}  # modules whose code has not run
        self._marks: list[Callable[[ModuleType], object]] = []

    def stop(self) -> None:
        """Defers no further module and no further name."""
        self._names = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._names and name not in self.waiting:
            return self._spec(name, path, target, lambda loader: _Deferring(self, loader))
        parent = self.waiting.get(name.rpartition(".")[0])
        if parent is not None and not is_importing(parent):
            self.run(parent)
            module = sys.modules.get(name)
            if module is not None and module.__spec__ is not None and name not in self.waiting:
                # importlib takes the spec of a module that appears while it looks for one
                module.__spec__ = ModuleSpec(name, _Existing(module, module.__spec__))
                return module.__spec__
        if name in self.waiting:
            deferred = self.waiting[name]
            return self._spec(name, path, target, lambda loader: _Running(deferred, loader))
        return None

    def name(self, module: Deferred, name: str, importer: str) -> Any:
        """Returns a placeholder for a name in a deferred module, or None."""
        if module.__name__ == COMPILER and self._names:
            if name in MARKS:
                return functools.partial(self._mark, name)
            if name == "disable":
                return functools.partial(self._disable, module)
        if name in self._names.get(module.__name__, ()) and importer.startswith(LIBRARIES):
            return Placeholder(self, module, name)
        return None

    def run(self, module: Deferred) -> None:
        """Runs the code of a deferred module; waits if another thread is running it. Does nothing
        in the thread that is running it.
        """
        name = module.__name__
        with self._lock:
            if name in self.waiting and not is_importing(module):
                sys.modules.pop(name, None)
        import_module(name)

    def has_run(self, module: ModuleType) -> None:
        self.waiting.pop(module.__name__, None)
        if module.__name__ == COMPILER:
            for mark in self._marks:
                mark(module)
            self._marks.clear()

    def _spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
        wrap: Callable[[Loader | None], Loader],
    ) -> ModuleSpec | None:
        """Returns the spec of a module that other finders find, with a wrapped loader."""
        for finder in sys.meta_path:
            if not isinstance(finder, DeferredImports):
                found = finder.find_spec(name, path, target)
                if found is not None:
                    found.loader = wrap(found.loader)
                    return found
        return None

    def _mark(self, mark: str, function: Any) -> Any:
        self._marks.append(lambda compiler: getattr(compiler, mark)(function))
        return function

    def _disable(
        self, compiler: Deferred, function: Any = None, recursive: bool = True, **options: Any
    ) -> Any:
        if function is None:
            return functools.partial(self._disable, compiler, recursive=recursive, **options)
        if not isinstance(function, FunctionType):
            self.run(compiler)
            return compiler.disable(function, recursive, **options)
        marked = [function]

        @functools.wraps(function)
        def disabled(*arguments: Any, **named: Any) -> Any:
            return marked[-1](*arguments, **named)

        self._marks.append(
            lambda module: marked.append(module.disable(function, recursive, **options))
        )
        return disabled


class Deferred(ModuleType):
    """A module whose code runs on the first access to an attribute."""

    _imports: DeferredImports

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in DUNDERS:
            raise AttributeError(name)
        placeholder = self._imports.name(self, name, _importer())
        if placeholder is not None:
            return placeholder
        self._imports.run(self)
        if name in self.__dict__ or type(self) is ModuleType:
            return getattr(self, name)
        if "__getattr__" in self.__dict__:  # while its code runs
            return self.__dict__["__getattr__"](name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        self._imports.run(self)
        return sorted(self.__dict__)


def _importer() -> str:
    """Returns the name of the module whose code accesses an attribute of a deferred module."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


class Placeholder:
    """Stands for a class or function of a deferred module."""

    def __init__(self, imports: DeferredImports, module: Deferred, name: str) -> None:
        self._imports, self._module, self._name = imports, module, name

    def _value(self) -> Any:
        if type(self._module) is Deferred:
            self._imports.run(self._module)
        return self._module.__dict__[self._name]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._value()(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._value(), name)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (self._value(),)

    def __instancecheck__(self, instance: object) -> bool:
        return type(self._module) is not Deferred and isinstance(instance, self._value())

    def __subclasscheck__(self, kind: type) -> bool:
        return type(self._module) is not Deferred and issubclass(kind, self._value())

    def __or__(self, other: object) -> Any:
        return Any  # in annotations

    __ror__ = __or__


class _Deferring(Loader):
    def __init__(self, imports: DeferredImports, loader: Loader | None) -> None:
        self._imports, self._loader = imports, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = Deferred(spec.name)
        module._imports = self._imports
        self._imports.waiting[spec.name] = module
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader


class _Running(Loader):
    """Runs the code of a deferred module in the module that exists."""

    def __init__(self, module: Deferred, loader: Loader | None) -> None:
        self._module, self._loader = module, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        assert self._loader is not None and module.__spec__ is not None
        imports = self._module._imports
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        module.__class__ = ModuleType
        imports.has_run(module)


class _Existing(Loader):
    """Returns a module that its parent has imported."""

    def __init__(self, module: ModuleType, spec: ModuleSpec) -> None:
        self._module, self._spec = module, spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
