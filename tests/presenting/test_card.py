"""Model cards: made from headers, valid for the Hub, and wrong as soon as a number is edited."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from support.builders import v2_config, write_draft, write_target
from support.builders_gguf import Parts
from support.processes import Run

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.errors import FormatError, ModelError
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.presenting.card import CardFile, require_one_draft, write_card
from dflash_gguf.presenting.tables import bench_lines
from dflash_gguf.storage.files import LocalFile

DRAFT_COMMIT, TARGET_COMMIT = "1" * 40, "2" * 40
CARD = """---
license: other
license_name: odd-license
license_link: https://example.com/license
base_model: org/Tiny
---
"""


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three types of one draft, converted from the Hub's cache: both commits are recorded."""
    root = tmp_path_factory.mktemp("cards")
    draft = write_draft(root / f"models--org--Tiny-DFlash2/snapshots/{DRAFT_COMMIT}", v2_config())
    (draft / "README.md").write_text(CARD)
    target = write_target(root / f"models--org--Tiny/snapshots/{TARGET_COMMIT}")
    out = root / "files"
    out.mkdir()
    done = convert(draft, target, ConvertOptions(types=("bf16", "q8_0", "q4_k_m"), out=str(out)))
    return [output.path for output in done.plan.outputs]


def front_matter(card: str) -> dict[str, object]:
    """As the Hub's client reads it."""
    data: dict[str, object] = ModelCard(card, ignore_metadata_errors=False).data.to_dict()  # type: ignore[no-untyped-call]
    return data


def card_files(paths: list[Path]) -> list[CardFile]:
    held = []
    for path in paths:
        with LocalFile(path) as source:
            held.append(CardFile.of(path.name, scan_header(source)))
    return held


def test_the_hub_reads_its_front_matter(drafts: list[Path]) -> None:
    data = front_matter(write_card(card_files(drafts)))
    assert data == {
        "base_model": "org/Tiny-DFlash2",
        "base_model_relation": "quantized",
        "library_name": "gguf",
        "license": "other",
        "license_link": "https://example.com/license",
        "license_name": "odd-license",
        "pipeline_tag": "text-generation",
        "tags": ["gguf", "llama.cpp", "dflash", "speculative-decoding"],
    }


def test_what_it_says(drafts: list[Path]) -> None:
    card = write_card(card_files(drafts))
    for path, kind in zip(drafts, ("BF16", "Q8_0", "Q4_K_M"), strict=True):
        assert f"| `{path.name}` | {kind} | {path.stat().st_size:,} | 36 |" in card
    assert "| `dflash.selector_top_k` | `4` |" in card
    assert "| `dflash.attention.layer_norm_rms_epsilon` | `1e-06` |" in card
    command = f"convert org/Tiny-DFlash2@{DRAFT_COMMIT} --target org/Tiny@{TARGET_COMMIT}"
    assert f"dflash-gguf {command} --type bf16 --type q8_0 --type q4_k_m" in card
    assert f"-md {drafts[0].name} --spec-type draft-dflash --spec-draft-n-max 7" in card
    assert "odd-license" in card.partition("## Attribution")[2]


def test_a_card_without_repositories(tmp_path: Path) -> None:
    draft, target = write_draft(tmp_path / "Own-DFlash2", v2_config()), write_target(tmp_path / "Own")
    convert(draft, target, ConvertOptions(out=str(tmp_path / "d.gguf")))
    card = write_card(card_files([tmp_path / "d.gguf"]))
    assert "base_model" not in front_matter(card)
    assert "dflash-gguf convert DRAFT --target TARGET --type bf16" in card


