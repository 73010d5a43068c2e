"""Lists model and picture folders, and resolves a chosen name to its path.

Must not know the contents of the files.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from katz_graph.core.errors import InputError
from katz_graph.core.messages import listed, show, suggest
from katz_graph.files.entries import Entry, Skipped, entries_of
from katz_graph.files.extra_paths import ExtraPaths
from katz_graph.files.picture_kinds import PICTURE_ENDINGS
from katz_graph.files.urls import NONE, FetchRule, is_remote, is_url, shown
from katz_graph.files.weights import WEIGHT_ENDINGS, is_pickle, is_weights

PICKLED = (
    "is a pickle, which can run code when it is opened, so it is never loaded; "
    "use the .safetensors file of the same model (convert it once with safetensors.torch.save_file)"
)
log = logging.getLogger("katz_graph")
MINI = Path(__file__).parents[1] / "mini" / "weights"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# a name with the user folder that holds the file
ANNOTATED = re.compile(r"(.*\S)\s+\[(input|output|temp)\]", re.DOTALL)
TEMP = "temp"  # inside the output folder: files for previews only
OUTSIDE = re.compile(r"[/\\~]|[A-Za-z]:")  # prefixes of names that are not relative
SETTLED = 2.0  # seconds; changes in quick succession may leave the modification time equal


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of choice: its folders, file extensions, and the marker file of a folder that is a
    single choice.

    `fetched`: a URL may name a file of this kind.
    """

    folders: tuple[str, ...]
    endings: tuple[str, ...] = WEIGHT_ENDINGS
    marker: str | None = None
    fetched: bool = False


KINDS: Mapping[str, FolderKind] = {
    "checkpoints": FolderKind(("checkpoints",), marker="model_index.json"),
    "controlnet": FolderKind(("controlnet", "t2i_adapter"), marker="config.json", fetched=True),
    "loras": FolderKind(("loras",), fetched=True),
    "model_patches": FolderKind(("model_patches",), marker="config.json"),
    "vae": FolderKind(("vae",), marker="config.json"),
    "clip": FolderKind(("text_encoders", "clip"), marker="config.json"),
    "unet": FolderKind(("diffusion_models", "unet"), marker="config.json"),
    "embeddings": FolderKind(("embeddings",)),
    "diffusers": FolderKind(("diffusers",), (), marker="model_index.json"),
    "configs": FolderKind(("configs",), (".yaml",)),
    "input": FolderKind(("",), PICTURE_ENDINGS),
    "latents": FolderKind(("",), (".latent",)),
}
USUAL = (
    *(
        "checkpoints",
        "loras",
        "vae",
        "clip",
        "unet",
        "controlnet",
        "embeddings",
        "clip_vision",
        "style_models",
        "upscale_models",
    ),
    *(
        "hypernetworks",
        "gligen",
        "configs",
        "vae_approx",
        "photomaker",
        "diffusers",
        "classifiers",
        "model_patches",
        "audio_encoders",
    ),
)
# folders of the miniature models, by the names that loaders accept
SHIPPED: Mapping[str, Mapping[str, str]] = {
    "checkpoints": {"katz-mini": "pipeline"},
    "unet": {"katz-mini-flow": "flow/transformer"},
    "vae": {"katz-mini-flow": "flow/vae"},
    "clip": {
        "katz-mini-clip-l": "pipeline/text_encoder",
        "katz-mini-clip-g": "pipeline/text_encoder_2",
        "katz-mini-t5": "flow/text_encoder_3",
    },
}
# current names of kinds in editors, and other aliases of kinds
PRESENT = {"text_encoders": "clip", "diffusion_models": "unet"}
SAME_AS = PRESENT | {"t2i_adapter": "controlnet"}
# kinds in the input folder, unless the name ends in another one: `x.png [output]`
USER_FILE_KINDS = ("input", "latents")


@dataclass(frozen=True, slots=True)
class _Listing:
    files: Mapping[str, Path]
    visited: tuple[tuple[Path, int], ...]  # folder, modification time in ns
    taken: float  # seconds since the epoch
    skipped: tuple[str, ...]  # lines about skipped entries


