"""Modules that packs import exist and behave as packs expect; missing ones are named."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_packs import forgetting_shims, load, write
from trivial_nodes import RecordingContext

from katz_graph.comfy.finder import installed
from katz_graph.comfy.missing import NotThere
from katz_graph.core.errors import Cancelled, InputError
from katz_graph.core.events import PackMessage, Progress
from katz_graph.files.folders import Folders
from katz_graph.files.picture_kinds import PICTURE_ENDINGS
from katz_graph.node.scope import running

EMPTY = "NODE_CLASS_MAPPINGS = {}\n"


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    with forgetting_shims():
        yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Installs shims over usual model folders."""
    for name in (
        "models/checkpoints/a.safetensors",
        "models/loras/style/b.safetensors",
        "models/luts/warm.cube",
        "models/luts/readme.txt",
        "input/cat.png",
        "output/x_00001_.png",
        "output/x_00041_.png",
        "output/sub/y_00003_.png",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert load(write(tmp_path / "packs", one=EMPTY), tmp_path)[1] == []
    return tmp_path


def shim(name: str) -> Any:
    return importlib.import_module(name)


class Listening(RecordingContext):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.events: list[object] = []

    def report(self, event: object) -> None:
        self.events.append(event)


def test_no_shim_is_there_before_a_pack_needs_it(tmp_path: Path) -> None:
    write(tmp_path, native="from katz_graph.node import Node\n")
    load(tmp_path, tmp_path)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("folder_paths")


def test_packs_that_ask_for_names_of_files_do_not_import_torch(tmp_path: Path) -> None:
    asks = (
        "import folder_paths, comfy.samplers, server, comfy_execution.graph_utils\nfrom "
        "comfy.comfy_types import IO\n"
    )
    write(
        tmp_path,
        asks=asks
        + "from comfy_api.latest import io, ComfyExtension\nfrom nodes import MAX_RESOLUTION\n"
        + EMPTY,
    )
    code = (
        "import sys; from pathlib import Path; from katz_graph.packs import load_registry;"
        "r, p = load_registry([Path(sys.argv[1])]); assert not p, p; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout.split() == ["False"], done.stderr


def test_a_file_of_the_same_name_does_not_hide_a_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "elsewhere",
        nodes="raise RuntimeError('not this one')",
        server="raise RuntimeError('nor this')",
    )
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    write(
        tmp_path / "packs",
        one="import nodes, server\nassert nodes.MAX_RESOLUTION == 16384\n" + EMPTY,
    )
    assert load(tmp_path / "packs", tmp_path)[1] == []


def test_an_installed_comfyui_is_used_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "site", {"comfy/__init__": "", "folder_paths": "REAL = True\n"})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    write(tmp_path / "packs", one="import folder_paths\nassert folder_paths.REAL\n" + EMPTY)
    assert load(tmp_path / "packs", tmp_path)[1] == []


def test_names_and_places_of_files(root: Path) -> None:
    paths = shim("folder_paths")
    assert paths.get_filename_list("checkpoints")[:1] == ["a.safetensors"]
    assert "style/b.safetensors" in paths.get_filename_list("loras")
    assert paths.get_full_path("loras", "style/b.safetensors") == str(
        root / "models/loras/style/b.safetensors"
    )
    assert paths.get_full_path("loras", "none.safetensors") is None
    with pytest.raises(FileNotFoundError, match=r"'none\.safetensors' is not in loras"):
        paths.get_full_path_or_raise("loras", "none.safetensors")
    assert paths.get_folder_paths("unet") == paths.get_folder_paths("diffusion_models")
    assert paths.models_dir == str(root / "models")
    assert paths.base_path == str(root)
    assert Path(paths.__file__).parent == root  # packs take this folder for ComfyUI's
    assert paths.get_temp_directory() == str(root / "output/temp")
    assert paths.get_folder_paths("custom_nodes") == [str(root / "packs")]
    assert not hasattr(paths, "get_something_of_next_year")


