"""Provides `folder_paths` to packs: model, input, output and temporary folders, and the names of
files in them.
"""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from katz_graph.comfy.finder import installed
from katz_graph.comfy.missing import missing_names
from katz_graph.core.errors import InputError
from katz_graph.files.folders import KINDS, TEMP
from katz_graph.files.output_files import filled_prefix
from katz_graph.files.picture_kinds import PICTURE_ENDINGS
from katz_graph.files.weights import PICKLE_ENDINGS, WEIGHT_ENDINGS
from katz_graph.node.scope import current

supported_pt_extensions: set[str] = {*WEIGHT_ENDINGS, *PICKLE_ENDINGS}
ANNOTATIONS = {" [output]": "output", " [input]": "input", " [temp]": "temp"}


def get_input_directory() -> str:
    return str(installed().folders.input.absolute())


def get_output_directory() -> str:
    now = current()
    return str(
        (installed().folders.output if now is None else now.context.output_directory).absolute()
    )


def get_temp_directory() -> str:
    return str(Path(get_output_directory()) / TEMP)


def get_user_directory() -> str:
    return str(_base() / "user")


def get_directory_by_type(type_name: str) -> str | None:
    known = {
        "output": get_output_directory,
        "temp": get_temp_directory,
        "input": get_input_directory,
    }
    return known[type_name]() if type_name in known else None


def get_filename_list(folder_name: str) -> list[str]:
    """Lists the names below all folders of a kind, sorted."""
    names = set(installed().folders.choices(folder_name))
    for folder in _pack_folders(folder_name):
        names.update(filter_files_extensions(recursive_search(folder)[0], _table()[folder_name][1]))
    return sorted(names)


def get_full_path(folder_name: str, filename: str) -> str | None:
    """Returns the path of a file of a kind; None if it does not exist."""
    relative = os.path.normpath(f"/{filename}").lstrip("/")  # confines the name to the folder
    for folder in _pack_folders(folder_name):
        if (Path(folder) / relative).exists():
            return str(Path(folder) / relative)
    if filename not in installed().folders.choices(folder_name):
        return None
    return str(installed().folders.resolve(folder_name, filename).absolute())


def get_full_path_or_raise(folder_name: str, filename: str) -> str:
    found = get_full_path(folder_name, filename)
    if found is None:
        raise FileNotFoundError(
            f"{filename!r} is not in {folder_name} (searched "
            f"{', '.join(get_folder_paths(folder_name))})"
        )
    return found


def get_folder_paths(folder_name: str) -> list[str]:
    return list(_table().get(folder_name, _entry(folder_name))[0])


def add_model_folder_path(
    folder_name: str, full_folder_path: str, is_default: bool = False
) -> None:
    """Adds a folder for a kind, at the front if `is_default`."""
    folders, _ = _table().setdefault(folder_name, ([], set()))
    if full_folder_path not in folders:
        folders.insert(0 if is_default else len(folders), full_folder_path)


def recursive_search(
    directory: str, excluded_dir_names: list[str] | None = None
) -> tuple[list[str], dict[str, float]]:
    """Lists the files below a folder, and each folder's time of change."""
    left_out = {".git", *(excluded_dir_names or ())}
    files: list[str] = []
    changed: dict[str, float] = {}
    for where, inner, names in os.walk(directory, followlinks=True):
        inner[:] = [name for name in inner if name not in left_out]
        changed[where] = Path(where).stat().st_mtime
        files += [(Path(where) / name).relative_to(directory).as_posix() for name in names]
    return files, changed


def filter_files_extensions(files: Iterable[str], extensions: Iterable[str]) -> list[str]:
    """Filters names by their endings; without endings, returns all."""
    endings = tuple(extensions)
    return sorted(name for name in files if not endings or name.lower().endswith(endings))


def filter_files_content_types(files: Iterable[str], content_types: Iterable[str]) -> list[str]:
    """Filters names by content type: image, video, audio or model."""
    wanted = set(content_types)
    return [name for name in files if _content_type(name) in wanted]


