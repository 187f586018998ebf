"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.builders import GOLDENS, ROOT, v1_config, v2_config, write_draft, write_target
from support.faults import Workshop
from support.processes import Run

SHARED = Path(os.environ.get("DFLASH_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of facts and golden results, where it is at hand."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("the folder of golden results is not at hand (DFLASH_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def golden_inputs(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of the golden results, made as their README says."""
    out = tmp_path_factory.mktemp("golden")
    subprocess.run(["tar", "xf", shared / "tokenizers/qwen3.tar.xz", "-C", out], check=True)
    for name, (seed, changes) in GOLDENS.items():
        command: list[str | Path] = [
            sys.executable,
            shared / "tools/make_checkpoint.py",
            out / name,
            "--tokenizer",
            out / "qwen3",
        ]
        command += ["--config", shared / "facts/configs/GLM-5.3-Flash-DFlash2/config.json", "--shrink", *seed]
        command += ["--set", "vocab_size=151936", "dflash_config.mask_token_id=151669", *changes]
        subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A small DFlash 2 checkpoint."""
    return write_draft(tmp_path / "Tiny-DFlash2", v2_config())


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The folder of its target."""
    return write_target(tmp_path / "Tiny")


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A DFlash 2 draft, and tools to break it."""
    return Workshop.open(tmp_path_factory.mktemp("v2"), v2_config())


@pytest.fixture(scope="session")
def v1_shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A DFlash 1 draft."""
    return Workshop.open(tmp_path_factory.mktemp("v1"), v1_config())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the command line in a process of its own, in an empty folder."""
    work = tmp_path / "work"
    work.mkdir()

    def call(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        # -B: a limit of file sizes would cut compiled modules short, which some interpreters notice in the next run
        command = [sys.executable, "-B", "-m", "dflash_gguf", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=600, **options
        )

    return call


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trained DFlash 2 draft by type, made once."""
    from support.executor_fixture import converted
    from support.measured_drafts import KINDS

    folder = tmp_path_factory.mktemp("measure")
    return {kind: converted(folder, "draft", kind) for kind in KINDS}
