"""Only permitted URLs of models are fetched, and they are shown without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from katz_graph.core.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.files.urls import ANY, NONE, FetchRule, checksum, shown, without_secrets
from katz_graph.settings.environment import Settings, fetched_files

ALLOWED = ("https://example.org/models/", "s3://bucket", "http://127.0.0.1:8000/a%20b")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/models/a.safetensors",
        "https://example.org/models/deep/a.safetensors?token=1#sha256=0",
        "HTTPS://Example.ORG/models/a.safetensors",
        "https://user:word@example.org/models/a.safetensors",
        "s3://bucket/anywhere/a.safetensors",
        "http://127.0.0.1:8000/a b/c.safetensors".replace(" ", "%20"),
    ],
)
def test_urls_below_a_prefix_may_be_fetched(url: str) -> None:
    assert FetchRule.parse(ALLOWED).allows(url)
    assert ANY.allows(url)
    assert not NONE.allows(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/models/a.safetensors",  # another scheme
        "https://example.org.eu/models/a.safetensors",
        "https://example.org@evil.example/models/a.safetensors",
        "https://evil.example\\@example.org/models/a.safetensors",
        "https://example.org:8443/models/a.safetensors",
        "https://example.org:x/models/a.safetensors",
        "https://example.org/models-of-others/a.safetensors",
        "https://example.org/models/../a.safetensors",
        "https://example.org/models/%2e%2e/a.safetensors",
        "https://example.org/models/%2E./a.safetensors",
        "https://example.org/models/::file:///etc/a.safetensors",
        "zip://a.safetensors::https://example.org/models/a.zip",
        "http://127.0.0.1/a%20b/c.safetensors",
        "http://[::1]:8000/a%20b/c.safetensors",
        "file:///etc/a.safetensors",
        "memory://a.safetensors",
        "s3://buckets/a.safetensors",
    ],
)
def test_urls_that_only_resemble_a_prefix_are_refused(url: str) -> None:
    assert not FetchRule.parse(ALLOWED).allows(url)
    assert ANY.allows(url)


@pytest.mark.parametrize("words", [["all"], ["none", "https://a.org"], ["zip://a::file:///b"]])
def test_a_rule_that_is_not_understood(words: list[str]) -> None:
    with pytest.raises(InputError, match=r"--fetch .*: expected any, none, or beginnings"):
        FetchRule.parse(words)


def test_secrets_are_not_shown() -> None:
    url = "https://user:word@example.org/a.safetensors?token=key#sha256=ab"
    assert shown(url) == "https://example.org/a.safetensors"
    assert without_secrets(url) == "https://example.org/a.safetensors#sha256=ab"
    assert shown("/models/a.safetensors") == "/models/a.safetensors"


@pytest.mark.defect(29)
@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("zip://a::https://me:pw@h/a.zip?token=key", "zip://a::https://h/a.zip"),
        ("simplecache::https://me:pw@h/a?token=key", "simplecache::https://h/a"),
        ("https://h/a#token=key", "https://h/a"),
        ("https://h/a#sha256=00&token=key", "https://h/a"),
        ("https://h/a#chapter", "https://h/a#chapter"),
        ("https://me:p@w@h/a", "https://h/a"),
        ("https://[bad/a?token=key", "https://[bad/a"),
        ("<lora:https://me:pw@h/a?token=key:1> a cat", "<lora:https://h/a> a cat"),
        ('{"lora": "https://h/a?token=key", "at": 1}', '{"lora": "https://h/a", "at": 1}'),
        ("[it](https://h/a?token=key) is here?", "[it](https://h/a) is here?"),
        (" https://h/a?token=key\nhttps://me@h/b", " https://h/a\nhttps://h/b"),
    ],
)
def test_secrets_of_all_urls_in_a_text_are_left_out(text: str, safe: str) -> None:
    assert without_secrets(text) == safe


@pytest.mark.defect(29)
def test_secrets_are_looked_for_in_linear_time() -> None:
    for piece in ("//", "#", "?", "a", "://", "#a", "@"):
        without_secrets("://" + piece * 500_000)


@pytest.mark.parametrize("name", ["http://[bad/a.safetensors", "http://h:port/a.safetensors"])
def test_a_url_with_an_invalid_host_or_port_is_an_unknown_file(name: str) -> None:
    for rule in (ANY, NONE, FetchRule.parse(ALLOWED)):
        with pytest.raises(InputError, match="is not in loras"):
            Folders(fetch=rule).check("loras", name)
        with pytest.raises(InputError, match="expected any, none"):
            FetchRule.parse([name])


def test_a_checksum() -> None:
    assert checksum(f"https://a.org/b#sha256={'Ab' * 32}") == "ab" * 32
    assert checksum("https://a.org/b") is None
    for wrong in ("sha256=ab", f"md5={'ab' * 32}", f"sha256={'xy' * 32}"):
        with pytest.raises(InputError, match="expected #sha256= and 64"):
            checksum(f"https://a.org/b#{wrong}")


def test_folders_check_urls_without_asking_anybody(tmp_path: Path) -> None:
    folders = Folders((tmp_path,), fetch=ANY)
    for kind in ("loras", "controlnet"):
        folders.check(kind, "https://nobody.invalid/a.safetensors")
    for where, kind, url, words in (
        (Folders(fetch=NONE), "controlnet", "https://a.org/a.safetensors", "may not be fetched"),
        (Folders(fetch=NONE), "loras", "file:///etc/a.safetensors", "may not be fetched"),
        (folders, "input", "https://a.org/a.png", "input cannot be named by a URL"),
        (folders, "loras", "https://a.org/a.pth?download=true", "is a pickle"),
    ):
        with pytest.raises(InputError, match=words):
            where.check(kind, url)
    with pytest.raises(InputError) as refused:
        Folders().check("loras", "https://a.org/a.safetensors?token=secret")
    assert "secret" not in str(refused.value)


def test_a_file_url_is_the_file_itself(tmp_path: Path) -> None:
    there = Folders(fetch=ANY).of_url("controlnet", f"file://{tmp_path}/a%20b.safetensors")
    assert there == tmp_path / "a b.safetensors"


def test_settings_list_permitted_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KATZ_FETCH", raising=False)
    assert (Settings.read().folders().fetch, Settings.read().folders(NONE).fetch) == (ANY, NONE)
    monkeypatch.setenv("KATZ_FETCH", " ".join(ALLOWED))
    assert Settings.read().folders(NONE).fetch == FetchRule(False, ALLOWED)
    assert Settings.read(fetch=["none"]).folders().fetch == NONE


def test_settings_limit_stored_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KATZ_CACHE", str(tmp_path))
    for value, most in (("1.5", 1.5 * 2**30), ("0", 0.0), ("inf", float("inf"))):
        monkeypatch.setenv("KATZ_FETCHED_GB", value)
        assert fetched_files() == (tmp_path / "fetched", most)
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv("KATZ_FETCHED_GB", wrong)
        with pytest.raises(InputError, match=r"KATZ_FETCHED_GB is .*, expected a number of GB"):
            fetched_files()
