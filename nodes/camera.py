"""Describes camera angles around a subject in words."""

from __future__ import annotations

from math import cos, radians, sin
from typing import Annotated, Any

from pydantic import Field

from katz_graph.node import Node, Widget
from katz_graph.node.wires import Image, Socket

VIEWS = (  # by sectors of 45 degrees, clockwise seen from above, the first around 0
    "front view",
    "front-right quarter view",
    "right side view",
    "back-right quarter view",
    "back view",
    "back-left quarter view",
    "left side view",
    "front-left quarter view",
)
HEIGHTS = ((-15, "low-angle shot"), (15, "eye-level shot"), (45, "elevated shot"))
DISTANCES = ((2, "wide shot"), (6, "medium shot"))
DISTANCE, FIELD_OF_VIEW = 6.0, 35.0  # of the camera, and in degrees
ZOOM = 0.0875  # added to a factor of 1, for each unit of the widget

CameraInfo = Annotated[dict[str, Any], Socket("LOAD3D_CAMERA")]


class CameraAngle(
    Node,
    category="3d",
    title="Compose Camera Angle Prompt",
    names=("camera_info", "prompt"),
):
    """Describes a view of a subject at the origin in words, and as a camera. `horizontal_angle`: 0
    is the front, 90 the right side; `vertical_angle`: positive values look down. An image only
    serves a front end's preview.
    """

    horizontal_angle: Annotated[int, Field(ge=0, le=360)] = 0
    vertical_angle: Annotated[int, Field(ge=-30, le=60)] = 0
    zoom: Annotated[float, Field(ge=0.0, le=10.0), Widget(step=0.1)] = 5.0

    def run(self, image: Image | None = None) -> tuple[CameraInfo, str]:
        view = VIEWS[(2 * self.horizontal_angle + 45) // 90 % len(VIEWS)]
        height = _first_above(HEIGHTS, self.vertical_angle, "high-angle shot")
        distance = _first_above(DISTANCES, self.zoom, "close-up")
        across, up = radians(self.horizontal_angle), radians(self.vertical_angle)
        position = {
            "x": DISTANCE * cos(up) * sin(across),
            "y": DISTANCE * sin(up),
            "z": DISTANCE * cos(up) * cos(across),
        }
        camera = {
            "position": position,
            "target": dict.fromkeys("xyz", 0.0),
            "zoom": 1 + ZOOM * self.zoom,
            "cameraType": "perspective",
            "fov": FIELD_OF_VIEW,
        }
        return camera, f"{view} {height} {distance}"


def _first_above(limits: tuple[tuple[float, str], ...], value: float, otherwise: str) -> str:
    return next((words for limit, words in limits if value < limit), otherwise)