def test_an_edited_byte_count_is_found(drafts: list[Path], run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    paths = [Path(shutil.copy(path, folder)) for path in drafts]
    assert run("card", *paths, "--out", folder / "README.md").returncode == 0
    readme = folder / "README.md"
    good = readme.read_text(encoding="utf-8")

    def found() -> list[str]:
        report = json.loads(run("check", *paths, "--json", "--select", "NM602").stdout)
        return [f"{Path(file['path']).name} {f['message']}" for file in report["files"] for f in file["findings"]]

    assert found() == []
    for path in paths:
        size = f"{path.stat().st_size:,}"
        digit = str((int(size[-1]) + 1) % 10)
        readme.write_text(good.replace(f"| {size} |", f"| {size[:-1]}{digit} |"), encoding="utf-8")
        (message,) = found()
        assert message.startswith(path.name)
        assert size in message


def test_only_files_of_one_draft(drafts: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(Parts.of(drafts[0]).set("dflash.block_size", ValueType.UINT32, 4).encode())
    with pytest.raises(ModelError, match="another draft"):
        require_one_draft(card_files([drafts[0], other]))
    target = tmp_path / "target.gguf"
    target.write_bytes(Parts.of(drafts[0]).set("general.architecture", ValueType.STRING, "qwen3").encode())
    with pytest.raises(ModelError, match="no DFlash draft"):
        require_one_draft(card_files([target]))


def test_hostile_values_stay_where_they_are(drafts: list[Path], tmp_path: Path) -> None:
    bad, evil = tmp_path / "bad.gguf", "x\n---\nlicense: mit\n# `<b>`|[a](http://b)"
    parts = Parts.of(drafts[0])
    for key in ("general.name", "general.license.name", "tokenizer.ggml.pre", "general.source.version"):
        parts.set(key, ValueType.STRING, evil)
    bad.write_bytes(parts.encode())
    card = write_card(card_files([bad]))
    assert front_matter(card)["license"] == "other"
    assert not re.search(r"^license: mit$", card.partition("---\n")[2].partition("\n---\n")[2], re.MULTILINE)
    assert "<b>" not in card.replace("`x\\n---\\nlicense: mit\\n# '<b>'¦[a](http://b)`", "").partition("\n---\n")[2]


BENCH = {
    "settings": {"n_predict": 64, "memory": None, "threads": 1},
    "notes": ["a note"],
    "rows": [
        {"prompts": "unique", "draft": None, "n_max": None, "context": 4096, "tokens_per_second": 10.0},
        {
            "prompts": "unique",
            "draft": "d.gguf",
            "n_max": 7,
            "context": 4096,
            "tokens_per_second": 21.26,
            "accepted": 1136,
            "drafted": 1788,
            "mean_accepted": 4.32,
            "speedup": 2.126,
        },
        {"prompts": "unique", "draft": "e.gguf", "n_max": 7, "context": 4096, "error": "refused | `x`"},
    ],
}


def test_a_measured_table() -> None:
    lines = bench_lines(BENCH, "b.json")
    assert lines[2] == "| unique | none |  | 4096 | 10.0 |  |  |  |"
    assert lines[3] == "| unique | d.gguf | 7 | 4096 | 21.3 | 1136 / 1788 | 4.32 | 2.13× |"
    assert lines[4] == "| unique | e.gguf | 7 | 4096 | failed: `refused ¦ 'x'` | | | |"
    assert "Settings: n predict 64, memory none, threads 1." in "\n".join(lines)
    assert lines[-1] == "- a note"
    assert len({line.count("|") for line in lines[:5]}) == 1


@pytest.mark.parametrize(
    "document",
    [{}, {"rows": [], "settings": {}}, {**BENCH, "rows": [1]}, {**BENCH, "rows": [{"prompts": "unique"}]}],
)
def test_what_is_no_report(document: dict[str, object]) -> None:
    with pytest.raises(FormatError, match=r"b\.json"):
        bench_lines(document, "b.json")


def test_the_command(drafts: list[Path], run: Run, tmp_path: Path) -> None:
    bench = tmp_path / "b.json"
    bench.write_text(json.dumps(BENCH))
    shown = run("card", *drafts, "--bench", bench)
    assert shown.returncode == 0, shown.stderr
    assert "| unique | d.gguf | 7 |" in shown.stdout
    out = tmp_path / "README.md"
    assert run("card", *drafts, "--bench", bench, "--out", out).returncode == 0
    assert out.read_text(encoding="utf-8") == shown.stdout
    assert run("card", *drafts, "--out", out).returncode == 2
    assert run("card", *drafts, "--out", out, "--force").returncode == 0
