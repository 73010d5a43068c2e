"""Builds the ui output of ComfyUI V3 nodes: pictures and texts, as the dictionaries that clients
expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from katz_graph.comfy.missing import missing_names
from katz_graph.comfy.v3.inputs import FolderType
from katz_graph.files.folders import TEMP
from katz_graph.node.scope import current_context

if TYPE_CHECKING:
    from torch import Tensor

__getattr__ = missing_names(
    "comfy_api.latest.ui",
    "AudioSaveHelper PreviewAudio PreviewVideo PreviewUI3D PreviewUI3DAdvanced SavedAudios",
)


class SavedResult(dict[str, Any]):
    """A file reference in the form that clients receive."""

    def __init__(self, filename: str, subfolder: str, type: FolderType | str) -> None:
        super().__init__(filename=filename, subfolder=subfolder, type=str(type))

    @property
    def filename(self) -> str:
        return str(self["filename"])

    @property
    def subfolder(self) -> str:
        return str(self["subfolder"])


class SavedImages:
    """A list of written pictures."""

    def __init__(self, results: Sequence[SavedResult], is_animated: bool = False) -> None:
        self.results, self.is_animated = list(results), is_animated

    def as_dict(self) -> dict[str, Any]:
        return {"images": self.results} | ({"animated": (True,)} if self.is_animated else {})


class ImageSaveHelper:
    """Writes pictures [B, H, W, C] as PNG files with the workflow in their metadata."""

    @staticmethod
    def save_images(
        images: Tensor,
        filename_prefix: str,
        folder_type: FolderType = FolderType.output,
        cls: Any = None,
        compress_level: int = 4,
    ) -> list[SavedResult]:
        from katz_graph.files.images import save_images

        context = current_context("saving pictures")
        folder = (
            context.output_directory / TEMP
            if folder_type == FolderType.temp
            else context.output_directory
        )
        saved = []
        for path in save_images(images, folder, filename_prefix, context.metadata):
            subfolder = (
                path.resolve().parent.relative_to(folder.resolve()).as_posix().removeprefix(".")
            )
            saved.append(SavedResult(path.name, subfolder, folder_type))
        return saved

    @classmethod
    def get_save_images_ui(
        cls_, images: Tensor, filename_prefix: str, cls: Any = None, compress_level: int = 4
    ) -> SavedImages:
        return SavedImages(cls_.save_images(images, filename_prefix))


class PreviewImage:
    """Writes pictures [B, H, W, C] to the temporary folder."""

    def __init__(self, image: Tensor, animated: bool = False, cls: Any = None, **_: Any) -> None:
        self.values = ImageSaveHelper.save_images(image, "preview", FolderType.temp)
        self.animated = animated

    def as_dict(self) -> dict[str, Any]:
        return SavedImages(self.values, self.animated).as_dict()


class PreviewMask(PreviewImage):
    """Writes masks [B, H, W] as grey pictures."""

    def __init__(self, mask: Tensor, animated: bool = False, cls: Any = None, **_: Any) -> None:
        super().__init__(mask.reshape(-1, *mask.shape[-2:], 1).expand(-1, -1, -1, 3), animated)


class PreviewText:
    def __init__(self, value: str, **_: Any) -> None:
        self.value = value

    def as_dict(self) -> dict[str, Any]:
        return {"text": (self.value,)}


def as_dict(ui: Any) -> dict[str, Any]:
    """Converts a node's ui to the dictionary that clients expect."""
    shown: dict[str, Any] = ui.as_dict() if hasattr(ui, "as_dict") else dict(ui)
    return shown
