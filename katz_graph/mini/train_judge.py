"""Trains the judge on drawn pictures in all styles, blurred and noisy to resemble painted
pictures.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from katz_graph.mini import world
from katz_graph.mini.draw import draw
from katz_graph.mini.judge import PRESENCE, Judge, judge, overlap, save_judge
from katz_graph.mini.training import Budget, autocast, prepare, set_rate
from katz_graph.mini.world import STYLES, Scene, sample_scene

Target = dict[str, torch.Tensor]


def targets(scenes: list[Scene], styles: list[frozenset[str]]) -> Target:
    """Makes class indices. In empty cells, shapes [B, 9] have a separate class; colours and sizes
    are -1.
    """
    shape = torch.full((len(scenes), 9), PRESENCE)
    colour, size = torch.full((len(scenes), 9), -1), torch.full((len(scenes), 9), -1)
    for index, scene in enumerate(scenes):
        for thing in scene.things:
            cell = 3 * thing.row + thing.column
            shape[index, cell] = world.SHAPES.index(thing.shape)
            colour[index, cell] = world.COLOURS.index(thing.colour)
            size[index, cell] = world.SIZES.index(thing.size)
    background = torch.tensor([world.BACKGROUNDS.index(scene.background) for scene in scenes])
    style = torch.tensor([[float(name in chosen) for name in STYLES] for chosen in styles])
    return {
        "shape": shape,
        "colour": colour,
        "size": size,
        "background": background,
        "style": style,
    }


def drawn_batch(
    generator: np.random.Generator, batch: int, held_out: bool = False, styled: float = 0.25
) -> tuple[torch.Tensor, torch.Tensor, list[Scene], list[frozenset[str]]]:
    """Draws pictures [B, 3, 128, 128] in -1..1 and silhouettes [B, 128, 128] in 0..1; returns them
    with their scenes and styles.
    """
    scenes = [sample_scene(generator, held_out=held_out) for _ in range(batch)]
    styles = [frozenset(style for style in STYLES if generator.random() < styled) for _ in scenes]
    drawings = [
        draw(scene, 128, 128, int(generator.integers(1 << 31)), style)
        for scene, style in zip(scenes, styles, strict=True)
    ]
    pictures = torch.from_numpy(np.stack([drawing.picture for drawing in drawings])).permute(
        0, 3, 1, 2
    )
    silhouettes = (
        torch.from_numpy(np.stack([drawing.silhouette for drawing in drawings])).float() / 255
    )
    return pictures.float() / 127.5 - 1, silhouettes, scenes, styles


def blurred(pictures: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    """Blurs half of the batches; adds slight noise to all pictures and changes their contrast."""
    if generator.random() < 0.5:
        smaller = F.interpolate(
            pictures,
            scale_factor=float(generator.uniform(0.4, 0.8)),
            mode="bilinear",
            antialias=True,
        )
        pictures = F.interpolate(smaller, (128, 128), mode="bilinear")
    change = 1 + 0.06 * torch.randn(len(pictures), 1, 1, 1)
    return (
        pictures * change
        + 0.05 * torch.randn(len(pictures), 3, 1, 1)
        + 0.03 * torch.randn_like(pictures)
    )


def train_judge(
    output: Path, budget: Budget, seed: int = 0, batch: int = 48, peak: float = 3e-3
) -> None:
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    model = Judge()
    prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), peak, weight_decay=1e-3, fused=True)
    step = 0
    while (progress := budget.progress(step)) < 1:
        set_rate(optimizer, peak, step, progress)
        pictures, silhouettes, scenes, styles = drawn_batch(generator, batch)
        wanted = targets(scenes, styles)
        with autocast():
            found = model(
                blurred(pictures, generator).contiguous(memory_format=torch.channels_last)
            )
        found = {name: value.float() for name, value in found.items()}
        loss = F.cross_entropy(found["background"], wanted["background"])
        loss = loss + F.binary_cross_entropy_with_logits(found["style"], wanted["style"])
        loss = loss + 3 * F.binary_cross_entropy_with_logits(found["silhouette"], silhouettes)
        loss = loss + 3 * F.cross_entropy(found["shape"].flatten(0, 1), wanted["shape"].flatten())
        for name in ("colour", "size"):
            loss = loss + F.cross_entropy(
                found[name].flatten(0, 1), wanted[name].flatten(), ignore_index=-1
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"judge {step} {budget.seconds:.0f}s loss {float(loss.detach()):.3f}", flush=True)
    save_judge(model, output)
    print(f"judge done after {step} updates: {examine(model.eval())}", flush=True)


def examine(model: Judge, count: int = 1000, seed: int = 12345) -> dict[str, float]:
    """Measures the judge's accuracy per attribute on held-out drawings, plain and styled."""
    generator = np.random.default_rng(seed)
    right = dict.fromkeys(
        ("shape", "colour", "size", "place", "background", "styles", "silhouette"), 0.0
    )
    total = 0
    for _ in range(0, count, 50):
        pictures, silhouettes, scenes, styles = drawn_batch(generator, 50, held_out=True)
        verdicts = judge(model, (pictures.permute(0, 2, 3, 1) + 1) / 2)
        for verdict, scene, style, silhouette in zip(
            verdicts, scenes, styles, silhouettes, strict=True
        ):
            found = {(thing.row, thing.column): thing for thing in verdict.things}
            things = [found.get((thing.row, thing.column)) for thing in scene.things]
            pairs = list(zip(things, scene.things, strict=True))
            right["place"] += len(found) == len(pairs) and all(
                thing is not None for thing in things
            )
            for name in ("shape", "colour", "size"):
                right[name] += all(
                    a is not None and getattr(a, name) == getattr(b, name) for a, b in pairs
                )
            right["background"] += verdict.background == scene.background
            right["styles"] += verdict.styles == style
            right["silhouette"] += overlap(verdict.silhouette, silhouette > 0.5)
            total += 1
    return {name: round(value / total, 4) for name, value in right.items()}
