"""Files that break one rule each: every builder is named after its fault, and changes one thing in a good file."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dflash_gguf.conversion import ConvertOptions, convert
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import Array
from support.builders import target_config, v2_config, write_draft, write_target
from support.builders_gguf import Parts, target_gguf

U32, I32, F32, STR, BOOL = (
    ValueType.UINT32,
    ValueType.INT32,
    ValueType.FLOAT32,
    ValueType.STRING,
    ValueType.BOOL,
)
LAYERS = "dflash.target_layers"
MASK = "tokenizer.ggml.mask_token_id"
TOKENS = "tokenizer.ggml.tokens"
NAME = "dflash-Tiny-BF16.gguf"


@dataclass
class Workshop:
    """Good files of one kind, and a folder for broken ones."""

    root: Path
    draft: Path  # checkpoint folder
    target: Path  # its target's folder
    good: Parts
    made: int = 0

    @classmethod
    def open(cls, root: Path, config: dict[str, Any]) -> Workshop:
        """Convert a small draft."""
        draft = write_draft(root / "Tiny-DFlash", config)
        target = write_target(root / "Tiny")
        convert(draft, target, ConvertOptions(out=str(root / NAME)))
        return cls(root, draft, target, Parts.of(root / NAME))

    def parts(self) -> Parts:
        """The good file, to be broken."""
        return self.good.copy()

    def folder(self) -> Path:
        """A new folder."""
        self.made += 1
        folder = self.root / f"case{self.made}"
        folder.mkdir()
        return folder

    def write(self, what: Parts | bytes, name: str = NAME) -> Path:
        """Write a file into a folder of its own."""
        path = self.folder() / name
        path.write_bytes(what if isinstance(what, bytes) else what.encode())
        return path

    def target_with(self, **changes: Any) -> Path:
        """A target whose config differs."""
        return write_target(self.folder() / "Tiny", target_config(**changes))

    def source_with(self, **changes: Any) -> Path:
        """The draft's checkpoint with another config (its weights stay)."""
        folder = self.folder() / "Tiny-DFlash"
        shutil.copytree(self.draft, folder)
        (folder / "config.json").write_text(json.dumps(v2_config(**changes)))
        return folder


@dataclass
class Case:
    """A file (or its bytes) and what it is checked with."""

    file: Path
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A builder, the rule that its file breaks, how severe that is, and where the finding has to point."""

    rule: str
    where: str
    severity: str
    build: Callable[[Workshop], Case | Parts | bytes]

    def make(self, shop: Workshop) -> Case:
        built = self.build(shop)
        return built if isinstance(built, Case) else Case(shop.write(built))


FAULTS: dict[str, Fault] = {}
Build = Callable[[Workshop], Case | Parts | bytes]


def breaks(rule: str, where: str = "", severity: str = "error") -> Callable[[Build], Build]:
    """Register a builder under its own name."""

    def register(build: Build) -> Build:
        FAULTS[build.__name__] = Fault(rule, where, severity, build)
        return build

    return register


def key_bytes(key: str) -> bytes:
    """A key as it is encoded."""
    return struct.pack("<Q", len(key)) + key.encode()


def patch(data: bytes, at: int, form: str, *values: int) -> bytes:
    """`data` with a few bytes changed."""
    raw = struct.pack(form, *values)
    return data[:at] + raw + data[at + len(raw) :]


def infos_at(data: bytes, name: str) -> int:
    """Where the tensor info of `name` has its dims' count."""
    return data.index(key_bytes(name)) + 8 + len(name)


# container


@breaks("GF001")
def empty_file(shop: Workshop) -> bytes:
    return b""


@breaks("GF001")
def lfs_pointer(shop: Workshop) -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@breaks("GF001")
def html_page(shop: Workshop) -> bytes:
    return b"<!DOCTYPE html><html><body>404</body></html>"


@breaks("GF001")
def safetensors_file(shop: Workshop) -> bytes:
    return (shop.draft / "model.safetensors").read_bytes()[:4096]


@breaks("GF001")
def zip_archive(shop: Workshop) -> bytes:
    return b"PK\x03\x04" + bytes(60)


@breaks("GF001")
def truncated_magic(shop: Workshop) -> bytes:
    return b"GGU"


@breaks("GF002", "version")
def version_zero(shop: Workshop) -> bytes:
    return patch(shop.good.encode(), 4, "<I", 0)


@breaks("GF002", "version")
def version_of_the_future(shop: Workshop) -> bytes:
    return patch(shop.good.encode(), 4, "<I", 4)


@breaks("GF002", "version")
def big_endian(shop: Workshop) -> bytes:
    return patch(shop.good.encode(), 4, ">I", 3)


@breaks("GF003", "tensor count")
def absurd_tensor_count(shop: Workshop) -> bytes:
    return patch(shop.good.encode(), 8, "<Q", 1 << 60)


@breaks("GF003", "key count")
def absurd_key_count(shop: Workshop) -> bytes:
    return patch(shop.good.encode(), 16, "<Q", (1 << 64) - 1)


