"""Imports of large modules wait for their first use, and then are as usual."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest

from katz_graph.host import deferred_imports
from katz_graph.host.deferred_imports import Deferred, import_deferring


def test_workers_load_without_scipy_and_the_compiler_and_jobs_can_use_them() -> None:
    """Asks for each deferred module in another way: a scheduler, a loss, a submodule, a compiled
    function that calls one that is not compiled, and an instance check.
    """
    code = """
import sys
from katz_graph.host.deferred_imports import import_deferring
import_deferring("katz_graph.executor.launch.work")
for module in ("scipy.stats._stats_py", "sympy", "torch._dynamo.eval_frame", "peft.tuners.lora"):
    assert module not in sys.modules, module
import torch

compiled = []
@torch.compiler.disable(recursive=True)
def add(x):
    compiled.append(torch.compiler.is_compiling())
    return x + 1

assert add(1) == 2 and "torch._dynamo.eval_frame" not in sys.modules
import diffusers
from diffusers.hooks import layerwise_casting
from transformers.loss import loss_for_object_detection as loss

scheduler = diffusers.EulerDiscreteScheduler(use_beta_sigmas=True)
scheduler.set_timesteps(5)
assert len(scheduler.sigmas) == 6
rows, columns = loss.linear_sum_assignment([[1, 0], [0, 1]])
assert columns.tolist() == [1, 0]
if hasattr(layerwise_casting, "BaseTunerLayer"):
    from peft.tuners.lora import Linear
    from peft import LoraConfig
    base = torch.nn.Linear(2, 2)
    layer = Linear(base, "default", LoraConfig(), r=1, lora_alpha=1)
    assert isinstance(layer, layerwise_casting.BaseTunerLayer)
    assert not isinstance(base, layerwise_casting.BaseTunerLayer)
from torch._dynamo import config
import torch._dynamo.config as same
assert config is same is torch._dynamo.config
compiled.clear()
double = torch.compile(lambda x: add(x) * 2, backend="eager")
assert double(torch.ones(())) == 4 and compiled == [False]
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of modules, of which `slow_library` is deferred for `library.`."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(deferred_imports, "DEFERRED", {"slow_library": ("Kind",)})
    monkeypatch.setattr(deferred_imports, "LIBRARIES", ("library.",))
    (tmp_path / "slow_library").mkdir()
    (tmp_path / "slow_library" / "__init__.py").write_text(
        "import time\ntime.sleep(0.1)\nfrom slow_library.part import number\nclass Kind: pass\n"
    )
    (tmp_path / "slow_library" / "part.py").write_text("number = 4\n")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "__init__.py").touch()
    yield tmp_path  # type: ignore[misc]
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_threads_that_need_a_deferred_module_wait_for_it(modules: Path) -> None:
    (modules / "library" / "user.py").write_text("import slow_library\n")
    import_deferring("library.user")
    library = import_module("library.user").slow_library
    assert type(library) is Deferred and "slow_library.part" not in sys.modules
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(library.number)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [4] * 8
    assert sys.modules["slow_library"] is library
    assert import_module("slow_library.part") is library.part


def test_a_submodule_of_a_deferred_module_is_imported_once(modules: Path) -> None:
    (modules / "library" / "user.py").write_text(
        "import slow_library\nimport slow_library.part as part\n"
    )
    import_deferring("library.user")
    user = import_module("library.user")
    assert user.part is user.slow_library.part is sys.modules["slow_library.part"]


def test_a_module_that_cannot_be_deferred_is_imported_as_usual(modules: Path) -> None:
    (modules / "library" / "user.py").write_text(
        "from slow_library import Kind\nassert issubclass(Kind, object)\n"
    )
    import_deferring("library.user")
    assert import_module("library.user").Kind is sys.modules["slow_library"].Kind
