"""A model family is defined in its folder. The rest of the program reads its declaration and does
not name it, not even in docstrings and comments, except for ComfyUI's words, the nodes for a UNet's
stages, and forwards and kernels that stand in for library code.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from katz_graph.models.families import FAMILIES as LISTED
from katz_graph.models.families.unet.architecture import SCALES
from katz_graph.models.family import families

ROOT = Path(__file__).parents[2]
FAMILIES = "katz_graph/models/families/"
COMFY = ("katz_graph/comfy/",)  # ComfyUI's modules under their names
# forwards for library modules, found by the modules' names: a family works without them
BLOCKS = ("katz_graph/models/prepare.py", "katz_graph/models/prepared/")
FILES = ("katz_graph/testing/stand_ins/",)  # small files in published layouts
KERNELS = ("kernels/",)  # headers name the library code that a kernel stands in for
WORDS = {  # file -> words of another vocabulary that it must spell
    "katz_graph/adapters/naming.py": {"unet"},  # kohya's prefix for networks of every family
    "katz_graph/bench/edit_speed.py": {"sd3"},  # the shape that its bound is for
    # peers of the bench
    "katz_graph/bench/gpu/parts/transformers.py": {"flux", "z_image"},
    "katz_graph/bench/gpu/evaluations.py": {"flux"},  # measured kinds
    "katz_graph/bench/gpu/parts/rows.py": {"flux", "unet"},  # measured kinds
    "katz_graph/bench/random_members.py": {"flux"},  # the kind with reference images
    "katz_graph/bench/together.py": {"sd3"},  # the shape that its bound is for
    "katz_graph/files/folders.py": {"unet"},  # ComfyUI's folder of diffusion models
    # classes of VAEs, which several families share
    "katz_graph/models/vae/kinds.py": {"flux2", "qwen_image", "qwen_image_21"},
    "katz_graph/models/vae/statistics.py": {"qwen_image", "qwen_image_21"},
    # values of the node AlignYourStepsScheduler
    "katz_graph/sampling/aligned.py": {"sd1", "sdxl"},
    # values of CLIP loaders' types, a widget of UNETLoader, and its folder
    "nodes/loaders.py": {"flux", "flux2", "krea2", "qwen_image", "sd3", "sdxl", "unet"},
    "nodes/edit_prompts.py": {"qwen_image_21"},  # the space of its empty latent
    "nodes/model_conditioning.py": {"flux"},  # ComfyUI's menu path of FluxGuidance
    # ComfyUI's menu path of the empty latent; the space of latents with frames
    "nodes/latent.py": {"flux2", "qwen_image", "sd3"},
    "nodes/patches.py": {"unet"},  # ComfyUI's menu path of FreeU
    "nodes/denoise.py": {"unet"},  # nodes for a UNet's stages
}
SAID = re.compile(
    r"\bSD ?(1|2|3|XL)|Stable Diffusion|\bFLUX|Hunyuan|Z-Image|Qwen-Image|Krea|UNet",
    re.IGNORECASE,
)
SAYING = {"nodes/denoise.py"}  # files whose docstrings and comments may use these words


def names() -> set[str]:
    """Returns the names of networks, ControlNets, their parts, and versions."""
    declared = {
        name for family in families() for name in (*family.class_names, family.network.part)
    }
    own = {name.lower() for name in (*declared, *SCALES, *LISTED, "refiner")}
    return own - {"transformer"}  # text encoders are transformers too


def spelled(file: Path) -> Iterator[str]:
    """Yields identifiers, modules and texts of a file, without docstrings."""
    tree = ast.parse(file.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.ImportFrom(module=str(name)):
                yield name


def prose(file: Path) -> Iterator[str]:
    """Yields the docstrings and comments of a file."""
    with tokenize.open(file) as source:
        tokens = tokenize.generate_tokens(source.readline)
        yield from (one.string for one in tokens if one.type == tokenize.COMMENT)
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def files() -> Iterator[tuple[str, Path]]:
    """Yields each file that must name no family, after its path in the repository."""
    for layer in ("katz_graph", "nodes", "executor", "web", "kernels"):
        for file in (ROOT / layer).rglob("*.py"):
            place = file.relative_to(ROOT).as_posix()
            if "node_modules" not in file.parts and not place.startswith(FAMILIES):
                yield place, file


def test_no_docstring_or_comment_names_a_family() -> None:
    found = {place for place, file in files() if any(map(SAID.search, prose(file)))}
    assert {place for place in found if not place.startswith((*BLOCKS, *FILES, *KERNELS))} == SAYING


def test_names_of_families_stand_in_their_folders_alone() -> None:
    wanted, found = names(), {}
    for place, file in files():
        if place.startswith((*COMFY, *BLOCKS)):
            continue
        words = {
            word.lower()
            for text in spelled(file)
            for word in (text, *re.findall(r"[A-Za-z0-9]+", text))
        } & wanted
        if words:
            found[place] = words
    assert found == WORDS
