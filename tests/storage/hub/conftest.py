"""A small Hub for every test, and huggingface_hub's real client pointed at it, in this process and in others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest
from huggingface_hub.utils import close_session
from support.builders import ROOT
from support.hub_runs import Here, Result
from support.processes import Run, kept_signals
from support.small_hub import TOKEN, SmallHub, small_hub

from dflash_gguf.cli.interrupts import main
from dflash_gguf.storage.hub import transport


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallHub]:
    """The small Hub; the client of this process talks to it, with a cache of its own and no patience."""
    with small_hub() as server:
        monkeypatch.setattr(hub_constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hub_constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(hub_constants, "HF_HUB_DOWNLOAD_TIMEOUT", 300)
        monkeypatch.setattr(hub_constants, "HF_HUB_ETAG_TIMEOUT", 300)
        monkeypatch.setattr(hub_constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(transport, "FIRST_PAUSE", 0.01)
        monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "127.0.0.1,localhost")
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_DEBUG", "HF_HUB_VERBOSITY"):
            monkeypatch.delenv(name, raising=False)
        close_session()
        yield server
        close_session()


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """Be logged in."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return TOKEN


@pytest.fixture
def run_here(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """Run the command line in this process: quicker than `run_hub`."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)

    def call(*arguments: object) -> Result:
        monkeypatch.chdir(work)
        monkeypatch.setattr(sys, "argv", ["dflash-gguf", *map(str, arguments)])
        capsys.readouterr()
        try:
            with kept_signals():
                main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture
def run_hub(hub: SmallHub, tmp_path: Path) -> Run:
    """Run the command line against the small Hub, in a process of its own; `env` adds to its environment."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)

    def call(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))
        }
        environment = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "300",
            "HF_HUB_ETAG_TIMEOUT": "300",
            **(env or {}),
        }
        command = [sys.executable, "-m", "dflash_gguf", *map(str, arguments)]
        return subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=600
        )

    return call
