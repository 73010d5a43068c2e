"""`katz serve` reports wrong options in one line, before it starts anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from katz_graph.cli import serve as command
from katz_graph.cli.main import app
from katz_graph.core.errors import InputError
from katz_graph.web import serve as server
from katz_graph.web.options import ServeOptions

TOKEN = "0123456789abcdef"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ServeOptions]:
    """Records the served options."""
    options: list[ServeOptions] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KATZ_TOKEN", raising=False)
    monkeypatch.setattr(server, "serve", lambda given, *_: options.append(given))
    monkeypatch.setattr(command.ForkServer, "begin", lambda workers: 0)
    monkeypatch.setattr(command, "set_up", lambda as_json: None)
    return options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--token", "short"], "16"),
        (["--token", "a token with spaces"], "16"),
        (["--token-file", "none"], "none"),
        (["--token", TOKEN, "--token-file", "x"], "--token-file"),
        (["--cache-none", "--cache-lru", "3"], "--cache-lru"),
        (["--cache", "most"], "most"),
        *((["--shared-rows", text], text) for text in ("-1", "65", "0:fixed", "4:free", "two", "")),
        (["--cpu", "--devices", "cpu*2"], "--cpu"),
        (["--devices", "abacus"], "abacus"),
        (["--place", "vae_decode=cpu:7"], "--place"),
        (["--link", "fast"], "--link"),
        (["--control-net-policy", "fifo"], "lru or lfu"),
        *(
            (["--devices", "cpu*2", "--devices-per-job", text], f"--devices-per-job {text}")
            for text in ("0", "3", "-1", "all", "")
        ),
        (["--allow", "anything"], "--allow"),
        (["--frontend", "."], "index.html"),
        (["--data", "/dev/null/x"], "--data"),
        (["--output", "/dev/null/x"], "--output"),
    ],
)
def test_wrong_options_are_one_line(
    started: list[ServeOptions], options: list[str], expected: str
) -> None:
    with pytest.raises(InputError) as error:
        app(["serve", *options], standalone_mode=False)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert not started


def test_the_convention_s_names_mean_the_same(started: list[ServeOptions]) -> None:
    Path("paths.yaml").write_text("")
    app(
        [
            "serve",
            "--cpu",
            "--output-directory",
            "o",
            "--extra-model-paths-config",
            "paths.yaml",
            "--cache-lru",
            "9",
        ],
        standalone_mode=False,
    )
    app(
        [
            "serve",
            "--devices",
            "cpu",
            "--output",
            "o",
            "--extra-model-paths",
            "paths.yaml",
            "--cache",
            "lru:9",
        ],
        standalone_mode=False,
    )
    assert started[0] == started[1]
    assert started[0].cache == "lru:9"
    app(["serve", "--cache-none"], standalone_mode=False)
    app(
        [
            "serve",
            "--cache-classic",
            "--no-previews",
            "--max-upload-size",
            "2.5",
            "--queue-limit",
            "3",
        ],
        standalone_mode=False,
    )
    assert (started[2].cache, started[3].cache, started[3].previews) == ("none", "classic", False)
    assert (started[3].limits.upload_bytes, started[3].limits.queue) == (2_621_440, 3)


def test_how_devices_and_their_memory_are_shared_out(started: list[ServeOptions]) -> None:
    shared = [
        "--devices-per-job",
        "1",
        "--model-gb",
        "6",
        "--control-net-gb",
        "1.5",
        "--control-net-policy",
        "lfu",
        "--no-spare",
    ]
    app(["serve", "--devices", "cpu*2", *shared], standalone_mode=False)
    app(["serve"], standalone_mode=False)
    found = [
        (
            one.devices_per_job,
            one.model_bytes,
            one.control_net_bytes,
            one.control_net_policy,
            one.spare,
        )
        for one in started
    ]
    assert found == [
        ("1", 6_442_450_944, 1_610_612_736, "lfu", False),
        (None, None, None, "lru", True),
    ]


def test_a_token_comes_from_a_file_or_the_environment(
    started: list[ServeOptions], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("token").write_text(f"{TOKEN}\n")
    Path("token").chmod(0o600)
    app(["serve", "--token-file", "token"], standalone_mode=False)
    assert capsys.readouterr().err == ""
    Path("token").chmod(0o644)
    app(["serve", "--token-file", "token"], standalone_mode=False)
    assert "chmod 600" in capsys.readouterr().err
    monkeypatch.setenv("KATZ_TOKEN", TOKEN)
    app(["serve"], standalone_mode=False)
    assert [options.token for options in started] == [TOKEN] * 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--token-file"):
        server.serve(ServeOptions(host=host, port=0, data=tmp_path / "data"), print)
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InputError, match="taken by another process"),
    ):
        server.serve(ServeOptions(port=taken.getsockname()[1], data=tmp_path / "data"), print)
    assert not (tmp_path / "data").exists()
