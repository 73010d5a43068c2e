"""Usual model folders give choices and paths; names that lead elsewhere are refused."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from katz_graph.core.errors import InputError
from katz_graph.files import folders as folders_module
from katz_graph.files.folders import Folders
from katz_graph.settings.environment import Settings


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes usual model folders, without the models that the package ships."""
    monkeypatch.setattr(folders_module, "MINI", tmp_path / "no-mini")
    for name in (
        "models/checkpoints/b.safetensors",
        "models/checkpoints/a.safetensors",
        "models/checkpoints/old.ckpt",
        "models/checkpoints/sdxl/base.safetensors",
        "models/checkpoints/sd15/model_index.json",
        "models/checkpoints/sd15/unet/diffusion_pytorch_model.safetensors",
        "models/checkpoints/.hidden.safetensors",
        "models/controlnet/canny/config.json",
        "models/controlnet/canny/diffusion_pytorch_model.safetensors",
        "models/controlnet/depth.safetensors",
        "models/clip/l.safetensors",
        "models/text_encoders/g.safetensors",
        "models/upscale_models/x4.safetensors",
        "more/checkpoints/a.safetensors",
        "more/checkpoints/c.safetensors",
        "input/cat.png",
        "input/dogs/rex.JPG",
        "input/notes.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.fixture
def folders(root: Path) -> Folders:
    return Folders((root / "models", root / "more"), root / "input")


def refused(folders: Folders, kind: str, name: str) -> str:
    with pytest.raises(InputError) as caught:
        folders.resolve(kind, name)
    return str(caught.value)


def test_choices(folders: Folders) -> None:
    assert folders.choices("checkpoints") == (
        "a.safetensors",
        "b.safetensors",
        "c.safetensors",
        "sd15",
        "sdxl/base.safetensors",
    )
    assert folders.choices("controlnet") == ("canny", "depth.safetensors")
    assert folders.choices("clip") == ("g.safetensors", "l.safetensors")
    assert folders.choices("upscale_models") == ("x4.safetensors",)
    assert folders.choices("input") == ("cat.png", "dogs/rex.JPG")
    assert folders.choices("embeddings") == ()


def test_the_first_root_wins(folders: Folders, root: Path) -> None:
    assert (
        folders.resolve("checkpoints", "a.safetensors") == root / "models/checkpoints/a.safetensors"
    )
    assert (
        folders.resolve("checkpoints", "c.safetensors") == root / "more/checkpoints/c.safetensors"
    )
    assert folders.resolve("checkpoints", "sd15") == root / "models/checkpoints/sd15"


def test_names_from_windows(folders: Folders, root: Path) -> None:
    assert (
        folders.resolve("checkpoints", "sdxl\\base.safetensors")
        == root / "models/checkpoints/sdxl/base.safetensors"
    )


def test_new_and_removed_files_are_seen(folders: Folders, root: Path) -> None:
    assert "new.safetensors" not in folders.choices("loras")
    (root / "models/loras/deep").mkdir(parents=True)
    (root / "models/loras/deep/new.safetensors").touch()
    assert folders.choices("loras") == ("deep/new.safetensors",)
    (root / "models/loras/deep/new.safetensors").unlink()
    assert folders.choices("loras") == ()


def test_an_unchanged_folder_is_not_listed_again(
    folders: Folders, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = time.time() - 60
    for folder, _, _ in os.walk(root):
        os.utime(folder, (past, past))
    folders.choices("checkpoints")
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail(f"listed {path} again"))
    assert len(folders.choices("checkpoints")) == 5


def test_an_unknown_name_reports_near_names_and_searched_folders(
    folders: Folders, root: Path
) -> None:
    message = refused(folders, "checkpoints", "b.safetensor")
    assert '"b.safetensor" is not in checkpoints; did you mean "b.safetensors"?' in message
    assert str(root / "models/checkpoints") in message and str(root / "more/checkpoints") in message
    assert "available: cat.png, dogs/rex.JPG" in refused(folders, "input", "zzz.webp")
    assert "none is available" in refused(folders, "vae", "x.safetensors")


def test_pickles_are_refused_with_the_way_out(folders: Folders) -> None:
    for name in ("old.ckpt", "old.PT", "x/old.bin"):
        message = refused(folders, "checkpoints", name)
        assert "pickle" in message and ".safetensors" in message


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "x/../../secret",
        "..\\secret",
        "/etc/passwd",
        "\\\\host\\share",
        "C:\\x.png",
        "c:x",
        "~/x.png",
        "a\0b",
        "..",
        "x" * 5000,
    ],
)
@pytest.mark.parametrize("kind", ["input", "checkpoints", "loras"])
def test_names_that_lead_elsewhere(folders: Folders, kind: str, name: str) -> None:
    assert refused(folders, kind, name).isprintable()


