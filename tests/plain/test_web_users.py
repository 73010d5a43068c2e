"""Users store settings on the server, and files within a quota."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from web_files import PAGE, everything_below, file_server

from katz_graph.web.files.users import UserFiles, Users
from katz_graph.web.http import file_responses
from katz_graph.web.http.preconditions import tag_of
from katz_graph.web.http.responses import Refusal
from katz_graph.web.options import Limits

# as the stock editor stores things
EDITOR = {**PAGE, "Content-Type": "text/plain;charset=UTF-8", "Comfy-User": "undefined"}


@pytest.fixture
def server(tmp_path: Path) -> TestClient:
    return file_server(tmp_path)


def store(server: TestClient, name: str, content: bytes = b"{}", **parameters: str) -> Any:
    return server.post(
        f"/api/userdata/{quote(name, safe='')}", params=parameters, content=content, headers=EDITOR
    )


def test_a_server_of_one_user_refuses_new_users(server: TestClient) -> None:
    assert server.get("/users").json() == {"storage": "server", "migrated": True}
    assert server.post("/users", json={"username": "ann"}).status_code == 400
    assert server.post("/users", json={}).status_code == 400


def test_settings_are_merged_and_outlive_the_server(server: TestClient, tmp_path: Path) -> None:
    assert server.get("/settings").json() == {}
    assert server.get("/settings/Comfy.Locale").json() is None
    assert server.post("/settings", json={"Comfy.Locale": "de", "n": 1}).status_code == 200
    assert (
        server.post(
            "/api/settings/Comfy.TutorialCompleted", content=b"true", headers=EDITOR
        ).status_code
        == 200
    )
    assert server.post("/settings/n", content=b'{"deep": [null, 2.5]}').status_code == 200
    merged = {"Comfy.Locale": "de", "n": {"deep": [None, 2.5]}, "Comfy.TutorialCompleted": True}
    assert file_server(tmp_path).get("/settings").json() == merged
    assert server.get("/settings/n").json() == {"deep": [None, 2.5]}
    assert json.loads((tmp_path / "data/users/default/comfy.settings.json").read_text()) == merged


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nan", b"NaN", b"1e999", b'{"a":1,"a":2}', b"\xff", b"[" * 5000, b'"\\ud800"'],
)
def test_settings_that_are_no_json_are_refused(server: TestClient, body: bytes) -> None:
    assert server.post("/settings/a", content=body).status_code == 400
    assert server.post("/settings", content=body).status_code == 400
    assert server.get("/settings").json() == {}


def test_settings_have_a_size(server: TestClient) -> None:
    assert server.post("/settings", json=[1]).status_code == 400
    assert server.post("/settings/a", json="x" * 2**20).status_code == 413
    assert server.post("/settings/" + "a" * 2000, json=1).status_code == 400
    assert server.get("/settings").json() == {}


@pytest.mark.defect(30)
@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": 1' + b"\0" * 99])
def test_damaged_settings_are_set_aside(
    server: TestClient, tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data/users/default"
    folder.mkdir(parents=True)
    (folder / "comfy.settings.json").write_bytes(damaged)
    assert server.get("/settings").json() == {}
    assert server.post("/settings/a", json=1).status_code == 200
    assert server.get("/settings").json() == {"a": 1}
    (aside,) = folder.glob("comfy.settings.json.damaged-*")
    assert aside.read_bytes() == damaged
    assert f"is damaged and treated as empty; it was renamed to {aside.name}" in caplog.text


def test_files_are_stored_listed_moved_and_deleted(server: TestClient) -> None:
    assert server.get("/userdata", params={"dir": "workflows"}).status_code == 404
    assert (
        store(server, "workflows/sub/ä b.json", b'{"nodes": []}').json() == "workflows/sub/ä b.json"
    )
    assert (
        store(server, "workflows/.index.json", b"{}", overwrite="true", full_info="false").json()
        == "workflows/.index.json"
    )
    stored = store(server, "workflows/a.json", b"12345", full_info="true").json()
    assert (stored["path"], stored["size"]) == ("workflows/a.json", 5)
    assert server.get("/userdata/workflows%2Fsub%2F%C3%A4%20b.json").content == b'{"nodes": []}'
    assert (
        server.get("/api/userdata/workflows/a.json").headers["content-type"] == "application/json"
    )

    listing = {"dir": "workflows", "recurse": "true"}
    names = [".index.json", "a.json", "sub/ä b.json"]
    assert server.get("/userdata", params=listing).json() == names
    assert server.get("/userdata", params={"dir": "workflows"}).json() == names[:2]
    assert server.get("/userdata", params={**listing, "split": "true"}).json()[2] == [
        "sub/ä b.json",
        "sub",
        "ä b.json",
    ]
    full = server.get("/userdata", params={**listing, "split": "false", "full_info": "true"}).json()
    assert [entry["path"] for entry in full] == names
    assert full[1]["modified"] == pytest.approx(stored["modified"])
    everything = server.get("/v2/userdata", params={"path": "workflows"}).json()
    assert [(entry["path"], entry["type"]) for entry in everything] == [
        ("workflows/sub", "directory"),
        ("workflows/.index.json", "file"),
        ("workflows/a.json", "file"),
        ("workflows/sub/ä b.json", "file"),
    ]

    moved = server.post(
        "/userdata/workflows%2Fa.json/move/workflows%2Fnew%2Fb.json?overwrite=false", headers=PAGE
    )
    assert moved.json() == "workflows/new/b.json"
    assert server.get("/userdata/workflows%2Fa.json").status_code == 404
    assert server.get("/userdata/workflows%2Fnew%2Fb.json").content == b"12345"
    assert server.delete("/userdata/workflows%2Fnew%2Fb.json", headers=PAGE).status_code == 204
    assert server.delete("/userdata/workflows%2Fnew%2Fb.json", headers=PAGE).status_code == 404
    assert server.get("/userdata", params={"dir": "workflows/new"}).status_code == 404


def test_nothing_is_overwritten_unasked(server: TestClient) -> None:
    store(server, "a.json", b"1")
    store(server, "b.json", b"2")
    assert store(server, "a.json", b"3", overwrite="false").status_code == 409
    assert server.post("/userdata/a.json/move/b.json?overwrite=false").status_code == 409
    assert [server.get(f"/userdata/{name}.json").content for name in "ab"] == [b"1", b"2"]
    assert store(server, "a.json", b"3", overwrite="undefined").status_code == 200
    assert server.post("/userdata/a.json/move/b.json?overwrite=true").status_code == 200
    assert server.get("/userdata/b.json").content == b"3"
    assert server.post("/userdata/a.json/move/c.json").status_code == 404


def test_a_file_named_move_is_a_file(server: TestClient) -> None:
    assert store(server, "a/move/b", b"x").json() == "a/move/b"
    assert server.get("/userdata/a%2Fmove%2Fb").content == b"x"


def test_files_and_folders_do_not_replace_each_other(server: TestClient, tmp_path: Path) -> None:
    store(server, "a/b.json")
    for name in ("a", "a/b.json/c.json"):
        answer = store(server, name)
        assert (answer.status_code, str(tmp_path) in answer.text) == (409, False)
    assert server.get("/userdata/a").status_code == 404
    assert server.delete("/userdata/a").status_code == 404
    assert everything_below(tmp_path / "data/users") == {"default/a/b.json"}


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "..",
        "/etc/passwd",
        "C:/x",
        "a\\b",
        "a\0b",
        "x" * 300,
        "y/" * 600,
        "",
        ".",
        "a/../b",
        "con.json",
        "a\u202eb",
        "a.",
        ".. /x",
    ],
)
def test_names_that_lead_out_are_refused(server: TestClient, tmp_path: Path, name: str) -> None:
    store(server, "mine.json")
    # otherwise the client normalizes the address
    sent = quote(name, safe="").replace(".", "%2E")
    at = f"/userdata/{sent}"
    refused = [
        server.get(at),
        server.post(at, content=b"x"),
        server.delete(at),
        server.post(f"/userdata/mine.json/move/{sent}"),
    ]
    assert {answer.status_code for answer in refused} == {400}
    if name not in (".", "con.json"):
        assert server.get("/userdata", params={"dir": name}).status_code == 400
    assert everything_below(tmp_path) == {"data/users/default/mine.json"}


def test_links_of_the_operator_let_no_user_out(server: TestClient, tmp_path: Path) -> None:
    store(server, "mine.json")
    (tmp_path / "secret").write_text("secret")
    home = tmp_path / "data/users/default"
    (home / "out").symlink_to(tmp_path)
    (home / "file").symlink_to(tmp_path / "secret")
    assert server.get("/userdata/out%2Fsecret").status_code == 403
    assert server.get("/userdata/file").status_code == 403
    assert store(server, "out/new.json").status_code == 403
    assert server.delete("/userdata/file").status_code == 403
    assert server.get("/userdata", params={"dir": "out"}).status_code == 403
    assert server.get("/userdata", params={"dir": ".", "recurse": "true"}).json() == ["mine.json"]
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_person_has_a_quota_of_bytes_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = file_server(tmp_path, limits=Limits(user_bytes=100))
    assert store(server, "a", b"x" * 60).status_code == 200
    assert store(server, "b", b"x" * 41).status_code == 413
    assert store(server, "a", b"x" * 100).status_code == 200
    assert server.post("/settings/a", json="x").status_code == 413
    assert store(server, "a", b"").status_code == 200
    monkeypatch.setattr("katz_graph.web.files.users.MAX_FILES", 2)
    assert [store(server, name, b"x").status_code for name in ("b", "c", "b")] == [200, 413, 200]
    assert everything_below(tmp_path / "data/users") == {"default/a", "default/b"}


def test_a_full_disk_is_507_and_leaves_existing_files(
    server: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(server, "a.json", b"old")
    server.post("/settings/a", json=1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("katz_graph.web.files.users.UserFiles._check_quota", full)
        assert store(server, "a.json", b"new").status_code == 507
        assert server.post("/settings/a", json=2).status_code == 507
    assert server.get("/userdata/a.json").content == b"old"
    assert server.get("/settings").json() == {"a": 1}
    assert everything_below(tmp_path / "data/users") == {
        "default/a.json",
        "default/comfy.settings.json",
    }


def test_half_written_files_of_a_killed_server_are_deleted(tmp_path: Path) -> None:
    incoming = tmp_path / "data/users/.incoming"
    incoming.mkdir(parents=True)
    (incoming / ".0123.tmp").write_bytes(b"half")
    file_server(tmp_path)
    assert everything_below(tmp_path / "data") == set()


def test_stored_pages_do_not_run(server: TestClient) -> None:
    store(server, "page.html", b"<script>alert(1)</script>")
    answer = server.get("/userdata/page.html")
    assert (
        answer.headers["content-type"],
        answer.headers["content-disposition"].split(";")[0],
    ) == (
        "application/octet-stream",
        "attachment",
    )
    store(server, "user.css", b"body{}")
    assert server.get("/userdata/user.css").headers["content-type"].startswith("text/css")


def test_several_users_are_separated(tmp_path: Path) -> None:
    server = file_server(tmp_path, multi_user=True)
    assert server.get("/users").json() == {"storage": "server", "users": {}}
    ann, bob = (
        server.post("/users", json={"username": name}).json() for name in ("Ann / ../..", "Bob")
    )
    assert server.get("/users").json()["users"] == {ann: "Ann / ../..", bob: "Bob"}
    assert server.post("/users", json={"username": "Bob"}).status_code == 400
    for name in ("", "a\nb", "x" * 200, "   ", 7, None):
        assert server.post("/users", json={"username": name}).status_code == 400
    server.post("/settings/a", json="Ann's", headers={"Comfy-User": ann})
    server.post("/userdata/a.json", content=b"Ann's", headers={"Comfy-User": ann})
    assert server.get("/settings", headers={"Comfy-User": bob}).json() == {}
    assert server.get("/userdata/a.json", headers={"Comfy-User": bob}).status_code == 404
    assert server.get("/userdata/a.json", headers={"Comfy-User": ann}).content == b"Ann's"
    for nobody in (
        {},
        {"Comfy-User": ""},
        {"Comfy-User": "default"},
        {"Comfy-User": f"{bob}/../{ann}"},
        {"Comfy-User": ".incoming"},
    ):
        assert server.get("/settings", headers=nobody).status_code == 401
        assert server.get("/userdata/a.json", headers=nobody).status_code == 401
    assert file_server(tmp_path, multi_user=True).get("/users").json()["users"] == {
        ann: "Ann / ../..",
        bob: "Bob",
    }


def test_a_version_that_was_not_read_is_not_overwritten(server: TestClient) -> None:
    def put(text: str, **headers: str) -> Any:
        return server.post("/userdata/w.json", content=text, headers=headers)

    new = {"If-None-Match": "*"}
    first = put("1", **new)
    assert first.status_code == 200
    read = server.get("/userdata/w.json")
    assert read.headers["etag"] == first.headers["etag"]
    assert put("2", **new).status_code == 412
    second = put("2", **{"If-Match": read.headers["etag"]})
    assert second.status_code == 200 and second.headers["etag"] != read.headers["etag"]
    late = put("3", **{"If-Match": read.headers["etag"]})
    assert late.status_code == 412 and "has changed" in late.json()["error"]
    assert server.get("/userdata/w.json").text == "2"
    seen = {"If-Match": read.headers["etag"]}
    assert server.delete("/userdata/w.json", headers=seen).status_code == 412
    server.post("/userdata/other.json", content="o")
    onto = server.post("/userdata/other.json/move/w.json", headers=new)
    assert onto.status_code == 412 and server.get("/userdata/w.json").text == "2"
    assert server.delete("/userdata/w.json", headers={"If-Match": "*"}).status_code == 204
    assert put("4", **{"If-Match": "*"}).status_code == 412
    assert put("5").status_code == 200  # as clients without conditions do


@pytest.mark.defect(28)
def test_each_save_answers_with_its_own_tag(tmp_path: Path) -> None:
    users = Users(tmp_path / "users", several=False, max_bytes=2**20)
    files, saves = users.files(None), 60

    async def piece(number: int) -> AsyncIterator[bytes]:
        yield b"%04d" % number

    async def save(number: int) -> tuple[int, str]:
        saved = await users.store(files, "a.json", piece(number), True)
        return number, tag_of(saved.state)

    async def contents() -> dict[str, int]:
        seen: dict[str, int] = {}
        saving = [asyncio.ensure_future(save(number)) for number in range(saves)]
        while not all(one.done() for one in saving):
            async with users._writing:
                with contextlib.suppress(Refusal):
                    path = files.file("a.json")
                    number = int(path.read_text())
                    assert seen.setdefault(tag_of(path.stat()), number) == number
            await asyncio.sleep(0)
        tags = dict(await asyncio.gather(*saving))
        assert len(set(tags.values())) == saves  # no two versions share a tag
        assert seen.items() <= {tag: number for number, tag in tags.items()}.items()
        return seen

    assert asyncio.run(contents())


@pytest.mark.defect(28)
def test_a_save_during_a_deletion_is_answered_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = file_server(tmp_path)
    keep = UserFiles.keep

    def keep_and_lose(self: UserFiles, temporary: Path, name: str, overwrite: bool) -> Any:
        saved = keep(self, temporary, name, overwrite)
        (tmp_path / "data/users/default" / name).unlink()  # as another request would
        return saved

    monkeypatch.setattr(UserFiles, "keep", keep_and_lose)
    answer = client.post("/userdata/a.json", content=b"{}")
    assert (answer.status_code, answer.json()) == (200, "a.json") and answer.headers["etag"]


@pytest.mark.defect(22)
def test_a_file_over_the_quota_is_refused_before_it_is_read(tmp_path: Path) -> None:
    users = Users(tmp_path / "users", several=False, max_bytes=1000)
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 600
            yield b"x" * 600

    async def store(announced: int) -> None:
        with pytest.raises(Refusal, match="together may not exceed 1,000 bytes"):
            await users.store(users.files(None), "a", endless(), True, announced=announced)

    asyncio.run(store(5000))
    assert read == 0
    asyncio.run(store(0))
    assert read == 1200


@pytest.mark.defect(28)
@pytest.mark.parametrize("after", [b"longer than it was", b"-", None])
def test_a_file_that_is_replaced_while_it_is_answered_is_one_version(
    after: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = file_server(tmp_path)
    tag = client.post("/userdata/a.json", content=b"before").headers["etag"]
    path = tmp_path / "data/users/default/a.json"

    def replaced(*_: object) -> bool:
        if after is None:
            path.unlink()
        else:
            path.with_suffix(".new").write_bytes(after)
            path.with_suffix(".new").replace(path)
        return False

    monkeypatch.setattr(file_responses, "is_known", replaced)
    answer = client.get("/userdata/a.json")
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (200, b"before", tag)
    monkeypatch.undo()
    answer = client.get("/userdata/a.json")
    assert (answer.status_code, answer.content) == ((200, after) if after else (404, ANY))


def test_files_are_closed_however_they_were_answered(tmp_path: Path) -> None:
    client = file_server(tmp_path)
    tag = client.post("/userdata/a.json", content=b"before").headers["etag"]
    given = [{}, {"Range": "bytes=1-2"}, {"Range": "bytes=9-"}, {"If-None-Match": tag}]
    opened = len(list(Path("/dev/fd").iterdir()))
    answers = [client.get("/userdata/a.json", headers=headers) for headers in given]
    assert [answer.status_code for answer in answers] == [200, 206, 416, 304]
    assert client.head("/userdata/a.json").status_code in {200, 405}
    assert len(list(Path("/dev/fd").iterdir())) == opened