@breaks("GF003", TOKENS)
def absurd_item_count(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, data.index(key_bytes(TOKENS)) + 8 + len(TOKENS) + 8, "<Q", 1 << 61)


@breaks("GF003")
def string_longer_than_the_file(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, data.index(key_bytes("general.name")) + 8 + len("general.name") + 4, "<Q", 1 << 40)


@breaks("GF003", "fc.weight")
def dims_that_overflow(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, infos_at(data, "fc.weight") + 4, "<QQ", 1 << 40, 1 << 40)


@breaks("GF003")
def cut_off_in_the_header(shop: Workshop) -> bytes:
    return shop.good.encode()[:2000]


@breaks("GF004", "general.type")
def key_twice(shop: Workshop) -> bytes:
    parts = shop.parts().rename("general.type", "general.typf")
    first, second = key_bytes("general.typf"), key_bytes("general.type")
    parts.pairs["general.type"] = parts.pairs["general.typf"]
    return parts.encode().replace(first, second)


@breaks("GF004")
def key_not_ascii(shop: Workshop) -> bytes:
    data = shop.good.encode()
    at = data.index(b"general.type")
    return data[:at] + "é".encode() + data[at + 2 :]


@breaks("GF004")
def empty_key(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, data.index(key_bytes("general.type")), "<Q", 0)


@breaks("GF004", "general.type")
def unknown_value_type(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, data.index(key_bytes("general.type")) + 8 + len("general.type"), "<I", 77)


@breaks("GF004", TOKENS)
def array_of_arrays(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, data.index(key_bytes(TOKENS)) + 8 + len(TOKENS) + 4, "<I", 9)


@breaks("GF005", "output_norm.weight")
def tensor_twice(shop: Workshop) -> bytes:
    parts = shop.parts()
    parts.tensors["output_norm.weighu"] = parts.tensors["output_norm.weight"]
    return parts.encode().replace(key_bytes("output_norm.weighu"), key_bytes("output_norm.weight"))


@breaks("GF005", "selector_hidden.weight")
def removed_type(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, infos_at(data, "selector_hidden.weight") + 20, "<I", 4)


@breaks("GF005", "selector_hidden.weight")
def unknown_type(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, infos_at(data, "selector_hidden.weight") + 20, "<I", 200)


@breaks("GF005", "selector_hidden.weight")
def dim_of_zero(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, infos_at(data, "selector_hidden.weight") + 4, "<Q", 0)


@breaks("GF005", "selector_hidden.weight")
def negative_dim(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, infos_at(data, "selector_hidden.weight") + 12, "<q", -32)


@breaks("GF005", "selector_hidden.weight")
def five_dims(shop: Workshop) -> bytes:
    data = shop.good.encode()
    return patch(data, infos_at(data, "selector_hidden.weight"), "<I", 5)


@breaks("GF005", "output_norm.weight")
def row_that_is_no_multiple_of_the_block(shop: Workshop) -> bytes:
    parts = shop.parts().reshape("output_norm.weight", (65,))
    data = parts.encode()
    return patch(data, infos_at(data, "output_norm.weight") + 12, "<I", GGMLType.Q8_0)


@breaks("GF006", "general.alignment")
def alignment_of_zero(shop: Workshop) -> Parts:
    return shop.parts().set("general.alignment", U32, 0)


@breaks("GF006", "general.alignment")
def alignment_of_48(shop: Workshop) -> Parts:
    return shop.parts().set("general.alignment", U32, 48)


@breaks("GF006", "general.alignment")
def alignment_of_another_type(shop: Workshop) -> Parts:
    return shop.parts().set("general.alignment", ValueType.UINT64, 32)


@breaks("GF006", "blk.1.ffn_conv_proj.weight")
def cut_off_in_the_data(shop: Workshop) -> bytes:
    return shop.good.encode()[:-100]


@breaks("GF006", "output_norm.weight")
def tensors_that_overlap(shop: Workshop) -> bytes:
    data = shop.good.encode()
    at = infos_at(data, "output_norm.weight") + 16
    (offset,) = struct.unpack_from("<Q", data, at)
    return patch(data, at, "<Q", offset - 32)


@breaks("GF006", "output_norm.weight")
def offset_that_is_not_aligned(shop: Workshop) -> bytes:
    data = shop.good.encode()
    at = infos_at(data, "output_norm.weight") + 16
    (offset,) = struct.unpack_from("<Q", data, at)
    return patch(data, at, "<Q", offset + 4)


@breaks("GF007", "end of file", "warning")
def trailing_bytes(shop: Workshop) -> bytes:
    return shop.good.encode() + b"x"


@breaks("GF007", "dflash.attention.causal", "warning")
def bool_of_two(shop: Workshop) -> bytes:
    data, key = shop.good.encode(), "dflash.attention.causal"
    return patch(data, data.index(key_bytes(key)) + 8 + len(key) + 4, "<B", 2)