def test_links_inside_a_folder_are_followed_and_loops_end(folders: Folders, root: Path) -> None:
    elsewhere = root / "disk2"
    elsewhere.mkdir()
    (elsewhere / "big.safetensors").touch()
    (root / "models/vae").mkdir()
    (root / "models/vae/linked").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(root / "models/vae")
    (root / "models/vae/broken.safetensors").symlink_to(root / "nowhere")
    assert folders.choices("vae") == ("linked/big.safetensors",)


def test_a_checkpoint_may_be_a_path_or_a_hub_id_but_not_on_a_server(
    folders: Folders, root: Path
) -> None:
    path = str(root / "models/checkpoints/sd15")
    assert folders.resolve("checkpoints", path) == Path(path)
    assert folders.resolve("checkpoints", "owner/some-model") == Path("owner/some-model")
    served = Folders(folders.models, folders.input, paths=False)
    assert "points outside" in refused(served, "checkpoints", path)
    assert "is not in checkpoints" in refused(served, "checkpoints", "owner/some-model")
    assert "is not in loras" in refused(folders, "loras", "owner/some-model")


def test_the_shipped_models_come_last(folders: Folders, root: Path) -> None:
    mini = root / "no-mini"
    for name in (
        "pipeline/model_index.json",
        "controlnet/edges/config.json",
        "loras/comic.safetensors",
        "examples/cat.png",
        "examples/star.png",
    ):
        (mini / name).parent.mkdir(parents=True, exist_ok=True)
        (mini / name).touch()
    assert folders.resolve("checkpoints", "katz-mini") == mini / "pipeline"
    assert folders.resolve("controlnet", "katz-mini-edges") == mini / "controlnet/edges"
    assert (
        folders.resolve("loras", "katz-mini-comic.safetensors") == mini / "loras/comic.safetensors"
    )
    assert folders.resolve("input", "star.png") == mini / "examples/star.png"
    assert folders.resolve("input", "cat.png") == root / "input/cat.png"


