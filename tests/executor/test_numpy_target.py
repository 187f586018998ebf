"""The numpy target: a model written down as loops, both of its file formats, and bits that do not depend on company."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import MINI_TOKENIZER, safetensors_bytes, write_target

from dflash_gguf.errors import FormatError, ModelError
from dflash_gguf.executor.loading import TargetWeights, numpy_target, open_target, stop_tokens, vocabulary_of
from dflash_gguf.executor.numpy_target import NumpyTarget
from dflash_gguf.executor.ops import F32
from dflash_gguf.executor.text_tokenizer import tokenizer_of_folder, tokenizer_of_gguf
from dflash_gguf.executor.weights import Budget
from dflash_gguf.formats.gguf.emit import OutTensor, encode_header
from dflash_gguf.formats.gguf.types import GGMLType, ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.model.tokenizer import load_tokenizer

VOCAB, HIDDEN, FFN, HEADS, KV, DIMS, LAYERS = 2048, 32, 48, 4, 2, 8, 3
SPEC = DraftSpec(1, 512, HIDDEN, FFN, HEADS, KV, DIMS, 1e-6, 1e4, 4, (1, 3), 2030, VOCAB)
IDS = [5, 900, 17, 17, 2000, 3, 64, 1, 1999]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}


def config(kind: str, **changes: Any) -> dict[str, Any]:
    values = {
        "architectures": [
            {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[kind]
        ],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": DIMS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "eos_token_id": 2002,
        "vocab_size": VOCAB,
    }
    return {key: value for key, value in {**values, **changes}.items() if value is not None}


def weights(kind: str) -> dict[str, F32]:
    """Random weights under the checkpoint's names."""
    rng = np.random.default_rng(4)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCAB, HIDDEN), "norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        for name, shape in {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * DIMS, HIDDEN),
            "self_attn.k_proj": (KV * DIMS, HIDDEN),
            "self_attn.v_proj": (KV * DIMS, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * DIMS),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (FFN, HIDDEN),
            "mlp.up_proj": (FFN, HIDDEN),
            "mlp.down_proj": (HIDDEN, FFN),
        }.items():
            shapes[f"{at}{name}.weight"] = shape
        if kind == "qwen3":
            shapes |= {f"{at}self_attn.{x}_norm.weight": (DIMS,) for x in "qk"}
        if kind == "qwen2":
            shapes |= {f"{at}self_attn.{x}_proj.bias": ((HEADS if x == "q" else KV) * DIMS,) for x in "qkv"}
    made = {f"model.{n}": rng.standard_normal(s, dtype=np.float32) * np.float32(0.3) for n, s in shapes.items()}
    if kind != "qwen3":
        made["lm_head.weight"] = rng.standard_normal((VOCAB, HIDDEN), dtype=np.float32)
    return made


def write_folder(folder: Path, kind: str, **changes: Any) -> Path:
    write_target(folder, config(kind, **changes))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights(kind), "F32"))
    return folder


def opened(path: Path, files: ExitStack) -> NumpyTarget:
    return numpy_target(open_target(path, Budget(1 << 30), files, row_by_row=True), SPEC)