@dataclass(frozen=True, slots=True)
class Folders:
    """The roots of model folders in search order, and the folders of pictures. The package's models
    come last.
    """

    models: tuple[Path, ...] = ()
    """Roots. A root may be a ComfyUI folder with its models in `models`."""
    input: Path = Path("input")
    output: Path = Path("output")
    paths: bool = True
    """A path outside of the roots or a hub id may name a model; False on a server."""
    extra: ExtraPaths = field(default_factory=ExtraPaths)
    """Additional folders of single kinds."""
    fetch: FetchRule = NONE
    """The URLs that may name a model."""
    _listings: dict[str, _Listing] = field(default_factory=dict, compare=False, repr=False)

    def choices(self, kind: str) -> tuple[str, ...]:
        """Returns the sorted names of one kind, with '/' as separator. Lists the folders again
        after a change.
        """
        return tuple(sorted(self.files(kind)))

    def files(self, kind: str) -> Mapping[str, Path]:
        """Returns the path of each name that `choices` lists."""
        kind = SAME_AS.get(kind, kind)
        known = self._listings.get(kind)
        if known is not None and _current(known):
            return known.files
        taken = time.time()
        files: dict[str, Path] = {}
        visited: list[tuple[Path, int]] = []
        skipped: list[str] = []
        for root in self._roots(kind):
            for name, path in _walk(root, _kind(kind), visited, skipped.append):
                files.setdefault(name, path)
        for line in skipped:
            if known is None or line not in known.skipped:
                log.warning("%s", line)
        for name, path in _shipped(kind):
            files.setdefault(name, path)
        self._listings[kind] = _Listing(files, tuple(visited), taken, tuple(skipped))
        return files

    def resolve(self, kind: str, name: str) -> Path:
        """Returns the file or diffusers folder called `name`. InputError lists similar names and
        the searched folders.

        Returns the name unchanged if it can only be a hub id (`owner/name`), which the loader
        fetches. A picture's name may end in its folder: `[input]`, `[output]` or `[temp]`.
        """
        annotated = ANNOTATED.fullmatch(name) if kind in USER_FILE_KINDS else None
        if annotated:
            name = annotated[1]
            kind = kind if annotated[2] == "input" else f"{kind} [{annotated[2]}]"
        found = self._local(kind, name)
        if found is not None:
            return found
        if self._may_be_on_hub(kind, name):
            return Path(name)
        raise InputError(self._unknown(kind, name))

    def check(self, kind: str, name: str) -> None:
        """Raises InputError if a kind has no such choice: a file, a folder, or an allowed URL.
        Contacts no server.
        """
        if is_url(name):
            self._check_url(kind, name)
        else:
            self.resolve(kind, name)

    def of_url(self, kind: str, url: str) -> Path | None:
        """Returns the local file of a URL (`file://...`); None if the file has to be fetched.
        InputError for a URL that is not allowed.
        """
        self._check_url(kind, url)
        return None if is_remote(url) else Path(unquote(urlsplit(url).path))

    def _check_url(self, kind: str, url: str) -> None:
        if not _kind(kind).fetched:
            raise InputError(
                f"{shown(url)}: {kind} cannot be named by a URL: use a name inside the "
                f"{kind} folders"
            )
        if not self.fetch.allows(url):
            raise InputError(
                f"{shown(url)}: may not be fetched here (--fetch, KATZ_FETCH): use a name inside "
                f"the {kind} folders"
            )
        if is_pickle(unquote(urlsplit(url).path)):
            raise InputError(f"{shown(url)} {PICKLED}")

    def _local(self, kind: str, name: str) -> Path | None:
        files = self.files(kind)
        found = files.get(name) or files.get(name.replace("\\", "/"))
        if found is not None:
            return found
        marker = _kind(kind).marker
        if self.paths and marker and _holds(Path(name), marker):
            return Path(name)
        if "\0" in name or ".." in re.split(r"[/\\]", name) or OUTSIDE.match(name):
            folder = f", or a folder with {marker}" if self.paths and marker else ""
            raise InputError(
                f"{show(name)} points outside of the {kind} folders; use a name inside them{folder}"
            )
        return self._picture(kind, name) if _base(kind) == "input" else None

    def _picture(self, kind: str, name: str) -> Path | None:
        """Returns an uploaded file whose name has no picture extension."""
        if any(part.startswith(".") for part in name.split("/")):
            return None
        found = (root / name for root in self._roots(kind))
        return next((path for path in found if is_file(path)), None)

    def _may_be_on_hub(self, kind: str, name: str) -> bool:
        is_file = is_weights(name) or is_pickle(name)
        return (
            self.paths
            and _kind(kind).marker is not None
            and not is_file
            and HUB_ID.fullmatch(name) is not None
        )

    def _unknown(self, kind: str, name: str) -> str:
        if is_pickle(name) and _base(kind) not in USER_FILE_KINDS:
            return f"{show(name)} {PICKLED}"
        choices = self.choices(kind)
        suggestion = suggest(name, choices) or (
            f"; available: {listed(choices)}" if choices else "; none is available"
        )
        searched = ", ".join(map(str, self._roots(kind))) or "no folder: no model folder is set"
        return f"{show(name)} is not in {kind}{suggestion}" + (
            f" (searched {searched})" if self.paths else ""
        )

    def _roots(self, kind: str) -> list[Path]:
        if _base(kind) in USER_FILE_KINDS:
            place = kind.removeprefix(_base(kind)).strip(" []") or "input"
            return [{"input": self.input, "output": self.output, "temp": self.output / TEMP}[place]]
        folders = _kind(kind).folders
        before, after = (
            [path for folder in folders for path in extra.get(folder, ())]
            for extra in (self.extra.before, self.extra.after)
        )
        return [
            *before,
            *(_models_of(root) / folder for root in self.models for folder in folders),
            *after,
        ]

    def searched(self, kind: str) -> tuple[Path, ...]:
        """Returns the folders searched for a kind, in order; they need not exist."""
        return tuple(self._roots(kind))

    def kinds(self) -> tuple[str, ...]:
        """Returns the kinds of models that have a folder, or usually have one."""
        there = [entry.name for root in self.models for entry in _folders_in(_models_of(root))]
        return tuple(
            dict.fromkeys(
                SAME_AS.get(kind, kind)
                for kind in (*USUAL, *self.extra.before, *self.extra.after, *there)
            )
        )