def test_settings_take_arguments_before_the_environment_before_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("KATZ_MODELS", "KATZ_PACKS", "KATZ_INPUT", "KATZ_OUTPUT", "KATZ_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = Settings.read()
    assert plain == Settings(
        (Path("models"),), (), Path("input"), Path("output"), tmp_path / "katz_graph"
    )
    monkeypatch.setenv("KATZ_MODELS", f"/a{os.pathsep}/b")
    monkeypatch.setenv("KATZ_OUTPUT", "/out")
    assert Settings.read().models == (Path("/a"), Path("/b"))
    assert Settings.read(models=[Path("/c")], output=Path("here")).models == (Path("/c"),)
    assert Settings.read(output=Path("here")).output == Path("here")
    assert Settings.read().output == Path("/out")


def test_other_names_of_kinds_and_whole_folders(folders: Folders, root: Path) -> None:
    for name in (
        "t2i_adapter/sketch.safetensors",
        "text_encoders/t5/config.json",
        "diffusers/sd/model_index.json",
        "configs/v1.yaml",
    ):
        (root / "models" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "models" / name).touch()
    assert "sketch.safetensors" in folders.choices("controlnet") == folders.choices("t2i_adapter")
    assert (
        folders.choices("text_encoders")
        == folders.choices("clip")
        == ("g.safetensors", "l.safetensors", "t5")
    )
    assert folders.choices("diffusers") == ("sd",) and folders.choices("configs") == ("v1.yaml",)
    assert {"checkpoints", "embeddings", "upscale_models"} <= set(folders.kinds())


def test_the_folder_of_a_comfyui_is_a_root(root: Path) -> None:
    there = Folders((root,), root / "input")
    assert (
        there.resolve("checkpoints", "a.safetensors") == root / "models/checkpoints/a.safetensors"
    )
    assert there.searched("loras") == (root / "models/loras",)


EXTRA = """
comfyui:
    base_path: other/
    is_default: true
    checkpoints: models/checkpoints/
    text_encoders: |
        models/text_encoders/
        models/clip/  # where they used to lie
    custom_nodes: custom_nodes/
a111:
    base_path: ${KATZ_TEST_HOME}/webui
    loras: |
        models/Lora
        models/LyCORIS
    upscale_models:
        - models/ESRGAN
unused:
"""


@pytest.fixture
def extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KATZ_TEST_HOME", str(root))
    for name in (
        "other/models/checkpoints/a.safetensors",
        "other/models/clip/h.safetensors",
        "webui/models/Lora/one.safetensors",
        "webui/models/LyCORIS/two.safetensors",
        "webui/models/ESRGAN/x2.safetensors",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    file = root / "extra_model_paths.yaml"
    file.write_text(EXTRA)
    return file


def test_extra_model_paths_as_users_have_them(
    extra: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.read(
        models=[root / "models"], packs=[root / "mine"], extra_model_paths=[extra]
    )
    folders = settings.folders()
    assert settings.packs == (root / "mine", root / "other/custom_nodes")
    # the default has precedence
    assert (
        folders.resolve("checkpoints", "a.safetensors")
        == root / "other/models/checkpoints/a.safetensors"
    )
    assert folders.choices("clip") == ("g.safetensors", "h.safetensors", "l.safetensors")
    assert folders.choices("loras") == ("one.safetensors", "two.safetensors")
    assert folders.choices("upscale_models") == ("x2.safetensors", "x4.safetensors")
    monkeypatch.setenv("KATZ_EXTRA_MODEL_PATHS", str(extra))
    assert Settings.read(models=[root / "models"]).folders().choices("loras") == (
        "one.safetensors",
        "two.safetensors",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n- b\n", "got a list of 2, expected sections"),
        ("a: 3\n", "section a: got 3, expected folders by kind"),
        ("a:\n  loras: 3\n", "section a, loras: got 3, expected a folder, or one per line"),
        ("a:\n  base_path: [x]\n", "section a, base_path: got a list of 1, expected a folder"),
        ("a: [\n", "not YAML: while parsing"),
        (None, "No such file or directory"),
    ],
)
def test_extra_model_paths_that_are_wrong_are_named(
    root: Path, text: str | None, expected: str
) -> None:
    file = root / "extra.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as caught:
        Settings.read(extra_model_paths=[file])
    assert (
        str(caught.value).startswith(f"{file}: ")
        and expected in str(caught.value)
        and "\n" not in str(caught.value)
    )


def test_an_empty_file_of_extra_model_paths_adds_nothing(root: Path) -> None:
    (root / "extra.yaml").write_text("# nothing yet\n")
    assert Settings.read(extra_model_paths=[root / "extra.yaml"]).extra == Settings.read().extra


@pytest.mark.defect(27)
def test_unlistable_entries_are_skipped_with_a_warning(
    folders: Folders, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "models/loras").mkdir(exist_ok=True)
    there = folders.choices("loras")
    (root / "models/loras/loop").symlink_to("loop")
    (root / "models/loras/ring.safetensors").symlink_to("ring.safetensors")
    (root / "models/loop").symlink_to("loop")
    with contextlib.suppress(OSError):  # not every file system allows such names
        Path(os.fsdecode(os.fsencode(root / "models/loras") + b"/\xff.safetensors")).touch()
    (root / "models/loras/new.safetensors").touch()
    assert folders.choices("loras") == tuple(sorted((*there, "new.safetensors")))
    assert "loras" in folders.kinds() and "loop" not in folders.kinds()
    assert sum("is not listed" in line or "skipped a name" in line for line in caplog.messages) in (
        2,
        3,
    )
    caplog.clear()
    folders.choices("loras")
    assert not caplog.messages  # reported once


@pytest.mark.defect(27)
def test_a_folder_that_may_not_be_read_is_left_out(
    folders: Folders, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed, listed = root / "models/loras/closed", os.scandir
    closed.mkdir(parents=True)

    def scandir(path: Path) -> Any:  # simulated, because root may read everything
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listed(path)

    there = folders.choices("loras")
    monkeypatch.setattr(os, "scandir", scandir)
    (root / "models/loras/new.safetensors").touch()
    assert folders.choices("loras") == tuple(sorted((*there, "new.safetensors")))
    assert any("closed is not listed: Permission denied" in one for one in caplog.messages)