@breaks("GF007", "dflash.logit_scale", "warning")
def value_of_nan(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.logit_scale", F32, float("nan"))


@breaks("GF007", "general.description", "warning")
def string_not_utf8(shop: Workshop) -> Parts:
    return shop.parts().set("general.description", STR, "\udcff\udcfe")


@breaks("GF007", "general.description", "warning")
def string_that_moves_the_cursor(shop: Workshop) -> Parts:
    return shop.parts().set("general.description", STR, "fine\x1b[2Jgone")


@breaks("GF007", "general.tags", "warning")
def string_of_an_array_not_utf8(shop: Workshop) -> Parts:
    return shop.parts().set_strings("general.tags", [b"ok", b"\xff"])


@breaks("GF007", "header", "warning")
def padding_not_zero(shop: Workshop) -> bytes:
    parts = shop.parts().set("general.description", STR, "")
    used = len(parts.encode()) - len(parts.set("general.description", STR, "x" * 32).encode())
    assert used == -32  # 32 more bytes, so some length between leaves exactly one byte of padding
    for length in range(32):
        data = parts.set("general.description", STR, "x" * length).encode()
        start = len(data) - sum(-(-len(raw) // 32) * 32 for _, _, raw in parts.tensors.values())
        grown = parts.set("general.description", STR, "x" * (length + 1)).encode()
        if len(grown) > len(data):  # no padding at this length, 31 bytes of it at the next
            start = len(grown) - (len(data) - start)
            return grown[: start - 1] + b"\1" + grown[start:]
    raise AssertionError


@breaks("GF008", "split.count")
def one_part_of_a_split_file(shop: Workshop) -> Parts:
    parts = shop.parts().set("split.no", ValueType.UINT16, 0).set("split.count", ValueType.UINT16, 2)
    return parts.drop(*[name for name in parts.tensors if name.startswith("blk.1.")])


@breaks("GF008", "file name")
def name_of_a_part(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts(), "dflash-Tiny-BF16-00001-of-00002.gguf"), {"ignore": ["NM601"]})


# metadata


@breaks("KV101", "dflash.target_layer_ids")
def layer_ids_below_zero(shop: Workshop) -> Parts:
    parts = shop.parts().rename(LAYERS, "dflash.target_layer_ids")
    return parts.set_array("dflash.target_layer_ids", ValueType.INT64, [-(1 << 40), 1, 2])


@breaks("KV101", "general.architecture")
def architecture_of_a_fork(shop: Workshop) -> Parts:
    parts = shop.parts().set("general.architecture", STR, "dflash-draft")
    for key in list(parts.pairs):
        parts.rename(key, key.replace("dflash.", "dflash-draft."))
    return parts


@breaks("KV101", "general.architecture")
def architecture_of_a_target(shop: Workshop) -> Parts:
    return shop.parts().set("general.architecture", STR, "qwen3")


@breaks("KV101", "general.architecture")
def no_architecture(shop: Workshop) -> Parts:
    return shop.parts().remove("general.architecture")


@breaks("KV101", "dflash.dflash.block_count")
def doubled_prefix(shop: Workshop) -> Parts:
    parts = shop.parts()
    for key in list(parts.pairs):
        if key.startswith("dflash."):
            parts.rename(key, "dflash." + key)
    return parts


@breaks("KV101", "dflash.mask_token_id")
def mask_token_under_dflash(shop: Workshop) -> Parts:
    return shop.parts().rename(MASK, "dflash.mask_token_id")


def _without(key: str) -> Build:
    def build(shop: Workshop) -> Parts:
        return shop.parts().remove(key)

    build.__name__ = f"without_{key}"
    return build


def _as_u64(key: str) -> Build:
    def build(shop: Workshop) -> Parts:
        value = shop.good.pairs[key].value
        kind = ValueType.FLOAT64 if isinstance(value, float) else ValueType.UINT64
        return shop.parts().set(key, kind, value)

    build.__name__ = f"wide_{key}"
    return build


REQUIRED = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "block_size",
]
for _name in REQUIRED:
    breaks("KV102", f"dflash.{_name}")(_without(f"dflash.{_name}"))
    breaks("KV102", f"dflash.{_name}")(_as_u64(f"dflash.{_name}"))


@breaks("KV102", "dflash.attention.layer_norm_rms_epsilon")
def epsilon_of_zero(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.attention.layer_norm_rms_epsilon", F32, 0.0)


@breaks("KV102", "dflash.attention.causal")
def causal_as_a_number(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.attention.causal", U32, 0)


@breaks("KV102", "general.file_type")
def file_type_as_a_string(shop: Workshop) -> Parts:
    return shop.parts().set("general.file_type", STR, "BF16")


@breaks("KV103", "dflash.block_size")
def block_of_one(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.block_size", U32, 1)


for _name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
    breaks("KV103", f"dflash.{_name}")(_without(f"dflash.{_name}"))


@breaks("KV103", "dflash.selector_rank")
def selector_rank_of_zero(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.selector_rank", U32, 0)


@breaks("KV104", LAYERS)
def no_target_layers(shop: Workshop) -> Parts:
    return shop.parts().remove(LAYERS)


@breaks("KV104", LAYERS)
def empty_target_layers(shop: Workshop) -> Parts:
    return shop.parts().set_array(LAYERS, I32, [])


@breaks("KV104", LAYERS)
def target_layers_as_strings(shop: Workshop) -> Parts:
    return shop.parts().set_strings(LAYERS, [b"1", b"2", b"4"])


@breaks("KV104", LAYERS)
def target_layers_of_u32(shop: Workshop) -> Parts:
    return shop.parts().set_array(LAYERS, U32, [1, 2, 4])


@breaks("KV104", LAYERS)
def target_layers_that_repeat(shop: Workshop) -> Parts:
    return shop.parts().set_array(LAYERS, I32, [1, 2, 2])


@breaks("KV104", LAYERS)
def target_layers_from_zero(shop: Workshop) -> Parts:
    return shop.parts().set_array(LAYERS, I32, [0, 2, 4])


@breaks("KV105", "dflash.attention.sliding_window")
def window_without_pattern(shop: Workshop) -> Parts:
    return shop.parts().remove("dflash.attention.sliding_window_pattern")


@breaks("KV105", "dflash.attention.sliding_window_pattern")
def pattern_without_window(shop: Workshop) -> Parts:
    return shop.parts().remove("dflash.attention.sliding_window")


@breaks("KV105", "dflash.attention.sliding_window_pattern")
def pattern_of_another_length(shop: Workshop) -> Parts:
    return shop.parts().set_array("dflash.attention.sliding_window_pattern", BOOL, [True, False, True])


@breaks("KV105", "dflash.attention.sliding_window_pattern")
def pattern_of_numbers(shop: Workshop) -> Parts:
    return shop.parts().set_array("dflash.attention.sliding_window_pattern", U32, [1, 0])


@breaks("KV106", "dflash.rope.dimension_sections")
def sections_of_the_target(shop: Workshop) -> Parts:
    return shop.parts().set_array("dflash.rope.dimension_sections", I32, [6, 5, 5, 0])


@breaks("KV106", "dflash.rope.dimension_sections")
def sections_of_another_head(shop: Workshop) -> Parts:
    return shop.parts().set_array("dflash.rope.dimension_sections", I32, [11, 11, 10, 0])


@breaks("KV106", "dflash.rope.dimension_sections")
def three_sections(shop: Workshop) -> Parts:
    return shop.parts().set_array("dflash.rope.dimension_sections", I32, [16, 0, 0])


@breaks("KV107", "dflash.attention.head_count")
def twice_the_heads(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.attention.head_count", U32, 8)


@breaks("KV107", "dflash.attention.head_count_kv")
def other_kv_heads(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.attention.head_count_kv", U32, 1)


@breaks("KV107", "dflash.attention.head_count_kv")
def kv_heads_that_do_not_divide(shop: Workshop) -> Parts:
    parts = shop.parts().set("dflash.attention.head_count_kv", U32, 3)
    for layer in (0, 1):
        for name in ("attn_k", "attn_v"):
            parts.reshape(f"blk.{layer}.{name}.weight", (64, 96))
    return parts


@breaks("KV107", "dflash.attention.value_length")
def values_longer_than_keys(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.attention.value_length", U32, 64)


@breaks("KV108", "dflash.conv_group_size")
def groups_that_do_not_divide(shop: Workshop) -> Parts:
    parts = shop.parts().set("dflash.conv_group_size", U32, 24)
    for layer in (0, 1):
        for name in ("attn", "ffn"):
            parts.reshape(f"blk.{layer}.{name}_conv_proj.weight", (64, 8))
    return parts


@breaks("KV108", "dflash.selector_top_k")
def lattice_larger_than_the_state(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.selector_top_k", U32, 8)


@breaks("KV108", "dflash.block_count")
def too_many_blocks(shop: Workshop) -> Parts:
    parts = shop.parts().set("dflash.block_count", U32, 513)
    return parts.set_array("dflash.attention.sliding_window_pattern", BOOL, [True] * 513)


@breaks("KV109", "general.file_type", "warning")
def label_of_another_type(shop: Workshop) -> Case:
    parts = shop.parts().set("general.file_type", U32, 15)
    return Case(shop.write(parts, "dflash-Tiny-Q4_K_M.gguf"), {"ignore": ["TN307"]})


@breaks("KV109", "general.file_type", "warning")
def f16_file(shop: Workshop) -> Case:
    path = shop.folder() / "dflash-Tiny-F16.gguf"
    convert(shop.draft, shop.target, ConvertOptions(types=("f16",), out=str(path)))
    return Case(path)


@breaks("KV109", "markov_w1.weight", "warning")
def dspark_draft(shop: Workshop) -> Case:
    parts = shop.parts()
    parts.tensors["markov_w1.weight"] = (GGMLType.F32, (8, 4), bytes(128))
    return Case(shop.write(parts, "dspark-Tiny-BF16.gguf"))


@breaks("KV111", "dflash.sample_from_anchor")
def samples_from_anchor(shop: Workshop) -> Parts:
    return shop.parts().set("dflash.sample_from_anchor", BOOL, True)


@breaks("KV110", "general.name", "warning")
def meaningless_name(shop: Workshop) -> Parts:
    return shop.parts().set("general.name", STR, "snapshot")


@breaks("KV110", "general.name", "warning")
def name_of_a_commit(shop: Workshop) -> Parts:
    return shop.parts().set("general.name", STR, "2d9571f0c1a2b3c4d5e6f708192a3b4c5d6e7f80")


@breaks("KV110", "general.base_model.count", "warning")
def no_provenance(shop: Workshop) -> Parts:
    parts = shop.parts()
    return parts.remove(*[key for key in parts.pairs if key.startswith(("general.base_model", "general.source"))])


@breaks("KV110", "general.license", "warning")
def license_left_out(shop: Workshop) -> Case:
    source = shop.source_with()
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    return Case(shop.write(shop.parts()), {"source": source, "ignore": ["SR503"]})


# tokenizer


@breaks("TK201", TOKENS)
def fewer_tokens_than_rows(shop: Workshop) -> Parts:
    parts = shop.parts().set_strings(TOKENS, shop.good.strings(TOKENS)[:2040])
    return parts.set_array("tokenizer.ggml.token_type", I32, _types(shop)[:2040])


def _types(shop: Workshop) -> list[int]:
    value = shop.good.pairs["tokenizer.ggml.token_type"].value
    assert isinstance(value, Array)
    return [int(item) for item in value.items()]


@breaks("TK201", TOKENS)
def no_tokens(shop: Workshop) -> Parts:
    return shop.parts().remove(TOKENS, "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.model")


@breaks("TK201", "tokenizer.ggml.token_type")
def fewer_token_types(shop: Workshop) -> Parts:
    return shop.parts().set_array("tokenizer.ggml.token_type", I32, _types(shop)[:-1])


@breaks("TK201", "tokenizer.ggml.token_type")
def token_types_as_floats(shop: Workshop) -> Parts:
    return shop.parts().set_array("tokenizer.ggml.token_type", F32, _types(shop))


@breaks("TK201", "tokenizer.ggml.scores")
def fewer_scores(shop: Workshop) -> Parts:
    return shop.parts().set_array("tokenizer.ggml.scores", F32, [0.0] * 2000)


@breaks("TK202", MASK)
def no_mask_token(shop: Workshop) -> Parts:
    return shop.parts().remove(MASK)


@breaks("TK202", MASK)
def mask_token_beyond_the_vocabulary(shop: Workshop) -> Parts:
    return shop.parts().set(MASK, U32, 2048)


@breaks("TK202", MASK)
def negative_mask_token(shop: Workshop) -> Parts:
    return shop.parts().set(MASK, I32, -1)


@breaks("TK202", MASK, "warning")
def mask_token_that_is_eos(shop: Workshop) -> Parts:
    return shop.parts().set(MASK, U32, int(str(shop.good.pairs["tokenizer.ggml.eos_token_id"].value)))


@breaks("TK203", "tokenizer.ggml.eos_token_id")
def eos_beyond_the_vocabulary(shop: Workshop) -> Parts:
    return shop.parts().set("tokenizer.ggml.eos_token_id", U32, 151645)


@breaks("TK203", "tokenizer.ggml.fim_pre_token_id")
def fim_token_beyond_the_vocabulary(shop: Workshop) -> Parts:
    return shop.parts().set("tokenizer.ggml.fim_pre_token_id", U32, 0xFFFF_FFFF)


@breaks("TK204", "tokenizer.ggml.pre")
def default_pre(shop: Workshop) -> Parts:
    return shop.parts().set("tokenizer.ggml.pre", STR, "default")


@breaks("TK204", "tokenizer.ggml.pre")
def no_pre(shop: Workshop) -> Parts:
    return shop.parts().remove("tokenizer.ggml.pre")


@breaks("TK204", "tokenizer.ggml.pre", "warning")
def unheard_of_pre(shop: Workshop) -> Parts:
    return shop.parts().set("tokenizer.ggml.pre", STR, "qwen99")


@breaks("TK204", "tokenizer.ggml.model")
def no_tokenizer_model(shop: Workshop) -> Parts:
    return shop.parts().remove("tokenizer.ggml.model")


@breaks("TK204", "tokenizer.ggml.model")
def tokenizer_model_as_a_number(shop: Workshop) -> Parts:
    return shop.parts().set("tokenizer.ggml.model", U32, 1)


@breaks("TK204", "tokenizer.ggml.merges")
def no_merges(shop: Workshop) -> Parts:
    return shop.parts().remove("tokenizer.ggml.merges")


@breaks("TK204", "tokenizer.ggml.merges")
def last_merge_names_no_token(shop: Workshop) -> Parts:
    merges = shop.good.strings("tokenizer.ggml.merges")
    return shop.parts().set_strings("tokenizer.ggml.merges", [*merges[:-1], b"zq zqzq"])


@breaks("TK204", "tokenizer.ggml.merges")
def merge_of_one_part(shop: Workshop) -> Parts:
    merges = shop.good.strings("tokenizer.ggml.merges")
    return shop.parts().set_strings("tokenizer.ggml.merges", [merges[0], b"th", *merges[2:]])


@breaks("TK205", TOKENS, "warning")
def token_text_twice(shop: Workshop) -> Parts:
    tokens = shop.good.strings(TOKENS)
    return shop.parts().set_strings(TOKENS, [*tokens[:-1], tokens[7]])


@breaks("TK205", TOKENS, "warning")
def byte_token_that_is_none(shop: Workshop) -> Parts:
    return shop.parts().set_array("tokenizer.ggml.token_type", I32, [6, *_types(shop)[1:]])


@breaks("TK205", "tokenizer.chat_template", "warning")
def huge_chat_template(shop: Workshop) -> Parts:
    return shop.parts().set("tokenizer.chat_template", STR, "x" * ((1 << 20) + 1))


# tensors


@breaks("TN301", "tensor count")
def no_tensors(shop: Workshop) -> Parts:
    parts = shop.parts()
    return parts.drop(*parts.tensors)


@breaks("TN301", "blk.1.ffn_up.weight")
def a_tensor_is_missing(shop: Workshop) -> Parts:
    return shop.parts().drop("blk.1.ffn_up.weight")


@breaks("TN301", "blk.0.attn_q.bias")
def a_tensor_that_nobody_asked_for(shop: Workshop) -> Parts:
    parts = shop.parts()
    parts.tensors["blk.0.attn_q.bias"] = (GGMLType.F32, (128,), bytes(512))
    return parts


@breaks("TN301", "blk.1.attn_norm.weight")
def a_layer_is_missing(shop: Workshop) -> Parts:
    parts = shop.parts()
    return parts.drop(*[name for name in parts.tensors if name.startswith("blk.1.")])


@breaks("TN302", "selector_successor.weight")
def a_selector_of_two(shop: Workshop) -> Parts:
    return shop.parts().drop("selector_successor.weight")


@breaks("TN302", "selector_hidden.weight")
def convolutions_without_selector(shop: Workshop) -> Parts:
    parts = shop.parts()
    return parts.drop(*[name for name in parts.tensors if name.startswith("selector_")])


@breaks("TN302", "blk.0.attn_conv_base")
def selector_without_convolutions(shop: Workshop) -> Parts:
    parts = shop.parts()
    return parts.drop(*[name for name in parts.tensors if "_conv_" in name])


@breaks("TN302", "dflash.conv_kernel_size")
def keys_of_v2_on_tensors_of_v1(shop: Workshop) -> Parts:
    parts = shop.parts()
    return parts.drop(*[name for name in parts.tensors if "_conv_" in name or name.startswith("selector_")])


@breaks("TN303", "fc.weight")
def features_of_two_taps(shop: Workshop) -> Parts:
    return shop.parts().reshape("fc.weight", (128, 64))


@breaks("TN303", "blk.1.attn_q.weight")
def one_query_is_wider(shop: Workshop) -> Parts:
    return shop.parts().reshape("blk.1.attn_q.weight", (64, 160))


@breaks("TN303", "blk.0.attn_conv_base")
def conv_base_turned_round(shop: Workshop) -> Parts:
    return shop.parts().reshape("blk.0.attn_conv_base", (2, 2, 64))


@breaks("TN303", "selector_hidden.weight")
def selector_turned_round(shop: Workshop) -> Parts:
    return shop.parts().reshape("selector_hidden.weight", (32, 64))


@breaks("TN304", "blk.0.attn_norm.weight")
def norm_of_bf16(shop: Workshop) -> Parts:
    return shop.parts().reshape("blk.0.attn_norm.weight", (64,), GGMLType.BF16)


@breaks("TN304", "blk.1.ffn_conv_base")
def conv_base_of_bf16(shop: Workshop) -> Parts:
    return shop.parts().reshape("blk.1.ffn_conv_base", (64, 2, 2), GGMLType.BF16)


@breaks("TN305", "blk.0.attn_conv_base.weight")
def conv_base_with_weight(shop: Workshop) -> Parts:
    return shop.parts().rename_tensor("blk.0.attn_conv_base", "blk.0.attn_conv_base.weight")


@breaks("TN305", "selector.pred_codebook")
def codebook_of_a_fork(shop: Workshop) -> Parts:
    return shop.parts().rename_tensor("selector_predecessor.weight", "selector.pred_codebook")


@breaks("TN305", "candidate_selector.successor_codebook")
def codebook_of_the_checkpoint(shop: Workshop) -> Parts:
    return shop.parts().rename_tensor("selector_successor.weight", "candidate_selector.successor_codebook")


@breaks("TN305", "layers.1.self_attn.q_proj.weight")
def query_of_the_checkpoint(shop: Workshop) -> Parts:
    return shop.parts().rename_tensor("blk.1.attn_q.weight", "layers.1.self_attn.q_proj.weight")


def _data(shop: Workshop, parts: Parts) -> Case:
    return Case(shop.write(parts), {"data": True})


def _one_weight(shop: Workshop, name: str, weight: bytes) -> Case:
    raw = shop.good.tensors[name][2]
    return _data(shop, shop.parts().fill(name, raw[: -len(weight)] + weight))


@breaks("TN306", "blk.1.ffn_down.weight")
def last_weight_is_nan(shop: Workshop) -> Case:
    return _one_weight(shop, "blk.1.ffn_down.weight", b"\xc0\x7f")


@breaks("TN306", "output_norm.weight")
def last_weight_is_infinite(shop: Workshop) -> Case:
    return _one_weight(shop, "output_norm.weight", struct.pack("<f", float("-inf")))


@breaks("TN306", "fc.weight")
def scale_is_nan(shop: Workshop) -> Case:
    path = shop.folder() / "dflash-Tiny-Q8_0.gguf"
    convert(shop.draft, shop.target, ConvertOptions(types=("q8_0",), out=str(path)))
    parts = Parts.of(path)
    raw = parts.tensors["fc.weight"][2]
    path.write_bytes(parts.fill("fc.weight", raw[:-34] + b"\x00\x7e" + raw[-32:]).encode())
    return Case(path, {"data": True})


@breaks("TN306", "selector_hidden.weight")
def matrix_of_zeros(shop: Workshop) -> Case:
    raw = shop.good.tensors["selector_hidden.weight"][2]
    return _data(shop, shop.parts().fill("selector_hidden.weight", bytes(len(raw))))


@breaks("TN306", "blk.0.ffn_norm.weight", "warning")
def norm_of_one_value(shop: Workshop) -> Case:
    return _data(shop, shop.parts().fill("blk.0.ffn_norm.weight", struct.pack("<f", 1.5) * 64))


@breaks("TN306", "blk.0.ffn_norm.weight", "warning")
def norm_out_of_range(shop: Workshop) -> Case:
    raw = np.frombuffer(shop.good.tensors["blk.0.ffn_norm.weight"][2], np.float32)
    return _data(shop, shop.parts().fill("blk.0.ffn_norm.weight", (raw * np.float32(1e6)).tobytes()))


@breaks("TN307", "types", "note")
def types_of_somebodys_choice(shop: Workshop) -> Parts:
    return shop.parts().reshape("fc.weight", (192, 64), GGMLType.Q8_0)


# pair


@breaks("PR401", TOKENS)
def two_tokens_swapped(shop: Workshop) -> Case:
    tokens = shop.good.strings(TOKENS)
    tokens[300], tokens[301] = tokens[301], tokens[300]
    return Case(shop.write(shop.parts().set_strings(TOKENS, tokens)), {"target": shop.target})


@breaks("PR401", TOKENS)
def two_tokens_swapped_in_the_gguf_of_the_target(shop: Workshop) -> Case:
    path = target_gguf(shop.folder() / "Tiny-BF16.gguf")
    parts = Parts.of(path)
    tokens = parts.strings(TOKENS)
    tokens[300], tokens[301] = tokens[301], tokens[300]
    path.write_bytes(parts.set_strings(TOKENS, tokens).encode())
    return Case(shop.write(shop.parts()), {"target": path})


@breaks("PR401", TOKENS)
def target_with_another_vocabulary_size(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts()), {"target": shop.target_with(vocab_size=2080)})


@breaks("PR401", "tokenizer.ggml.pre")
def another_pre(shop: Workshop) -> Case:
    parts = shop.parts().set("tokenizer.ggml.pre", STR, "llama-bpe")
    return Case(shop.write(parts), {"target": shop.target})


@breaks("PR402", "fc.weight")
def target_with_another_hidden_size(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts()), {"target": shop.target_with(hidden_size=128)})


@breaks("PR402", LAYERS)
def target_with_fewer_layers(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts()), {"target": shop.target_with(num_hidden_layers=3)})


@breaks("PR402", LAYERS)
def gguf_of_a_target_with_fewer_layers(shop: Workshop) -> Case:
    target = target_gguf(shop.folder() / "Tiny-BF16.gguf", config={"num_hidden_layers": 3})
    return Case(shop.write(shop.parts()), {"target": target})


@breaks("PR402", LAYERS, "warning")
def tap_on_the_last_block(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts()), {"target": shop.target_with(num_hidden_layers=4)})


@breaks("PR403", "dflash.rope.dimension_sections")
def mrope_target(shop: Workshop) -> Case:
    rope = {"mrope_section": [6, 5, 5], "rope_type": "default", "rope_theta": 1e4}
    return Case(shop.write(shop.parts()), {"target": shop.target_with(rope_parameters=rope)})


@breaks("PR403", "dflash.rope.dimension_sections")
def gguf_of_an_mrope_target(shop: Workshop) -> Case:
    path = target_gguf(shop.folder() / "Tiny-BF16.gguf")
    parts = Parts.of(path).set_array("qwen3.rope.dimension_sections", I32, [6, 5, 5, 0])
    path.write_bytes(parts.encode())
    return Case(shop.write(shop.parts()), {"target": path})


@breaks("PR403", "dflash.rope.dimension_sections", "note")
def xdrope_target(shop: Workshop) -> Case:
    rope = {"mrope_section": [6, 5, 5], "rope_type": "dynamic", "rope_theta": 1e4}
    return Case(shop.write(shop.parts()), {"target": shop.target_with(rope_parameters=rope)})


@breaks("PR404", MASK)
def mask_token_beyond_the_embedding_of_the_target(shop: Workshop) -> Case:
    target = target_gguf(shop.folder() / "Tiny-BF16.gguf", embedding_rows=2016)
    return Case(shop.write(shop.parts()), {"target": target})


@breaks("PR405", LAYERS, "note")
def target_of_an_unknown_architecture(shop: Workshop) -> Case:
    target = shop.target_with(architectures=["StarmindForCausalLM"], model_type="starmind")
    return Case(shop.write(shop.parts()), {"target": target})


# source


@breaks("SR501", "dflash.rope.freq_base")
def another_rope_base(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts().set("dflash.rope.freq_base", F32, 1e6)), {"source": shop.draft})


@breaks("SR501", LAYERS)
def one_target_layer_off(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts().set_array(LAYERS, I32, [1, 2, 5])), {"source": shop.draft})


@breaks("SR501", "dflash.attention.causal")
def causal_left_out(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts().remove("dflash.attention.causal")), {"source": shop.draft})


@breaks("SR501", "dflash.logit_scale")
def a_scale_that_the_source_has_not(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts().set("dflash.logit_scale", F32, 2.0)), {"source": shop.draft})


@breaks("SR501", MASK)
def another_mask_token(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts().set(MASK, U32, 2031)), {"source": shop.draft})