def by_the_book(kind: str, ids: list[int], inv_freq: F32) -> tuple[F32, F32]:
    """Logits and tapped features, position by position, as HF's modeling files put it."""
    w = weights(kind)

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name]

    def turn(x: Any, position: int) -> Any:
        angle = position * inv_freq.astype(np.float64)
        half = DIMS // 2
        a, b = x[..., :half], x[..., half:]
        return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), -1)

    def project(x: Any, at: str, which: str) -> Any:
        y = w[f"{at}self_attn.{which}_proj.weight"].astype(np.float64) @ x
        y = y + w.get(f"{at}self_attn.{which}_proj.bias", 0.0)
        y = y.reshape(-1, DIMS)
        name = f"{at}self_attn.{which}_norm.weight"
        return norm(y, name) if name in w else y

    states = w["model.embed_tokens.weight"][ids].astype(np.float64)
    inputs = [states]
    for layer in range(LAYERS):
        at, keys, values, out = f"model.layers.{layer}.", [], [], []
        for position, x in enumerate(states):
            y = norm(x, f"{at}input_layernorm.weight")
            q = turn(project(y, at, "q"), position)
            keys.append(turn(project(y, at, "k"), position))
            values.append(project(y, at, "v"))
            heads = []
            for h in range(HEADS):
                scores = np.array([math.exp(q[h] @ k[h // 2] / math.sqrt(DIMS)) for k in keys])
                heads.append(sum(s * v[h // 2] for s, v in zip(scores / scores.sum(), values, strict=True)))
            mixed = x + w[f"{at}self_attn.o_proj.weight"] @ np.concatenate(heads)
            y = norm(mixed, f"{at}post_attention_layernorm.weight")
            gate = w[f"{at}mlp.gate_proj.weight"] @ y
            up = w[f"{at}mlp.up_proj.weight"] @ y
            out.append(mixed + w[f"{at}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up))
        states = np.array(out)
        inputs.append(states)
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    logits = norm(states, "model.norm.weight") @ head.T
    return logits.astype(np.float32), np.concatenate([inputs[1], inputs[3]], -1).astype(np.float32)


def plain_freq() -> F32:
    return (10000.0 ** (-np.arange(0, DIMS, 2) / DIMS)).astype(np.float32)


def llama3_freq() -> F32:
    """Llama 3.1's rule, wavelength by wavelength."""
    result = []
    for f in plain_freq():
        wavelength = 2 * math.pi / f
        if wavelength < 64 / 4.0:
            result.append(f)
        elif wavelength > 64 / 1.0:
            result.append(f / 8)
        else:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            result.append((1 - smooth) * f / 8 + smooth * f)
    return np.array(result, np.float32)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2"])
def test_the_target_by_the_book(kind: str, tmp_path: Path) -> None:
    rope = {"rope_scaling": LLAMA3} if kind == "llama" else {}
    with ExitStack() as files:
        target = opened(write_folder(tmp_path / "t", kind, **rope), files)
        logits, features = target.extend(IDS, predict=len(IDS))
    expected, taps = by_the_book(kind, IDS, llama3_freq() if rope else plain_freq())
    assert logits == pytest.approx(expected, abs=2e-5 * float(np.abs(expected).max()))
    assert features == pytest.approx(taps, abs=2e-5 * float(np.abs(taps).max()))


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_token_alone_and_in_a_block_have_the_same_bits(kind: str, tmp_path: Path) -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, VOCAB, 40)]
    with ExitStack() as files:
        target = opened(write_folder(tmp_path / "t", kind), files)
        together, features = target.extend(ids, predict=len(ids))
        target.crop(0)
        alone = [target.extend([token], predict=1) for token in ids]
        assert (np.concatenate([logits for logits, _ in alone]) == together).all()
        assert (np.concatenate([rows for _, rows in alone]) == features).all()
        target.crop(20)
        again, _ = target.extend(ids[20:33], predict=13)
    assert (again == together[20:33]).all()


def write_gguf(path: Path, kind: str) -> Path:
    """The same weights as llama.cpp's converter writes them: for Llama, q and k rows with each pair side by side."""
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    tensors = {}
    for name, values in weights(kind).items():
        parts = name.removeprefix("model.").split(".")
        if parts[0] == "layers":
            what = ".".join(parts[2:-1])
            if kind == "llama" and what in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = HEADS if what == "self_attn.q_proj" else KV
                pairs = values.reshape(heads, 2, DIMS // 2, HIDDEN).swapaxes(1, 2).reshape(values.shape)
            else:
                pairs = values
            tensors[f"blk.{parts[1]}.{names[what]}.{parts[-1]}"] = pairs
        else:
            ours = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[parts[0]]
            tensors[f"{ours}.weight"] = values
    if kind == "llama":
        tensors["rope_freqs.weight"] = plain_freq() / llama3_freq()
    sizes = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV,
        "attention.key_length": DIMS,
    }
    folder = write_target(path.parent / "tokenizer", config("qwen3"))
    tokenizer = load_tokenizer(folder, vocab_size=VOCAB, mask_token_id=2030)
    metadata = [
        ("general.architecture", MetaValue(ValueType.STRING, kind)),
        *((f"{kind}.{key}", MetaValue(ValueType.UINT32, value)) for key, value in sizes.items()),
        (f"{kind}.attention.layer_norm_rms_epsilon", MetaValue(ValueType.FLOAT32, 1e-5)),
        (f"{kind}.rope.freq_base", MetaValue(ValueType.FLOAT32, 1e4)),
        *tokenizer.key_values,
    ]
    header = encode_header(metadata, [OutTensor(n, GGMLType.F32, v.shape[::-1]) for n, v in tensors.items()])
    with path.open("wb") as file:
        file.write(header.data)
        for values, offset in zip(tensors.values(), header.offsets, strict=True):
            file.seek(offset)
            file.write(np.ascontiguousarray(values, np.float32).tobytes())
        file.truncate(header.file_size)
    return path


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2"])
def test_folder_and_gguf_are_the_same_model(kind: str, tmp_path: Path) -> None:
    rope = {"rope_scaling": LLAMA3} if kind == "llama" else {}
    with ExitStack() as files:
        folder = opened(write_folder(tmp_path / "t", kind, **rope), files).extend(IDS, predict=len(IDS))
        gguf = opened(write_gguf(tmp_path / "t.gguf", kind), files).extend(IDS, predict=len(IDS))
    assert gguf[0] == pytest.approx(folder[0], abs=1e-5 * float(np.abs(folder[0]).max()))
    assert gguf[1] == pytest.approx(folder[1], abs=1e-5 * float(np.abs(folder[1]).max()))


TEXTS = ["Hello world, it's 1234 o'clock!\n\n  Two  spaces", "naïve 東京 🙂", "<|im_start|>user\nhi<|im_end|>", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_of_a_gguf_is_the_folders(text: str, tmp_path: Path) -> None:
    with ExitStack() as files:
        target = open_target(write_gguf(tmp_path / "t.gguf", "qwen3"), Budget(1 << 30), files, row_by_row=True)
    assert target.metadata is not None
    ours, theirs = tokenizer_of_gguf(target.metadata, "t.gguf"), tokenizer_of_folder(MINI_TOKENIZER)
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids) == text


def test_bos_goes_in_front_where_the_file_says_so(tmp_path: Path) -> None:
    with ExitStack() as files:
        target = open_target(write_gguf(tmp_path / "t.gguf", "qwen3"), Budget(1 << 30), files, row_by_row=True)
    metadata = dict(target.metadata or {})
    metadata["tokenizer.ggml.add_bos_token"] = MetaValue(ValueType.BOOL, True)
    metadata["tokenizer.ggml.bos_token_id"] = MetaValue(ValueType.UINT32, 2000)
    assert tokenizer_of_gguf(metadata, "t.gguf").encode("a")[0] == 2000
    metadata["tokenizer.ggml.pre"] = MetaValue(ValueType.STRING, "unheard-of")
    with pytest.raises(ModelError, match=r"pre 'unheard-of' cannot be rebuilt.*--tokenizer"):
        tokenizer_of_gguf(metadata, "t.gguf")


def test_a_broken_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        tokenizer_of_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="cannot be read"):
        tokenizer_of_folder(tmp_path)


def test_where_a_target_stops(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", "qwen3")
    with ExitStack() as files:
        assert stop_tokens(open_target(folder, Budget(1 << 30), files, row_by_row=True)) == {2002}
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
        assert stop_tokens(open_target(folder, Budget(1 << 30), files, row_by_row=True)) == {7, 8}
        gguf = open_target(write_gguf(tmp_path / "t.gguf", "qwen3"), Budget(1 << 30), files, row_by_row=True)
        assert 2002 in stop_tokens(gguf)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM is not computed here"),
    ({"hidden_act": "gelu"}, "is not computed here"),
    ({"use_sliding_window": True, "sliding_window": 8}, "sliding windows"),
    ({"partial_rotary_factor": 0.5}, "partial rotary"),
    ({"num_attention_heads": None}, "num_attention_heads is None"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope' is not implemented"),
    ({"num_hidden_layers": 2}, "the draft taps block inputs"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", "qwen3", **changes)
    if changes.get("num_hidden_layers"):
        keep = {n: v for n, v in weights("qwen3").items() if "layers.2" not in n}
        (folder / "model.safetensors").write_bytes(safetensors_bytes(keep, "F32"))
    with ExitStack() as files, pytest.raises(ModelError, match=message):
        opened(folder, files)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", "qwen3")
    extra = weights("qwen3") | {"model.layers.0.mlp.router.weight": np.ones((4, HIDDEN), np.float32)}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(extra, "F32"))
    with ExitStack() as files, pytest.raises(ModelError, match=r"mlp\.router\.weight has no place in a dense model"):
        opened(folder, files)


def test_another_width_is_another_target(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "t", "qwen3")
    wider = weights("qwen3") | {"model.embed_tokens.weight": np.ones((VOCAB, HIDDEN * 2), np.float32)}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(wider, "F32"))
    with ExitStack() as files, pytest.raises(ModelError, match=r"shape \[2048, 64\], the draft needs \[2048, 32\]"):
        vocabulary_of(open_target(folder, Budget(1 << 30), files, row_by_row=False), SPEC)


def test_only_embedding_and_head_are_read_for_a_block(tmp_path: Path) -> None:
    """A target that cannot be computed still lends its vocabulary, and a foreign dtype elsewhere does not matter."""
    folder = tmp_path / "t"
    write_target(folder, config("qwen3", architectures=["SomethingElse"]))
    held = {"model.language_model.embed_tokens.weight": weights("qwen3")["model.embed_tokens.weight"]}
    held["visual.patch.weight"] = np.ones((2, 2), np.float32)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(held, "F32"))
    with ExitStack() as files:
        target: TargetWeights = open_target(folder, Budget(1 << 30), files, row_by_row=False)
        shared = vocabulary_of(target, SPEC)
        rows = shared.embed(np.array([3, 4]))
        assert (rows == held["model.language_model.embed_tokens.weight"][3:5]).all()
        assert shared.head(rows).shape == (2, VOCAB)
        assert target.weights.used == {"token_embd.weight"}
