"""With ten thousand hostile file names, nothing outside the folder is read, made or revealed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from web_files import ADDRESS, everything_below, file_server, picture

from katz_graph.files.folders import Folders
from katz_graph.web.files.paths import find_user_file, inside, parts_of
from katz_graph.web.http.responses import Refusal

NAMES = 10_000
ASKED = 1_200  # of them over HTTP, on every route with a name
SECRET = b"the secret"
PIECES = (
    *(
        "..",
        "...",
        ". .",
        ".. ",
        " ..",
        "..\0",
        "..;",
        "%2e%2e",
        "%252e%252e",
        "..%2f",
        "..%5c",
        "%c0%ae%c0%ae",
    ),
    *(
        "\uff0e\uff0e",
        "\u2025",
        "\u202e..",
        ".\u200b.",
        "\ud800",
        "\udcff",
        "e\u0301",
        "\u2028",
        "\ufeff",
        "\U0001f408",
    ),
    *(
        "/",
        "//",
        "\\",
        "\\\\",
        "\uff0f",
        "\u2215",
        "%2f",
        "%5c",
        "%00",
        "\0",
        "\n",
        "\r\n",
        "\t",
        " ",
        ";",
        ":",
        "|",
        "*",
        "?",
        "#",
        "&",
    ),
    *(
        "etc",
        "passwd",
        "/etc/passwd",
        "proc",
        "self",
        "/proc/self/environ",
        "C:",
        "C:\\",
        "c:/windows",
        "$HOME",
        "~",
        "~root",
    ),
    *(
        "\\\\host\\share",
        "file://",
        "//host/x",
        "secret.txt",
        "out",
        "loop",
        "deep",
        "file.png",
        "desktop.ini",
        "::$DATA",
        "<script>",
    ),
    *(
        "CON",
        "nul.txt",
        "aux",
        "lpt1",
        "COM¹.png",
        ".git",
        ".ssh",
        "",
        " [output]",
        " [temp]",
        "[input]",
    ),
    *("x" * 256, "y" * 3000, "a/" * 50),
)


def hostile(count: int, seed: int) -> Iterator[str]:
    """Yields names made of pieces that broke other servers."""
    generator = random.Random(seed)
    for _ in range(count):
        pieces = generator.choices(PIECES, k=generator.randint(1, 6))
        yield generator.choice(("", "/", "\\")).join(pieces)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes an output folder with links out of it, and secrets around it."""
    output = tmp_path / "output"
    for path in (output / "deep/deeper", tmp_path / "input", tmp_path / "data/users"):
        path.mkdir(parents=True)
    for path in (
        tmp_path / "secret.txt",
        tmp_path / "input/secret.txt",
        tmp_path / "data/secret.txt",
    ):
        path.write_bytes(SECRET)
    (output / "file.png").write_bytes(picture())
    (output / "out").symlink_to(tmp_path)
    (output / "deep/out").symlink_to("../..")
    (output / "deep/etc").symlink_to("/etc")
    (output / "loop").symlink_to("loop")
    (output / "within").symlink_to("deep/deeper")
    return output


def test_no_name_becomes_a_path_outside(folder: Path) -> None:
    folders = Folders(input=folder.parent / "input", output=folder, paths=False)
    statuses: Counter[int] = Counter()
    for hidden in (False, True):
        for name in hostile(NAMES, seed=5):
            try:
                path = inside(folder, name, hidden=hidden)
            except Refusal as refused:
                statuses[refused.status] += 1
            else:
                statuses[200] += 1
                assert path.is_relative_to(folder.resolve())
                assert all(len(part.encode()) <= 255 for part in path.parts)
    for name in hostile(NAMES, seed=6):
        try:
            found, _ = find_user_file(folders, name, "", "output")
        except Refusal as refused:
            assert refused.status in (400, 403, 404)
        else:
            assert found.is_relative_to(folder.resolve()) or found.is_relative_to(
                (folder.parent / "input").resolve()
            )
    assert set(statuses) == {200, 400, 403}  # the generator also hits links


def test_links_within_a_folder_are_followed(folder: Path) -> None:
    assert inside(folder, "within/new.png") == folder.resolve() / "deep/deeper/new.png"
    assert inside(folder) == inside(folder, "", ".", "./") == folder.resolve()


@pytest.mark.parametrize(
    "name",
    [
        "a.png",
        "sub/a b.png",
        "ComfyUI_00001_.png",
        "日本語.png",
        "🐈.png",
        "a..b",
        "(1).png",
        "e\u0301.png",
        "x" * 255,
    ],
)
def test_ordinary_names_are_ordinary(name: str) -> None:
    assert "/".join(parts_of(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "../a",
        "a/..",
        "/a",
        "~/a",
        "c:a",
        "a\\b",
        "a\0",
        ".a",
        "a.",
        "a ",
        "nul",
        "NUL.txt",
        "x" * 256,
        "é" * 128,
        "a/" * 33,
    ],
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(Refusal) as refused:
        parts_of(name)
    assert refused.value.status == 400


def test_over_http_hostile_names_get_nothing_and_break_nothing(folder: Path) -> None:
    root = folder.parent
    outside = everything_below(root)
    app = file_server(root).app
    answers: Counter[int] = Counter()

    attempts: tuple[Callable[[Any, str, str], httpx.Request], ...] = (
        lambda build, plain, sent: build("GET", "/view", params={"filename": plain}),
        lambda build, plain, sent: build(
            "GET", "/view", params={"filename": "secret.txt", "subfolder": plain}
        ),
        lambda build, plain, sent: build("GET", f"/userdata/{sent}"),
        lambda build, plain, sent: build("GET", "/userdata", params={"dir": plain}),
        lambda build, plain, sent: build("GET", "/v2/userdata", params={"path": plain}),
        lambda build, plain, sent: build("GET", "/view_metadata/loras", params={"filename": plain}),
        lambda build, plain, sent: build("GET", f"/experiment/models/preview/loras/0/{sent}"),
        lambda build, plain, sent: build("GET", f"/models/{sent}"),
        lambda build, plain, sent: build("POST", f"/userdata/{sent}", content=b"x"),
        lambda build, plain, sent: build("DELETE", f"/userdata/{sent}"),
        lambda build, plain, sent: build(
            "POST", "/upload/image", files={"image": (plain, picture())}, data={"type": "temp"}
        ),
        lambda build, plain, sent: build(
            "POST",
            "/upload/image",
            files={"image": ("a.png", picture())},
            data={"subfolder": plain},
        ),
    )

    async def ask_all() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            for number, name in enumerate(hostile(ASKED, seed=7)):
                plain = name.encode("utf-8", "replace").decode()
                sent = quote(plain, safe="").replace(".", "%2E")
                ask = attempts[number % len(attempts)]
                answer = await client.send(ask(client.build_request, plain, sent))
                answers[answer.status_code] += 1
                assert answer.status_code < 500, (answer.url, answer.text)
                assert SECRET not in answer.content and b"root:x:" not in answer.content
                assert str(root).encode() not in answer.content

    asyncio.run(ask_all())
    made = everything_below(root) - outside
    assert made and all(
        name.startswith(("data/users/default/", "input/", "output/temp/")) for name in made
    )
    assert {200, 400, 404} <= set(answers)
    assert {path.read_bytes() for path in root.rglob("secret.txt") if not path.is_symlink()} == {
        SECRET
    }
