"""Users' files are listed in pages, with the jobs that wrote them; thumbnails are cached."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from web_files import picture
from web_server import Served, run

from katz_graph.web.files import listing
from katz_graph.web.files.listing import FolderIndex
from katz_graph.web.files.paths import file_state
from katz_graph.web.files.pictures import Thumbnails
from katz_graph.web.files.trash import trash
from katz_graph.web.http.responses import Refusal
from katz_graph.web.routes import files as files_route


def write(folder: Path, name: str, content: bytes, at: float | None = None) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if at is not None:
        os.utime(path, (at, at))


def test_files_come_in_pages_newest_first(tmp_path: Path) -> None:
    output = tmp_path / "output"
    for number in range(7):
        # pairs of equal time are sorted by name
        write(output, f"set/a_{number}.png", picture(size=(4, 3 + number)), 1000 + number // 2)
    write(output, "words.txt", b"hello", 500)
    for hidden in (".hidden.png", ".folder/a.png", "temp/preview.png", "\udcff.png"):
        write(output, hidden, picture())
    (output / "link.png").symlink_to(output / "words.txt")

    async def scenario(server: Served) -> None:
        seen: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            answer = await server.client.get("/katz/files", params={"limit": 3, "after": after})
            page = answer.json()
            assert answer.status_code == 200 and len(page["files"]) <= 3
            seen += page["files"]
            if len(seen) == 3:  # a file added between pages moves no other
                write(output, "new.png", picture(), 2000)
            after = page["next"]
        assert [file["name"] for file in seen] == [
            *(f"set/a_{number}.png" for number in (6, 4, 5, 2, 3, 0, 1)),
            "words.txt",
        ]
        assert (seen[0]["width"], seen[0]["height"], seen[0]["modified"]) == (4, 9, 1003)
        assert (seen[-1]["width"], seen[-1]["bytes"], seen[-1]["job"]) == (None, 5, None)
        shown = await server.client.get("/view", params={"filename": seen[0]["name"]})
        assert shown.content == picture(size=(4, 9))
        assert (await server.client.get("/katz/files?type=input")).json() == {
            "files": [],
            "next": None,
        }
        for wrong in ("after=x", "after=1", "limit=0", "limit=201", "type=temp", "type=models"):
            assert (await server.client.get(f"/katz/files?{wrong}")).status_code == 400, wrong

    run(tmp_path, scenario)


def test_a_file_names_the_job_that_wrote_it_not_those_that_show_it_again(tmp_path: Path) -> None:
    shown = {"2": {"images": [{"filename": "a.png", "subfolder": "x", "type": "output"}]}}

    async def scenario(server: Served) -> None:
        jobs = []
        for _ in range(2):
            workflow = {"extra_pnginfo": {"workflow": {"id": f"w{len(jobs)}"}}}
            jobs.append(await server.submit(extra_data=workflow))
            await server.settled(lambda: len(server.runner.taken) == len(jobs))
            if len(jobs) == 1:
                write(tmp_path / "output", "x/a.png", picture())
            server.runner.end(jobs[-1], outputs=shown)
            await server.finished(jobs[-1])
        write(tmp_path / "output", "b.png", picture())
        listed = (await server.client.get("/katz/files")).json()["files"]
        keys = ("name", "job", "workflow", "node")
        assert [tuple(file[key] for key in keys) for file in listed] == [
            ("b.png", None, None, None),
            ("x/a.png", jobs[0], "w0", "2"),
        ]
        write(tmp_path / "output", "x/a.png", picture(), 1000)  # no longer the job's file
        listed = (await server.client.get("/katz/files")).json()["files"]
        assert listed[-1]["job"] is None

    run(tmp_path, scenario)


def test_a_folder_that_is_not_there_is_empty_and_cursors_are_checked(tmp_path: Path) -> None:
    assert FolderIndex(tmp_path / "none").newest(5) == []
    with pytest.raises(Refusal):
        FolderIndex(tmp_path).newest(5, after="yesterday")


def test_files_go_to_the_trash_and_come_back(tmp_path: Path) -> None:
    output = tmp_path / "output"
    write(output, "set/a.png", picture(), 1000)
    write(output, "b.png", picture(size=(4, 3)))
    write(tmp_path, "secret.png", picture())
    (output / "link.png").symlink_to(tmp_path / "secret.png")
    (output / "out").symlink_to(tmp_path)

    async def scenario(server: Served) -> None:
        async def moved(how: str, *names: str) -> list[str]:
            answer = await server.client.post(f"/katz/files/{how}", json={"names": names})
            assert answer.status_code == 200, answer.text
            return [file["now"] for file in answer.json()["files"]]

        async def listed() -> set[str]:
            return {
                file["name"] for file in (await server.client.get("/katz/files")).json()["files"]
            }

        assert await moved("trash", "set/a.png", "gone.png", "link.png") == ["set/a.png"]
        assert await listed() == {"b.png"}
        assert (await server.client.get("/view?filename=.trash/set/a.png")).status_code == 400
        write(output, "set/a.png", picture(size=(9, 9)))  # another file of the same name
        assert await moved("trash", "set/a.png") == ["set/a (1).png"]
        assert await moved("restore", "set/a (1).png", "set/a.png") == [
            "set/a (1).png",
            "set/a.png",
        ]
        assert await listed() == {"b.png", "set/a.png", "set/a (1).png"}
        assert (output / "set/a.png").stat().st_mtime == 1000
        for wrong, status in (
            ("../secret.png", 400),
            (".trash/b.png", 400),
            ("", 400),
            ("out/secret.png", 403),
        ):
            for how in ("trash", "restore"):
                answer = await server.client.post(f"/katz/files/{how}", json={"names": [wrong]})
                allowed = {200} if how == "restore" and status == 403 else set()
                assert answer.status_code in {status, *allowed}, (how, wrong)
        many = {"names": ["b.png"] * 1001}
        assert (await server.client.post("/katz/files/trash", json=many)).status_code == 400
        assert (tmp_path / "secret.png").exists()

    run(tmp_path, scenario)


def test_a_thumbnail_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    convert = files_route.shown

    def counted(path: Path, *rest: Any) -> tuple[bytes, str]:
        made.append(path)
        return convert(path, *rest)

    monkeypatch.setattr(files_route, "shown", counted)
    write(tmp_path / "output", "a.png", picture(size=(60, 40)), 1000)
    write(tmp_path / "output", "b.png", picture(size=(60, 40), colour=(0, 0, 0, 255)), 1000)

    async def scenario(server: Served) -> None:
        async def small(name: str = "a.png", width: int = 30) -> bytes:
            answer = await server.client.get("/view", params={"filename": name, "width": width})
            return answer.content

        assert await small() == await small() and len(made) == 1
        assert await small("b.png") != await small() and len(made) == 2
        assert await small(width=20) != await small() and len(made) == 3
        write(tmp_path / "output", "a.png", picture(size=(60, 40), colour=(9, 200, 9, 255)), 1001)
        assert await small() != await small(width=20) and len(made) == 5

    run(tmp_path, scenario)


def test_cached_thumbnails_are_bounded_and_the_least_used_is_evicted() -> None:
    cache = Thumbnails(limit=10)
    for name in "ab":
        cache.keep(name, (b"12345", "image/webp"))
    cache.keep("a", (b"12345", "image/webp"))
    assert cache.get("a") is not None
    cache.keep("c", (b"123", "image/webp"))
    assert [cache.get(name) is None for name in "abc"] == [False, True, False]
    cache.keep("d", (b"12345678901", "image/webp"))
    assert cache.get("d") is None and cache.get("a") is not None


@pytest.mark.defect(32)
def test_a_page_looks_at_what_changed_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = time.time() - 60
    (tmp_path / "deep/temp").mkdir(parents=True)
    (tmp_path / "temp").mkdir()
    for number in range(50):
        path = tmp_path / ("deep" if number % 2 else "") / f"{number:02}.png"
        path.write_bytes(b"x" * number)
        os.utime(path, (past + number,) * 2)
    (tmp_path / "temp/hidden.png").write_bytes(b"x")
    (tmp_path / "loop.png").symlink_to("loop.png")
    for folder in (tmp_path, tmp_path / "deep"):
        os.utime(folder, (past, past))
    looked: list[Path] = []

    def look(path: Path) -> os.stat_result | None:
        looked.append(path)
        return file_state(path)

    monkeypatch.setattr(listing, "file_state", look)
    index = FolderIndex(tmp_path, "temp")
    first = index.newest(4)
    assert [entry.name for entry in first] == ["deep/49.png", "48.png", "deep/47.png", "46.png"]
    looked.clear()
    second = index.newest(3, first[-1].cursor)
    assert [entry.name for entry in second] == ["deep/45.png", "44.png", "deep/43.png"]
    assert len(looked) == 3  # only the page's files
    (tmp_path / "new.png").write_bytes(b"")
    (tmp_path / "deep/49.png").unlink()
    with (tmp_path / "48.png").open("ab") as file:  # changed in place
        file.write(b"more")
    looked.clear()
    assert {entry.name for entry in index.newest(2)} == {"new.png", "48.png"}
    assert len(looked) < 10
    assert next(entry.bytes for entry in index.newest(2) if entry.name == "48.png") == 52
    (tmp_path / "deep/x.png").write_bytes(b"other")
    (tmp_path / "deep/x.png").replace(tmp_path / "new.png")
    assert ("new.png", 5) in [(entry.name, entry.bytes) for entry in index.newest(2)]


@pytest.mark.defect(28)
def test_a_file_stored_while_its_predecessor_is_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, rename = tmp_path / "a.png", Path.replace
    place.write_text("first")

    def rename_and_store(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        place.write_text("second")  # as an upload would
        return moved

    monkeypatch.setattr(Path, "replace", rename_and_store)
    assert trash(tmp_path, "a.png") == "a.png"
    assert place.read_text() == "second"
    assert [path.read_text() for path in (tmp_path / ".trash").iterdir()] == ["first"]


@pytest.mark.defect(28)
def test_a_file_that_finds_no_room_in_the_trash_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Path) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.png").write_text("first")
    monkeypatch.setattr("katz_graph.web.files.trash.take", no_room)
    with pytest.raises(Refusal):
        trash(tmp_path, "a.png")
    assert (tmp_path / "a.png").read_text() == "first"
    assert not any((tmp_path / ".trash").iterdir())