@pytest.mark.defect(15)
def test_packs_find_every_kind_of_picture_by_its_ending(root: Path) -> None:
    names = [f"a{ending}" for ending in (*PICTURE_ENDINGS, *map(str.upper, PICTURE_ENDINGS))]
    others = ["a.mp4", "a.safetensors", "a"]
    found = shim("folder_paths").filter_files_content_types([*names, *others], ["image"])
    assert found == names


def test_a_folder_that_a_pack_adds(root: Path) -> None:
    paths = shim("folder_paths")
    paths.folder_names_and_paths["luts"] = ([str(root / "models/luts")], {".cube"})
    assert paths.get_filename_list("luts") == ["warm.cube"]
    assert paths.get_full_path("luts", "warm.cube") == str(root / "models/luts/warm.cube")
    (root / "mine").mkdir()
    (root / "mine/c.safetensors").touch()
    paths.add_model_folder_path("loras", str(root / "mine"), is_default=True)
    assert paths.get_folder_paths("loras")[0] == str(root / "mine")
    assert {"c.safetensors", "style/b.safetensors"} <= set(paths.get_filename_list("loras"))
    assert paths.get_full_path("loras", "../models/loras/style/b.safetensors") is None


def test_annotated_names_and_names_for_saving(root: Path) -> None:
    paths = shim("folder_paths")
    assert paths.get_annotated_filepath("cat.png") == str(root / "input/cat.png")
    assert paths.get_annotated_filepath("x_00001_.png [output]") == str(
        root / "output/x_00001_.png"
    )
    assert paths.exists_annotated_filepath("cat.png") and not paths.exists_annotated_filepath(
        "dog.png"
    )
    with pytest.raises(InputError, match="points outside of the folder"):
        paths.get_annotated_filepath("../models/checkpoints/a.safetensors")
    folder, stem, counter, subfolder, prefix = paths.get_save_image_path("x", str(root / "output"))
    assert (folder, stem, counter, subfolder, prefix) == (str(root / "output"), "x", 42, "", "x")
    assert paths.get_save_image_path("sub/y", str(root / "output"), 64, 32)[1:4] == ("y", 4, "sub")
    assert (
        paths.get_save_image_path("s_%width%x%height%", str(root / "output"), 64, 32)[1]
        == "s_64x32"
    )
    with pytest.raises(InputError, match="points outside of the folder"):
        paths.get_save_image_path("../../x", str(root / "output"))


def test_the_running_context_decides_where_pictures_go(root: Path) -> None:
    with running(RecordingContext(output_directory=root / "elsewhere")):
        assert shim("folder_paths").get_output_directory() == str(root / "elsewhere")


def test_progress_and_messages_reach_the_run(root: Path) -> None:
    context = Listening()
    server = shim("server").PromptServer.instance
    server.send_sync("mine.event", {"lost": True})  # no run is active
    with running(context, "7"):
        from katz_graph.comfy.running import ProgressBar

        bar = ProgressBar(4)
        bar.update(1)
        bar.update_absolute(9)
        server.send_sync("mine.event", {"a": 1}, "client")
    assert context.events == [
        Progress("7", 1, 4),
        Progress("7", 4, 4),
        PackMessage("mine.event", {"a": 1}, "client"),
    ]


def test_progress_stops_a_cancelled_run(root: Path) -> None:
    from katz_graph.comfy.running import ProgressBar

    with running(RecordingContext(cancel_after=0)), pytest.raises(Cancelled):
        ProgressBar(4).update(1)


def test_routes_are_collected(tmp_path: Path) -> None:
    routes = """
        from server import PromptServer

        @PromptServer.instance.routes.get("/mine/list")
        async def listing(request): ...

        PromptServer.instance.routes.static("/mine/files", "/somewhere")
        NODE_CLASS_MAPPINGS = {}
    """
    assert load(write(tmp_path, routes=routes), tmp_path)[1] == []
    assert [(method, path) for method, path, _ in installed().routes] == [
        ("GET", "/mine/list"),
        ("STATIC", "/mine/files"),
    ]


