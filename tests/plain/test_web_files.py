"""Tests which uploads and views are stored, shown or refused."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from pace import pace
from PIL import Image, ImageFile
from starlette.testclient import TestClient
from web_files import bomb, everything_below, file_server, picture

from katz_graph.core.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.files.images import load_image
from katz_graph.files.picture_kinds import PICTURE_KINDS
from katz_graph.web.options import Limits
from katz_graph.web.routes import models


@pytest.fixture
def server(tmp_path: Path) -> TestClient:
    return file_server(tmp_path)


def upload(
    server: TestClient,
    content: bytes,
    name: str = "a.png",
    route: str = "/upload/image",
    **fields: str,
) -> Any:
    return server.post(route, files={"image": (name, content)}, data=fields)


def test_an_uploaded_picture_is_stored_as_it_came_and_shown(
    server: TestClient, tmp_path: Path
) -> None:
    content = picture(workflow='{"nodes":[]}')
    answer = upload(server, content, "cat.png", subfolder="pets/indoor")
    assert answer.json() == {"name": "cat.png", "subfolder": "pets/indoor", "type": "input"}
    assert (tmp_path / "input/pets/indoor/cat.png").read_bytes() == content
    shown = server.get(
        "/api/view",
        params={"filename": "cat.png", "subfolder": "pets/indoor", "type": "input", "rand": "0.5"},
    )
    assert shown.content == content
    assert shown.headers["content-type"] == "image/png"
    assert (
        server.get("/view", params={"filename": "pets/indoor/cat.png [input]"}).content == content
    )
    assert everything_below(tmp_path / "input") == {"pets/indoor/cat.png"}


def test_same_name_and_content_is_one_file_and_other_content_gets_a_number(
    server: TestClient, tmp_path: Path
) -> None:
    red, green = picture(colour=(255, 0, 0, 255)), picture(colour=(0, 255, 0, 255))
    names = [upload(server, content).json()["name"] for content in (red, red, green, green, red)]
    assert names == ["a.png", "a.png", "a (1).png", "a (1).png", "a.png"]
    assert upload(server, green, overwrite="true").json()["name"] == "a.png"
    assert (tmp_path / "input/a.png").read_bytes() == green
    assert everything_below(tmp_path / "input") == {"a.png", "a (1).png"}


@pytest.mark.parametrize("place", ["input", "output", "temp"])
def test_uploads_go_to_the_folder_of_their_type(
    server: TestClient, tmp_path: Path, place: str
) -> None:
    assert upload(server, picture(), type=place).json()["type"] == place
    folder = {"input": "input", "output": "output", "temp": "output/temp"}[place]
    assert everything_below(tmp_path / folder) == {"a.png"}
    assert server.get("/view", params={"filename": "a.png", "type": place}).status_code == 200


@pytest.mark.parametrize(
    ("given", "kind", "stored"),
    [
        ("photo.jpg", "jpeg", "photo.jpg"),
        ("really a png.jpg", "png", "really a png.jpg"),
        ("blob", "webp", "blob"),
        ("photo.jfif", "jpeg", "photo.jfif"),
        ("12.05. at noon", "png", "12.05. at noon"),
        ("page.html", "png", "page.html.png"),
        ("drawing.svg", "png", "drawing.svg.png"),
        (".hidden.png", "png", "hidden.png"),
        ("a<b>:|?*\u202eb.png", "png", "a_b______b.png"),
        ("CON.png", "png", "_CON.png"),
        ("ü" * 200 + ".png", "png", "ü" * ((255 - 16 - 4) // 2) + ".png"),
    ],
)
def test_names_become_harmless_and_end_like_pictures(
    server: TestClient, tmp_path: Path, given: str, kind: str, stored: str
) -> None:
    answer = upload(server, picture(kind), given)
    assert answer.json()["name"] == stored
    assert everything_below(tmp_path / "input") == {stored}


@pytest.mark.parametrize(
    "name", ["../a.png", "/etc/a.png", "..\\a.png", "x/a.png", "..", "C:/a.png"]
)
def test_names_with_folders_are_refused(server: TestClient, tmp_path: Path, name: str) -> None:
    assert upload(server, picture(), name).status_code == 400
    assert everything_below(tmp_path) == set()


@pytest.mark.parametrize(
    "subfolder",
    ["..", "../output", "/tmp", "a/../../b", "C:/x", "a\\b", "a\0b", "x" * 300, ".git", "a/" * 40],
)
def test_subfolders_that_lead_out_are_refused(
    server: TestClient, tmp_path: Path, subfolder: str
) -> None:
    assert upload(server, picture(), subfolder=subfolder).status_code == 400
    assert everything_below(tmp_path) == set()


def test_uploads_do_not_follow_links_out(server: TestClient, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "input/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "secret.png").write_bytes(picture(colour=(1, 2, 3, 4)))
    (tmp_path / "input/a.png").symlink_to(tmp_path / "secret.png")
    assert upload(server, picture(), subfolder="link").status_code == 403
    assert upload(server, picture()).json()["name"] == "a (1).png"
    assert upload(server, picture(), overwrite="1").json()["name"] == "a.png"
    assert (tmp_path / "secret.png").read_bytes() == picture(colour=(1, 2, 3, 4))
    assert everything_below(tmp_path / "elsewhere") == set()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


WRONG = {
    "empty": b"",
    "svg": SVG,
    "html": b"<html><script>alert(1)</script>",
    "cut gif": b"GIF89a" + b"\0" * 50,
    "cut png": picture(size=(64, 64))[:80],
    "noise after a png's signature": b"\x89PNG\r\n\x1a\n" + b"\xff" * 200,
    "cut jpeg": picture("jpeg", size=(64, 64))[:-200],
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_only_whole_pictures_are_stored(server: TestClient, tmp_path: Path, content: bytes) -> None:
    answer = upload(server, content, "a.png")
    assert answer.status_code == 400
    assert "error" in answer.json()
    assert everything_below(tmp_path) == set()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_pixels_are_counted_before_they_are_decoded(server: TestClient, tmp_path: Path) -> None:
    small = file_server(tmp_path, limits=Limits(upload_pixels=100))
    assert upload(small, picture(size=(10, 10))).status_code == 200
    assert upload(small, picture(size=(10, 11))).status_code == 413
    for width, height in [(60_000, 60_000), (2**31 - 1, 2**31 - 1), (20_000, 5_000)]:
        assert upload(server, bomb(width, height), "b.png").status_code == 413
    assert everything_below(tmp_path) == {"input/a.png"}


def test_frames_of_an_animation_count_together(tmp_path: Path) -> None:
    server = file_server(tmp_path, limits=Limits(upload_pixels=100))
    for kind in ("png", "webp"):
        file = io.BytesIO()
        frames = [Image.new("RGB", (5, 5), (shade, 0, 0)) for shade in range(0, 250, 50)]
        frames[0].save(file, kind, save_all=True, append_images=frames[1:])
        assert upload(server, file.getvalue()).status_code == 413
        file = io.BytesIO()
        frames[0].save(file, kind, save_all=True, append_images=frames[1:4])
        assert upload(server, file.getvalue()).status_code == 200


def gif_parts(image: Image.Image) -> tuple[bytes, bytes]:
    """Returns the bytes before the frame, and the frame."""
    file = io.BytesIO()
    image.save(file, "gif")
    head, mark, frame = file.getvalue().partition(b"," + struct.pack("<HHHH", 0, 0, *image.size))
    return head, mark + frame[:-1]


@pytest.mark.defect(21)
@pytest.mark.parametrize("kind", ["gif", "tiff", "mpo"])
def test_frames_that_grow_are_not_decoded(tmp_path: Path, kind: str) -> None:
    server = file_server(tmp_path, limits=Limits(upload_pixels=10_000))
    large = Image.new("L", (2_000, 2_000))
    file = io.BytesIO()
    if kind == "gif":  # Pillow writes frames of one size only
        small, later = (gif_parts(image) for image in (Image.new("L", (1, 1)), large))
        file.write(small[0] + small[1] + later[1] + b";")
    else:
        Image.new("L", (1, 1)).save(file, kind, save_all=True, append_images=[large])
    answer = upload(server, file.getvalue())
    assert answer.status_code == 413 and "2000x2000" in answer.text


@pytest.mark.defect(21)
def test_frames_are_not_counted_to_their_end(tmp_path: Path) -> None:
    """Pillow compares each directory of a TIFF with all earlier ones."""
    tags = [(256, 1), (257, 1), (258, 8), (259, 1), (262, 1), (273, 0), (278, 1), (279, 1)]
    page = struct.pack("<H", len(tags)) + b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags
    )
    size, pages = len(page) + 4, 20_000
    content = b"II*\0" + struct.pack("<I", 8)
    content += b"".join(page + struct.pack("<I", 8 + size * at) for at in range(1, pages))
    began = time.process_time()
    answer = upload(file_server(tmp_path), content)
    assert answer.status_code == 413 and "1,000 frames" in answer.text
    took = time.process_time() - began
    assert took < 2.0 * pace()


@pytest.mark.defect(21)
def test_a_preview_that_cannot_be_is_refused_before_it_is_decoded(
    server: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(server, picture(size=(1, 17_000)))
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda picture: pytest.fail("decoded"))
    for parameters in ({"preview": "webp"}, {"preview": "jpeg;50"}, {"width": "1"}):
        assert view(server, **parameters).status_code == 413


def test_bytes_are_capped_with_and_without_an_announced_length(tmp_path: Path) -> None:
    server = file_server(tmp_path, limits=Limits(upload_bytes=100_000))
    assert upload(server, picture() + b"\0" * 100_000).status_code == 413
    assert upload(server, b"\0" * 3_000_000).status_code == 413
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    sent = 0

    def pieces() -> Any:
        nonlocal sent
        yield head
        for _ in range(40):
            sent += 2**16
            yield b"\0" * 2**16

    answer = server.post(
        "/upload/image",
        content=pieces(),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    assert answer.status_code == 413
    assert everything_below(tmp_path) == set()


def test_a_full_disk_is_507_and_leaves_nothing(
    server: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    answer = upload(server, picture())
    assert answer.status_code == 507
    assert str(tmp_path) not in answer.text
    assert everything_below(tmp_path) == set()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=x"),
        (b"--x--\r\n", "multipart/form-data; boundary=x"),
        (b"--x\r\n\r\n\r\n--x--", "multipart/form-data; boundary=x"),
        (b"nonsense", "multipart/form-data; boundary=x"),
        (b"--x\r\n", "multipart/form-data"),
        (b"{}", "application/json"),
        (b"image=a.png", "application/x-www-form-urlencoded"),
        (b"", ""),
    ],
)
@pytest.mark.parametrize("route", ["/upload/image", "/upload/mask"])
def test_bodies_that_hold_no_picture_are_400(
    server: TestClient, body: bytes, kind: str, route: str
) -> None:
    answer = server.post(route, content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert "error" in answer.json()


def test_a_text_where_a_file_belongs_is_400(server: TestClient) -> None:
    assert server.post("/upload/image", files={"image": (None, "text")}).status_code == 400
    assert (
        server.post(
            "/upload/image", files={"image": ("a.png", picture()), "type": ("x", b"input")}
        ).status_code
        == 400
    )
    assert upload(server, picture(), type="models").status_code == 400


def test_a_mask_becomes_the_alpha_of_its_picture(server: TestClient, tmp_path: Path) -> None:
    upload(server, picture(colour=(200, 10, 30, 255), workflow="kept"), "cat.png", type="output")
    mask = picture(colour=(0, 0, 0, 77))
    reference = json.dumps({"filename": "cat.png", "subfolder": "", "type": "output"})
    answer = upload(
        server,
        mask,
        "clipspace-mask.png",
        "/upload/mask",
        original_ref=reference,
        subfolder="clipspace",
    )
    assert answer.json() == {
        "name": "clipspace-mask.png",
        "subfolder": "clipspace",
        "type": "input",
    }
    with Image.open(tmp_path / "input/clipspace/clipspace-mask.png") as stored:
        assert stored.getpixel((1, 1)) == (200, 10, 30, 77)
        assert stored.text["workflow"] == "kept"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reference", "status"),
    [
        ("", 400),
        ("{", 400),
        ("[]", 400),
        ('{"filename": 3}', 400),
        ('{"filename": "../a.png"}', 400),
        ('{"filename": "a.png", "type": "models"}', 400),
        ('{"filename": "missing.png"}', 404),
        ('{"filename": "other.png"}', 400),
    ],
)
def test_a_mask_needs_a_picture_of_its_size(
    server: TestClient, reference: str, status: int
) -> None:
    upload(server, picture(size=(9, 9)), "other.png", type="output")
    assert (
        upload(server, picture(), "mask.png", "/upload/mask", original_ref=reference).status_code
        == status
    )


def view(server: TestClient, **parameters: Any) -> Any:
    return server.get("/view", params={"filename": "a.png", "type": "input", **parameters})


def decoded(answer: Any) -> Image.Image:
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content))


def test_previews_and_channels(server: TestClient) -> None:
    upload(server, picture(colour=(200, 10, 30, 128)))
    webp = decoded(view(server, preview="webp;90"))
    assert (webp.format, webp.mode, webp.size) == ("WEBP", "RGBA", (4, 3))
    jpeg = view(server, preview="jpeg;50")
    assert (decoded(jpeg).format, jpeg.headers["content-type"]) == ("JPEG", "image/jpeg")
    assert decoded(view(server, channel="rgb")).getpixel((0, 0)) == (200, 10, 30)
    assert decoded(view(server, channel="a")).getpixel((0, 0)) == (0, 0, 0, 128)
    assert decoded(view(server, preview="bmp")).format == "WEBP"
    assert view(server, preview="webp;9000").status_code == 400
    assert view(server, channel="x").status_code == 400


def test_thumbnails(server: TestClient) -> None:
    upload(server, picture(size=(60, 40), colour=(200, 10, 30, 128)))
    small = view(server, width=30)
    assert (decoded(small).format, decoded(small).size) == ("WEBP", (30, 20))
    assert decoded(view(server, width=30, channel="a")).size == (30, 20)
    assert decoded(view(server, width=4000)).size == (60, 40)
    assert view(server, width=-1).status_code == view(server, width=5000).status_code == 400
    tag = small.headers["etag"]
    again = server.get(
        "/view",
        params={"filename": "a.png", "type": "input", "width": 31},
        headers={"If-None-Match": tag},
    )
    assert again.status_code != 304


def test_a_bomb_in_the_output_folder_is_not_decoded(server: TestClient, tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output/bomb.png").write_bytes(bomb(30_000, 30_000))
    assert (
        server.get("/view", params={"filename": "bomb.png", "preview": "webp"}).status_code == 413
    )
    (tmp_path / "output/text.png").write_bytes(b"no picture")
    assert server.get("/view", params={"filename": "text.png", "channel": "rgb"}).status_code == 400


def test_ranges_and_tags(server: TestClient) -> None:
    content = picture()
    upload(server, content)
    whole = view(server)
    part = server.get("/view?filename=a.png&type=input", headers={"Range": "bytes=2-5"})
    assert (part.status_code, part.content) == (206, content[2:6])
    for parameters in ({}, {"preview": "webp;90"}, {"channel": "a"}):
        tag = view(server, **parameters).headers["etag"]
        again = server.get(
            "/view",
            params={"filename": "a.png", "type": "input", **parameters},
            headers={"If-None-Match": f'"x", W/{tag}'},
        )
        assert (again.status_code, again.content) == (304, b"")
    upload(server, picture(colour=(9, 9, 9, 9)), overwrite="true")
    changed = server.get(
        "/view?filename=a.png&type=input", headers={"If-None-Match": whole.headers["etag"]}
    )
    assert changed.status_code == 200
    assert server.head("/view?filename=a.png&type=input").status_code == 200
    assert (
        server.get("/view?filename=a.png&type=input", headers={"Range": "bytes=900-"}).status_code
        == 416
    )


@pytest.mark.parametrize(
    "name",
    [
        "x.svg",
        "x.html",
        "x.htm",
        "x.xhtml",
        "x.js",
        "x.mjs",
        "x.xml",
        "x.pdf",
        "x.swf",
        "x",
        "x.SVG",
    ],
)
def test_active_content_is_never_shown_inline(
    server: TestClient, tmp_path: Path, name: str
) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / name).write_bytes(SVG)
    answer = server.get("/view", params={"filename": name})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("missing.png", 404),
        ("", 400),
        (".", 400),
        ("..", 400),
        ("../secret.txt", 400),
        ("/etc/passwd", 400),
        ("%2e%2e/secret.txt", 404),
        ("..%2fsecret.txt", 400),
        ("a\0.png", 400),
        ("C:/secret.txt", 400),
        ("..\\secret.txt", 400),
        ("../secret.txt [output]", 400),
        ("x.png [input] [temp]", 404),
        ("blake3:0123", 404),
        ("folder", 404),
        ("pipe.png", 404),
        ("out.txt", 403),
        ("out/secret.txt", 403),
        ("loop", 400),
        ("x" * 300 + ".png", 400),
        ("x/" * 600, 400),
        ("\ud800.png", 404),
    ],
)
def test_views_stay_in_their_folder(
    server: TestClient, tmp_path: Path, name: str, status: int
) -> None:
    output = tmp_path / "output"
    (output / "folder").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (output / "out.txt").symlink_to(tmp_path / "secret.txt")
    (output / "out").symlink_to(tmp_path)
    (output / "loop").symlink_to(output / "loop")
    os.mkfifo(output / "pipe.png")
    answer = server.get(
        "/view",
        params={"filename": name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")},
    )
    assert answer.status_code == status
    assert "secret" not in answer.text.replace("secret.txt", "")
    assert str(tmp_path) not in answer.text


def test_pictures_of_the_package_can_be_seen(server: TestClient) -> None:
    from katz_graph.files.folders import MINI

    name = sorted((MINI / "examples").glob("*.png"))[0].name
    assert server.get("/view", params={"filename": name, "type": "input"}).status_code == 200


def safetensors(notes: dict[str, str] | None) -> bytes:
    header = json.dumps(
        {
            **({"__metadata__": notes} if notes else {}),
            "w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + b"\0"


def test_notes_and_lists_of_models(server: TestClient, tmp_path: Path) -> None:
    loras = tmp_path / "models/loras/style"
    loras.mkdir(parents=True)
    (loras / "ink.safetensors").write_bytes(safetensors({"ss_tag": "ink"}))
    (loras / "plain.safetensors").write_bytes(safetensors(None))
    (loras / "broken.safetensors").write_bytes(b"\xff" * 100)
    (loras / "ink.preview.png").write_bytes(picture())
    (tmp_path / "models/embeddings").mkdir()
    (tmp_path / "models/embeddings/bad.hands.safetensors").write_bytes(safetensors(None))
    assert server.get(
        "/view_metadata/loras", params={"filename": "style/ink.safetensors"}
    ).json() == {"ss_tag": "ink"}
    for name in (
        "style/plain.safetensors",
        "style/broken.safetensors",
        "missing.safetensors",
        "../x.safetensors",
        "https://x/y.safetensors",
    ):
        answer = server.get("/view_metadata/loras", params={"filename": name})
        assert (answer.status_code, str(tmp_path) in answer.text) == (404, False)
    assert (
        server.get("/view_metadata/nothing", params={"filename": "a.safetensors"}).status_code
        == 404
    )
    (tmp_path / "models/loras/ink.SFT").write_bytes(safetensors({"ss_tag": "ink"}))
    assert server.get("/view_metadata/loras", params={"filename": "ink.SFT"}).json()
    assert server.get("/embeddings").json() == ["bad.hands"]
    assert {"checkpoints", "loras", "text_encoders", "diffusion_models"} <= set(
        server.get("/models").json()
    )
    assert "style/ink.safetensors" in server.get("/api/models/loras").json()
    assert server.get("/models/clip").json() == server.get("/models/text_encoders").json()
    assert server.get("/models/input").status_code == 404
    assert {"name": "loras", "folders": ["loras"]} in server.get("/experiment/models").json()
    entry = next(
        entry
        for entry in server.get("/experiment/models/loras").json()
        if entry["name"] == "style/ink.safetensors"
    )
    assert (entry["pathIndex"], entry["size"], entry["has_preview"]) == (
        0,
        len(safetensors({"ss_tag": "ink"})),
        True,
    )
    assert (
        server.get("/experiment/models/preview/loras/0/style/ink.safetensors").content == picture()
    )
    assert (
        server.get("/experiment/models/preview/loras/0/style/plain.safetensors").status_code == 404
    )
    assert (
        server.get("/experiment/models/preview/loras/0/..%2f..%2finput%2fa.png").status_code == 404
    )


@pytest.mark.defect(32)
@pytest.mark.parametrize(
    ("route", "folder"),
    [("/internal/files/output", "output"), ("/experiment/models/loras", "models/loras")],
)
def test_a_listing_looks_at_no_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str, folder: str
) -> None:
    server, files, here = file_server(tmp_path), 200, tmp_path / folder
    here.mkdir(parents=True)
    for number in range(files):
        (here / f"{number}.safetensors").touch()
    os.utime(here, (1e9, 1e9))
    server.get(route)
    looked, stat = 0, os.stat

    def counted(*path: Any, **how: Any) -> os.stat_result:
        nonlocal looked
        looked += 1
        return stat(*path, **how)

    monkeypatch.setattr(os, "stat", counted)
    assert len(server.get(route).json()) >= files
    assert looked < 100


@pytest.mark.defect(32)
def test_a_list_of_models_shows_new_files_at_once_and_grown_ones_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, here = file_server(tmp_path), tmp_path / "models/loras"
    here.mkdir(parents=True)
    (here / "one.safetensors").write_bytes(b"1")
    os.utime(here, (1e9, 1e9))

    def sizes() -> dict[str, int]:
        listed = server.get("/experiment/models/loras").json()
        return {entry["name"]: entry["size"] for entry in listed if "/" not in entry["name"]}

    before = sizes()
    assert before["one.safetensors"] == 1
    with (here / "one.safetensors").open("ab") as file:
        file.write(b"2")
    assert sizes() == before
    monkeypatch.setattr(models, "LIST_MAX_AGE_S", -1.0)
    assert sizes() == {**before, "one.safetensors": 2}
    monkeypatch.setattr(models, "LIST_MAX_AGE_S", 60.0)
    (here / "two.safetensors").touch()
    assert sizes() == {**before, "one.safetensors": 2, "two.safetensors": 0}


def test_a_front_ends_page_may_run_the_scripts_that_stand_in_it(tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    script = b'{"imports": {"vue": "./vue.js"}}\n'
    page = (
        b'<!doctype html><script type="importmap">'
        + script
        + b'</script><script type="module" src="./index.js"></script>'
    )
    (tmp_path / "built/index.html").write_bytes(page.replace(b"\n", b"\r\n"))
    server = file_server(tmp_path, frontend=tmp_path / "built")
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    first = server.get("/")
    assert (
        f"script-src 'self' 'wasm-unsafe-eval' 'sha256-{digest}';"
        in first.headers["content-security-policy"]
    )
    again = server.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.headers["content-security-policy"]) == (
        304,
        first.headers["content-security-policy"],
    )


@pytest.mark.defect(15)
@pytest.mark.parametrize("kind", PICTURE_KINDS)
def test_every_kind_of_picture_is_uploaded_listed_shown_and_loaded(
    server: TestClient, tmp_path: Path, kind: str
) -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 8), (200, 10, 30)).save(file, kind)
    names = [f"a{ending}" for ending in PICTURE_KINDS[kind].endings] + ["blob"]
    folders = Folders((), tmp_path / "input", tmp_path / "output", paths=False)
    for name in names:
        assert upload(server, file.getvalue(), name).json()["name"] == name
        shown = server.get("/view", params={"filename": name, "type": "input"})
        assert shown.headers["content-type"] == PICTURE_KINDS[kind].media_type
        assert shown.content == file.getvalue()
        preview = server.get("/view", params={"filename": name, "type": "input", "preview": "webp"})
        assert preview.headers["content-type"] == "image/webp"
        pixels, _ = load_image(folders.resolve("input", name))
        assert pixels.shape == (1, 8, 16, 3)
    assert set(names) - set(folders.choices("input")) == {"blob"}
    for name in ("../blob", ".hidden", "none"):
        with pytest.raises(InputError):
            folders.resolve("input", name)