@breaks("SR502", "blk.0.ffn_gate.weight")
def one_byte_flipped(shop: Workshop) -> Case:
    raw = bytearray(shop.good.tensors["blk.0.ffn_gate.weight"][2])
    raw[1000] ^= 0x10
    return Case(shop.write(shop.parts().fill("blk.0.ffn_gate.weight", bytes(raw))), {"source": shop.draft})


@breaks("SR502", "blk.1.attn_norm.weight")
def norm_with_one_added(shop: Workshop) -> Case:
    raw = np.frombuffer(shop.good.tensors["blk.1.attn_norm.weight"][2], np.float32) + np.float32(1)
    return Case(shop.write(shop.parts().fill("blk.1.attn_norm.weight", raw.tobytes())), {"source": shop.draft})


def quantized(shop: Workshop, recipe: str) -> Parts:
    """The good draft in another type."""
    path = shop.folder() / f"dflash-Tiny-{recipe.upper()}.gguf"
    convert(shop.draft, shop.target, ConvertOptions(types=(recipe,), out=str(path)))
    return Parts.of(path)


@breaks("SR502", "blk.0.ffn_up.weight")
def one_byte_flipped_in_q8_0(shop: Workshop) -> Case:
    parts = quantized(shop, "q8_0")
    raw = bytearray(parts.tensors["blk.0.ffn_up.weight"][2])
    raw[40] ^= 1  # the least that can be: one weight by one step
    parts.fill("blk.0.ffn_up.weight", bytes(raw))
    return Case(shop.write(parts, "dflash-Tiny-Q8_0.gguf"), {"source": shop.draft})