def test_names_that_exist_but_have_nothing_behind_them(tmp_path: Path) -> None:
    patches = """
        import comfy.model_patcher, comfy.ldm.modules.attention
        from comfy.ldm.modules.attention import optimized_attention
        from comfy.sd import CLIP

        class Patcher(comfy.model_patcher.ModelPatcher):
            pass

        NODE_CLASS_MAPPINGS = {}
        keep = (optimized_attention, CLIP, Patcher)
    """
    _, problems = load(write(tmp_path, patches=patches), tmp_path)
    assert problems == [
        "pack patches: uses comfy.ldm.modules.attention.optimized_attention, comfy.sd.CLIP, "
        "comfy.model_patcher.ModelPatcher, "
        "which Katz Graph does not have; nodes that need them will fail"
    ]
    attention, clip, patcher = next(
        module for name, module in sys.modules.items() if name.startswith("katz_pack_patches")
    ).keep
    for use, name in (
        (lambda: attention(1, 2), "comfy.ldm.modules.attention.optimized_attention"),
        (lambda: clip.load("x"), "comfy.sd.CLIP.load"),
        (lambda: patcher(), "comfy.model_patcher.ModelPatcher"),
        (lambda: list(clip), "comfy.sd.CLIP"),
    ):
        with running(RecordingContext(), pack="patches"), pytest.raises(NotThere) as caught:
            use()
        assert str(caught.value) == f"pack patches needs {name}, which Katz Graph does not have"


def test_all_names_that_do_not_import_are_listed_in_one_line(tmp_path: Path) -> None:
    write(
        tmp_path / "packs",
        {
            "late/__init__": "from .inner import x\n" + EMPTY,
            "late/inner": "from comfy.utils import common_upscale, warp_drive\nx = 1\n",
            "late/other": "import comfy.time_machine\nfrom folder_paths import get_filename_list, "
            "get_flux_list\n",
        },
    )
    _, problems = load(tmp_path / "packs", tmp_path)
    assert problems == [
        "pack late: imports comfy.utils.warp_drive, comfy.time_machine, "
        "folder_paths.get_flux_list, which Katz Graph does not have; "
        "it was left out"
    ]


def test_a_pack_can_ask_whether_something_is_there(tmp_path: Path) -> None:
    asks = """
        import comfy.utils, folder_paths
        try:
            from comfy.utils import warp_drive
        except ImportError:
            warp_drive = None
        assert warp_drive is None and not hasattr(folder_paths, "get_flux_list")
        NODE_CLASS_MAPPINGS = {}
    """
    assert load(write(tmp_path, asks=asks), tmp_path)[1] == []


def test_a_python_package_that_comes_with_comfyui(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)  # as if it were not installed
    _, problems = load(
        write(tmp_path, needs="import folder_paths\nimport kornia\n" + EMPTY), tmp_path
    )
    assert problems == [
        "pack needs: needs the Python package kornia, which comes with ComfyUI: pip install "
        "'katz-graph[packs]'; it was left out"
    ]


def test_prestartup_scripts_run_first(tmp_path: Path) -> None:
    write(
        tmp_path / "packs",
        {
            "early/prestartup_script": "import sys\nsys.katz_early = True\n",
            "early/__init__": "import sys\nassert sys.katz_early\ndel sys.katz_early\n" + EMPTY,
        },
    )
    assert load(tmp_path / "packs", tmp_path)[1] == []


