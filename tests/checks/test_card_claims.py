"""NM602: each number that our own card states, changed, is a contradiction; the card as it was written is none."""

from __future__ import annotations

import re

import pytest
from support.faults import NAME, Workshop

from dflash_gguf.checks import check
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.presenting.card import CardFile, write_card
from dflash_gguf.storage.files import LocalFile


def card_of(shop: Workshop) -> str:
    with LocalFile(shop.root / NAME) as source:
        return write_card([CardFile.of(NAME, scan_header(source))])


def contradictions(shop: Workshop, text: str) -> list[str]:
    path = shop.write(shop.parts())
    (path.parent / "README.md").write_text(text)
    return [finding.message for finding in check([path], select=["NM602"]).files[0].findings]


def test_the_card_as_written_says_what_the_file_says(shop: Workshop) -> None:
    assert contradictions(shop, card_of(shop)) == []


EDITS = {
    "bytes": (r"\| BF16 \| [\d,]+ \|", "| BF16 | 1,234,567 |"),
    "tensors": (r"(\| BF16 \| [\d,]+ \| )\d+", r"\g<1>37"),
    "type": (r"\| BF16 \|", "| Q8_0 |"),
    "block size": (r"block_size: \d+ \(drafts up to \d+", "block_size: 16 (drafts up to 15"),
    "layers": (r"layers: \d+,", "layers: 5,"),
    "hidden size": (r"hidden size: \d+", "hidden size: 4096"),
    "vocabulary": (r"vocabulary: [\d,]+", "vocabulary: 151,936"),
    "target layers": (r"\(block inputs\): \d+", "(block inputs): 9"),
    "kernel": (r"conv_kernel_size: \d+,", "conv_kernel_size: 9,"),
    "top_k": (r"selector_top_k: \d+", "selector_top_k: 9"),
    "version": (r"A DFlash 2 ", "A DFlash "),
    "n-max": (r"--spec-draft-n-max \d+", "--spec-draft-n-max 15"),
}


@pytest.mark.parametrize("name", EDITS)
def test_each_number_counts(shop: Workshop, name: str) -> None:
    pattern, new = EDITS[name]
    edited, count = re.subn(pattern, new, card_of(shop), count=1)
    assert count == 1
    assert contradictions(shop, edited)


def test_each_row_of_the_metadata_counts(shop: Workshop) -> None:
    head, mark, rows = card_of(shop).partition("## Metadata")
    keys = re.findall(r"^\| `([\w.]+)` \| `", rows, re.MULTILINE)
    assert len(keys) > 20
    for key in keys:
        edited = re.sub(rf"(`{re.escape(key)}` \| `)", r"\g<1>9", rows)
        assert any(key in told for told in contradictions(shop, head + mark + edited)), key


def test_a_card_in_other_words_is_left_alone(shop: Workshop) -> None:
    text = "| model | tensors |\n|---|---|\n| another.gguf | 12 |\n\n--spec-draft-n-max 3, hidden size: 4096\n"
    assert contradictions(shop, text) == []
