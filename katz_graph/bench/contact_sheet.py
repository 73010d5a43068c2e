"""Draws pictures side by side as SVG, in named rows and columns. Must not know their content."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from PIL import Image
from torch import Tensor

SIDE, GAP, LEFT, TOP = 112, 4, 76, 24  # pixels: picture, gap, margins for row and column names
QUALITY = 85  # of JPEG


def contact_sheet(rows: Mapping[str, Sequence[Tensor]], columns: Sequence[str]) -> str:
    """Returns an SVG document of pictures [H, W, 3] in 0..1, one column per picture of a row."""
    width = LEFT + len(columns) * (SIDE + GAP)
    height = TOP + len(rows) * (SIDE + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, name in enumerate(columns):
        middle = LEFT + number * (SIDE + GAP) + SIDE / 2
        parts.append(f'<text x="{middle}" y="16" text-anchor="middle">{escape(name)}</text>')
    for row, (name, pictures) in enumerate(rows.items()):
        top = TOP + row * (SIDE + GAP)
        parts.append(
            f'<text x="{LEFT - 8}" y="{top + SIDE / 2}" text-anchor="end">{escape(name)}</text>'
        )
        for column, picture in enumerate(pictures):
            parts.append(
                f'<image x="{LEFT + column * (SIDE + GAP)}" y="{top}" width="{SIDE}" '
                f'height="{SIDE}" href="data:image/jpeg;base64,{_jpeg(picture)}"/>'
            )
    return "\n".join((*parts, "</svg>\n"))


def _jpeg(picture: Tensor) -> str:
    stream = io.BytesIO()
    levels = (picture.clamp(0, 1) * 255).round().byte().cpu().numpy()
    Image.fromarray(levels).save(stream, "JPEG", quality=QUALITY)
    return base64.b64encode(stream.getvalue()).decode()
