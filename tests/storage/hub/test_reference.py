"""What counts as a reference to the Hub, and what stays a local path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders import ROOT

from dflash_gguf.errors import UsageError
from dflash_gguf.storage.hub import Reference, parse_reference

R = Reference


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://z-lab/Draft", R("z-lab/Draft")),
        ("hf://z-lab/Draft@v1.0", R("z-lab/Draft", "v1.0")),
        ("hf://z-lab/Draft@main/sub/a.gguf", R("z-lab/Draft", "main", "sub/a.gguf")),
        ("hf://z-lab/Draft/a.gguf", R("z-lab/Draft", None, "a.gguf")),
        ("hf://models/z-lab/Draft/a.gguf", R("z-lab/Draft", None, "a.gguf")),
        ("hf://z-lab/Draft@refs/pr/7", R("z-lab/Draft", "refs/pr/7")),
        ("hf://z-lab/Draft@refs/pr/7/a.gguf", R("z-lab/Draft", "refs/pr/7", "a.gguf")),
        ("hf://z-lab/Draft@feature%2Fx/a.gguf", R("z-lab/Draft", "feature/x", "a.gguf")),
        ("hf://z-lab/Draft/", R("z-lab/Draft")),
        ("hf://a/b/with@sign.gguf", R("a/b", None, "with@sign.gguf")),
        ("z-lab/Draft", R("z-lab/Draft")),
        ("z-lab/Draft.v2", R("z-lab/Draft.v2")),
        ("z-lab/Draft@0123456789abcdef", R("z-lab/Draft", "0123456789abcdef")),
        ("z-lab/Draft@refs/pr/7", R("z-lab/Draft", "refs/pr/7")),
        ("https://huggingface.co/z-lab/Draft", R("z-lab/Draft")),
        ("huggingface.co/z-lab/Draft", R("z-lab/Draft")),
        ("https://hf.co/z-lab/Draft/", R("z-lab/Draft")),
        ("https://huggingface.co/z-lab/Draft/tree/main", R("z-lab/Draft", "main")),
        ("https://huggingface.co/z-lab/Draft/tree/main/sub", R("z-lab/Draft", "main", "sub")),
        ("https://huggingface.co/z-lab/Draft/blob/main/a.gguf", R("z-lab/Draft", "main", "a.gguf")),
        ("https://huggingface.co/z-lab/Draft/resolve/main/a.gguf?download=true", R("z-lab/Draft", "main", "a.gguf")),
        ("https://huggingface.co/z-lab/Draft/blob/refs%2Fpr%2F7/a.gguf", R("z-lab/Draft", "refs/pr/7", "a.gguf")),
        ("https://huggingface.co/z-lab/Draft/blob/refs/pr/7/a.gguf#L1", R("z-lab/Draft", "refs/pr/7", "a.gguf")),
        ("https://huggingface.co/z-lab/Draft/commit/0123abc", R("z-lab/Draft", "0123abc")),
        ("https://huggingface.co/z-lab/Draft/blob/main/a%20b.gguf", R("z-lab/Draft", "main", "a b.gguf")),
    ],
)
def test_references(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize("text", ["hf://a/b", "hf://a/b@refs/pr/3/x.gguf", "hf://a/b@v1", "hf://a/b/x/y.gguf"])
def test_a_reference_shows_as_it_is_read(text: str) -> None:
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "draft.gguf", "./a/b", "../a/b", "/a/b", "~/a", "a/b/c", "models/draft.gguf", "out/model.safetensors", "a", "",
        "a/b@", "a//b", "a/.b", "a/b--c", "a/b.git", "-a/b", "C:/b", "a b/c", "a/..", "org/näme", "a/b\n",
    ],
)  # fmt: skip
def test_local_paths(text: str) -> None:
    assert parse_reference(text) is None


def test_what_exists_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_reference("org/name") == R("org/name")
    (tmp_path / "org/name").mkdir(parents=True)
    assert parse_reference("org/name") is None
    assert parse_reference("org/name@main") is None
    (tmp_path / "org/gone").symlink_to("nowhere")
    assert parse_reference("org/gone") is None
    assert parse_reference("hf://org/name") == R("org/name")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hf://", "names no repository"),
        ("hf://gpt2", "names no repository"),
        ("hf://datasets/a/b", "datasets"),
        ("hf://spaces/a/b", "spaces"),
        ("hf://a/b@", "revision"),
        ("hf://a/b@/x", "revision"),
        ("hf://a/b@a..b/x", "revision"),
        ("hf://a/b@ma in", "revision"),
        ("hf://a/b@%2Fetc", "revision"),
        ("hf://a/b@..%2F..%2Fx", "revision"),
        ("hf://a/b/../../etc/passwd", "leaves its folder"),
        ("hf://a/b/x//y", "leaves its folder"),
        ("hf://a/b/..\\x", "leaves its folder"),
        ("hf://a/b/C:x", "leaves its folder"),
        ("hf://a/b/x\x1b[31m", "cannot be shown"),
        ("hf://a b/c", "repository's id"),
        ("hf://a/b--c", "repository's id"),
        ("https://huggingface.co/", "no repository"),
        ("https://huggingface.co/z-lab", "no repository"),
        ("https://huggingface.co/datasets/a/b", "datasets"),
        ("https://huggingface.co/a/b/discussions/7", "refs/pr/N"),
        ("https://huggingface.co/a/b/tree", "no file or folder"),
        ("https://huggingface.co/a/b/blob/main/..%2F..%2Fx", "leaves its folder"),
        ("https://example.com/a/b", "no link to the Hub"),
        ("http://huggingface.co.evil.example/a/b", "no link to the Hub"),
        ("https://user@evil.example/huggingface.co/a/b", "no link to the Hub"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_reference(text)
    assert caught.value.exit_code == 2


def test_a_token_in_a_link_is_not_repeated() -> None:
    assert parse_reference("https://me:hf_secret@huggingface.co/a/b") == R("a/b")
    for text in ("https://me:hf_secret@huggingface.co/a", "https://me:hf_secret@example.com/a/b"):
        with pytest.raises(UsageError) as caught:
            parse_reference(text)
        assert "hf_secret" not in str(caught.value)


def test_links_to_the_endpoint_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8080/hub")
    assert parse_reference("http://127.0.0.1:8080/hub/a/b/blob/main/x.gguf") == R("a/b", "main", "x.gguf")
    with pytest.raises(UsageError):
        parse_reference("http://127.0.0.1:9090/a/b")


def test_the_client_is_not_imported_before_it_is_needed() -> None:
    """It takes longer to import than a local file to inspect."""
    modules = ", ".join(f"dflash_gguf.{m}" for m in ("cli.inspect", "cli.convert", "cli.check", "cli.publish"))
    code = f"import sys, {modules}; sys.exit('huggingface_hub' in sys.modules or 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