@breaks("SR503", "general.source.spec_sha256", "warning")
def hash_of_an_older_config(shop: Workshop) -> Case:
    parts = shop.parts().set("general.source.spec_sha256", STR, "0" * 64)
    return Case(shop.write(parts), {"source": shop.draft})


# naming and card


@breaks("NM601", "file name", "warning")
def name_that_is_not_found(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts(), "Tiny-DFlash-BF16.gguf"))


@breaks("NM601", "file name", "warning")
def name_in_capitals(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts(), "DFlash-Tiny-BF16.gguf"))


@breaks("NM601", "file name", "warning")
def name_without_type(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts(), "dflash-Tiny-latest.gguf"))


@breaks("NM601", "file name", "warning")
def name_of_another_type(shop: Workshop) -> Case:
    return Case(shop.write(shop.parts(), "dflash-Tiny-Q4_K_M.gguf"))


def _card(shop: Workshop, text: str, parts: Parts | None = None) -> Case:
    path = shop.write(parts or shop.parts())
    (path.parent / "README.md").write_text(text)
    return Case(path)


@breaks("NM602", "README.md", "warning")
def card_with_another_license(shop: Workshop) -> Case:
    return _card(shop, "---\nlicense: apache-2.0\n---\n", shop.parts().set("general.license", STR, "mit"))


@breaks("NM602", "README.md", "warning")
def card_with_another_base_model(shop: Workshop) -> Case:
    return _card(shop, "---\nbase_model: org/Another-27B\n---\n")


@breaks("NM602", "README.md", "warning")
def card_with_another_size(shop: Workshop) -> Case:
    return _card(shop, f"| {NAME} | 2,352,022,432 B |\n")


@breaks("NM602", "README.md", "warning")
def card_with_another_size_in_megabytes(shop: Workshop) -> Case:
    return _card(shop, f"| {NAME} | BF16 | 77.5 MB |\n")


@breaks("NM602", "README.md", "warning")
def card_with_another_tensor_count(shop: Workshop) -> Case:
    return _card(shop, "The file holds 81 tensors.\n")


@breaks("NM602", "README.md", "warning")
def card_with_another_block_size(shop: Workshop) -> Case:
    return _card(shop, "`block_size`: 16, so n_max is 15\n")