def _content_type(name: str) -> str:
    """Returns image, video, audio, ... for a name's ending; "" for others."""
    if name.lower().endswith(PICTURE_ENDINGS):  # `mimetypes` lacks some
        return "image"
    return (mimetypes.guess_type(name)[0] or "").partition("/")[0]


def annotated_filepath(name: str) -> tuple[str, str | None]:
    """Splits `x.png [output]` into the name and its folder, or None if it names no folder."""
    for ending, kind in ANNOTATIONS.items():
        if name.endswith(ending):
            return name.removesuffix(ending), get_directory_by_type(kind)
    return name, None


def get_annotated_filepath(name: str, default_dir: str | None = None) -> str:
    """Returns a picture's path in its annotated folder, else `default_dir`, else the input folder;
    it need not exist. InputError outside of it.
    """
    plain, folder = annotated_filepath(name)
    if folder is None and default_dir is None and plain in installed().folders.choices("input"):
        return str(installed().folders.resolve("input", plain).absolute())
    return str(_inside(Path(folder or default_dir or get_input_directory()), plain))


def exists_annotated_filepath(name: str) -> bool:
    return Path(get_annotated_filepath(name)).exists()


def get_save_image_path(
    filename_prefix: str, output_dir: str, image_width: int = 0, image_height: int = 0
) -> tuple[str, str, int, str, str]:
    """Returns folder, stem, next free number, subfolder and expanded prefix for files
    `<stem>_<number>_...`. InputError outside of the folder.
    """
    prefix = filled_prefix(filename_prefix, image_width, image_height, 0).replace(
        "%batch_num%", "0"
    )
    path = _inside(Path(output_dir), prefix)
    path.parent.mkdir(parents=True, exist_ok=True)
    pattern = re.compile(re.escape(path.name) + r"_(\d+)", re.IGNORECASE)
    numbers = [
        int(match[1]) for entry in path.parent.iterdir() if (match := pattern.match(entry.name))
    ]
    subfolder = path.parent.relative_to(Path(output_dir).resolve()).as_posix().removeprefix(".")
    return str(path.parent), path.name, max(numbers, default=0) + 1, subfolder, prefix


def get_input_subfolders() -> list[str]:
    root = Path(get_input_directory())
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir())


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{name!r} points outside of the folder {folder}")
    return path


def _base() -> Path:
    """Returns a replacement for ComfyUI's folder: the parent of the first model folder."""
    return Path(_models_dir()).parent


def _models_dir() -> str:
    roots = installed().folders.models
    searched = installed().folders.searched("checkpoints")
    return str((searched[0].parent if roots and searched else Path("models")).absolute())


def _table() -> dict[str, tuple[list[str], set[str]]]:
    """Returns `folder_names_and_paths`: folders and endings by kind. Packs modify it."""
    table = installed().model_folders
    if not table:
        table.update((kind, _entry(kind)) for kind in installed().folders.kinds())
        table["custom_nodes"] = (installed().packs, set())
    return table


def _entry(kind: str) -> tuple[list[str], set[str]]:
    endings = KINDS[kind].endings if kind in KINDS else WEIGHT_ENDINGS
    return [str(path.absolute()) for path in installed().folders.searched(kind)], set(endings)


def _pack_folders(kind: str) -> list[str]:
    """Returns a kind's folders that packs added, or all folders if packs changed the endings."""
    own, endings = _entry(kind)
    folders, wanted = _table().get(kind, (own, endings))
    return [folder for folder in map(str, folders) if folder not in own or set(wanted) != endings]


def __getattr__(name: str) -> Any:
    if name == "models_dir":
        return _models_dir()
    if name == "base_path":
        return str(_base())
    if name == "folder_names_and_paths":
        return _table()
    if name in ("output_directory", "input_directory", "temp_directory", "user_directory"):
        return globals()[f"get_{name}"]()
    return missing_names(__name__, "")(name)


__file__ = str(_base() / "folder_paths.py")  # packs derive ComfyUI's folder from it