def _base(kind: str) -> str:
    """Returns a kind without its folder suffix: `input [output]` -> `input`."""
    return kind.partition(" [")[0]


def _kind(kind: str) -> FolderKind:
    kind = SAME_AS.get(kind, kind)
    return KINDS.get(_base(kind)) or FolderKind((kind,))


def _models_of(root: Path) -> Path:
    inner = root / "models"
    return inner if inner.is_dir() and not (root / "checkpoints").is_dir() else root


def _folders_in(folder: Path) -> list[Entry]:
    try:
        found = entries_of(folder, lambda line: None)
    except OSError:
        return []
    return [entry for entry in found if entry.is_folder and entry.name[0] != "."]


def _holds(folder: Path, marker: str) -> bool:
    return is_file(folder / marker)


def is_file(path: Path) -> bool:
    """Returns whether the file exists; never raises."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # the name is too long or contains a NUL byte
        return False


def _walk(
    root: Path, kind: FolderKind, visited: list[tuple[Path, int]], skipped: Skipped
) -> Iterator[tuple[str, Path]]:
    """Yields the choices below `root`. Visits each folder once, so that a loop of links ends."""
    pending = [root]
    seen: set[tuple[int, int]] = set()
    while pending:
        folder = pending.pop()
        try:
            state = folder.stat()
            met = (state.st_dev, state.st_ino) in seen
            entries = () if met else entries_of(folder, skipped)
        except FileNotFoundError:
            visited.append((folder, 0))
            continue
        except OSError as error:
            skipped(f"{folder} is not listed: {error.strerror or error}")
            visited.append((folder, 0))
            continue
        seen.add((state.st_dev, state.st_ino))
        visited.append((folder, state.st_mtime_ns))
        names = {entry.name for entry in entries}
        if kind.marker in names and folder != root:
            yield folder.relative_to(root).as_posix(), folder
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = entry.path
            if entry.is_folder:
                pending.append(path)
            elif entry.name.lower().endswith(kind.endings) and entry.is_file:
                yield path.relative_to(root).as_posix(), path


def _current(listing: _Listing) -> bool:
    return all(
        _changed_ns(folder) == then and listing.taken - then / 1e9 > SETTLED
        for folder, then in listing.visited
    )


def _changed_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _shipped(kind: str) -> Iterator[tuple[str, Path]]:
    """Yields the miniature models and example pictures of the package."""
    if kind in SHIPPED:
        named = ((name, MINI / place) for name, place in SHIPPED[kind].items())
        yield from ((name, folder) for name, folder in named if folder.is_dir())
    elif kind == "controlnet":
        yield from (
            (f"katz-mini-{folder.name}", folder)
            for folder in sorted((MINI / kind).glob("*"))
            if folder.is_dir()
        )
    elif kind == "loras":
        yield from (
            (f"katz-mini-{file.name}", file) for file in sorted((MINI / kind).glob("*.safetensors"))
        )
    elif kind == "input":
        yield from ((file.name, file) for file in sorted((MINI / "examples").glob("*.png")))