def test_built_in_nodes_as_classes(root: Path) -> None:
    nodes = shim("nodes")
    assert set(nodes.NODE_CLASS_MAPPINGS) >= {"KSampler", "SaveImage"}
    loader = nodes.LoraLoader
    assert loader is nodes.NODE_CLASS_MAPPINGS["LoraLoader"]
    assert loader.RETURN_TYPES == ("MODEL", "CLIP") and hasattr(loader(), loader.FUNCTION)
    inputs = loader.INPUT_TYPES()["required"]
    assert inputs["model"][0] == "MODEL"
    assert "style/b.safetensors" in inputs["lora_name"][0]
    assert inputs["strength_model"][1]["default"] == 1.0
    with pytest.raises(NotThere, match=r"needs nodes\.load_custom_node"):
        nodes.load_custom_node("x")
    assert shim("comfy_extras.nodes_canny").Canny is nodes.Canny
    for name, kind in nodes.NODE_CLASS_MAPPINGS.items():  # as packs do that wrap all nodes
        assert kind.INPUT_TYPES() and callable(getattr(kind(), kind.FUNCTION)), name


def test_graphs_that_nodes_expand_to(root: Path) -> None:
    utils = shim("comfy_execution.graph_utils")
    with running(RecordingContext()):
        first, second = utils.GraphBuilder(), utils.GraphBuilder()
        add = first.node("Add", a=1, b=["5", 0])
        again = first.node("Add", "named", a=add.out(0))
        assert first.lookup_node("named") is again
        assert set(first.finalize()).isdisjoint({second.node("Add").id})
    built = first.finalize()
    assert built[add.id] == {"class_type": "Add", "inputs": {"a": 1, "b": ["5", 0]}}
    assert built[again.id]["inputs"] == {"a": [add.id, 0]}
    renamed, outputs = utils.add_graph_prefix(built, [again.out(0)], "p.")
    assert f"p.{add.id}" in renamed and outputs == ([f"p.{again.id}", 0],)
    first.replace_node_output(add.id.removeprefix(first.prefix), 0, 3)
    assert again.get_input("a") == 3
    assert utils.is_link(["1", 0]) and not utils.is_link([1, 0]) and not utils.is_link(["1", "0"])


def test_names_of_types_compare_as_packs_expect(root: Path) -> None:
    io = shim("comfy.comfy_types").IO
    assert io.IMAGE == "IMAGE" and io.IMAGE != "MASK" and io.NUMBER != "IMAGE"
    unequal = [
        one != other for one, other in ((io.IMAGE, "IMAGE"), (io.ANY, "IMAGE"), (io.NUMBER, "INT"))
    ]
    assert unequal == [False, False, False]  # the operator that connections are checked with
    assert f"{io.IMAGE}" == "IMAGE"


def test_options_and_samplers(root: Path) -> None:
    assert shim("comfy.cli_args").args.listen == "127.0.0.1"
    assert shim("comfy.cli_args").args.lowvram is False
    sampler = shim("comfy").samplers.KSampler  # without importing it
    assert "euler" in sampler.SAMPLERS and "karras" in sampler.SCHEDULERS
    assert sampler.SAMPLERS + ["mine"]  # noqa: RUF005


def test_conditioning_options_are_set_on_copies(root: Path) -> None:
    before = [["tensor", {"strength": 0.5, "kept": [1]}]]
    helpers = shim("node_helpers")
    after = helpers.conditioning_set_values(before, {"strength": 1.0})
    assert after[0][1] == {"strength": 1.0, "kept": [1]} and before[0][1]["strength"] == 0.5
    assert helpers.conditioning_set_values(before, {"kept": [2]}, append=True)[0][1]["kept"] == [
        1,
        2,
    ]


def test_folders_know_more_than_their_first_root(root: Path) -> None:
    assert isinstance(installed().folders, Folders)
    assert "embeddings" in shim("folder_paths").folder_names_and_paths


def test_calls_of_packs_during_loading(root: Path) -> None:
    server = shim("server").PromptServer.instance
    assert server.app.router.frozen is False
    with pytest.raises(
        NotThere, match=r"needs server\.PromptServer\.instance\.app\.router\.add_get"
    ):
        server.app.router.add_get("/", None)
    assert shim("comfy.sample").np.zeros(1).shape == (1,)
    assert shim("comfy.samplers").SchedulerHandler is not None
    for module in ("comfy.context_windows", "comfy.quant_ops", "comfy_api.feature_flags"):
        assert shim(module).anything is not None  # a placeholder, which names itself when used
