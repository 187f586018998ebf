"""Opening a draft GGUF and its target (a checkpoint folder or a GGUF), with everything checked before it is used."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import ModelError
from dflash_gguf.executor.numpy_target import NumpyTarget, TargetSpec, TargetVocabulary
from dflash_gguf.executor.rope import linear, llama3, plain, scaled_rope, with_factors
from dflash_gguf.executor.tensor_rows import CheckpointTensors, GGUFTensors
from dflash_gguf.executor.weights import Budget, Weights
from dflash_gguf.formats.gguf.scan import scan_header
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.model.checkpoint import Checkpoint, read_config, read_json
from dflash_gguf.model.config import text_config
from dflash_gguf.model.draft_header import require_spec
from dflash_gguf.model.remote import draft_config_folder, open_gguf, vocabulary_tensors
from dflash_gguf.model.spec import RopeScaling
from dflash_gguf.model.target import require_target, target_config
from dflash_gguf.model.tensors import draft_tensors
from dflash_gguf.storage.files import LocalFile
from dflash_gguf.storage.hub import Hub, parse_reference
from dflash_gguf.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dflash_gguf.executor.rope import Rope
    from dflash_gguf.formats.gguf.scan import Header
    from dflash_gguf.formats.gguf.values import Metadata
    from dflash_gguf.model.spec import DraftSpec

#: HF architectures and GGUF architectures that NumpyTarget computes: norm, attention, norm, SwiGLU and nothing else
HF_DENSE = {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"}
GGUF_DENSE = {"qwen3", "qwen2", "llama"}
_KNOWN = "the numpy target computes dense Qwen3- and Llama-like models; `draft --features` works with any target"

#: a checkpoint's names behind `layers.N.` → ours behind `blk.N.`
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")


#: tensors that llama.cpp takes from a draft and the executor does not
_NOT_COMPUTED = {
    r"d2t": "a draft with a reduced vocabulary",
    r"rope_freqs\.weight": "a draft with rope factors of its own",
    r"fc\.scale|blk\.\d+\.layer_output_scale\.weight": "a draft with scales behind its matrices",
    r"blk\.\d+\.(post_attention|post_ffw)_norm\.weight": "a draft with norms behind its layers",
}


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """A target's tensors under our names, and what its config or header says."""

    path: Path
    weights: Weights
    config: Mapping[str, Any] | None = None
    metadata: Metadata | None = None


def open_draft(path: Path, budget: Budget, files: ExitStack) -> tuple[DraftSpec, Weights]:
    """The draft in a GGUF; `files` closes it.

    Raises FormatError for a broken file, ModelError when metadata and tensors are not those of a DFlash draft:
    every tensor has to be in the table of model/tensors.py, with its shape.
    """
    file = files.enter_context(LocalFile(path))
    header = scan_header(file)
    header.require_sound(file.name)
    spec = require_spec(header.metadata, file.name)
    require_usable(spec, file.name)
    _require_planned(spec, header, file.name)
    return spec, Weights(GGUFTensors(file, header.tensors), budget)


def require_usable(spec: DraftSpec, where: str) -> None:
    """What would otherwise divide by zero, or draft nothing."""
    sizes = (spec.block_count, spec.embedding_length, spec.head_count, spec.head_count_kv, spec.key_length)
    v2 = spec.v2
    faults = {
        "a size of 0 in its metadata": min(sizes) < 1
        or (v2 is not None and min(v2.conv_group_size, v2.selector_top_k) < 1),
        f"block_size {spec.block_size}: a block is an anchor and at least one slot": spec.block_size < 2,
        "no target_layers": not spec.target_layers,
        "head_count is no multiple of head_count_kv": spec.head_count % max(spec.head_count_kv, 1) != 0,
        "the rotary dims are odd or more than key_length": not 0
        < (spec.rope_dimension_count or spec.key_length)
        <= spec.key_length
        or (spec.rope_dimension_count or spec.key_length) % 2 == 1,
        "sliding_window and its pattern do not go together": (spec.sliding_window is None)
        != (spec.sliding_window_pattern is None)
        or len(spec.sliding_window_pattern or (True,) * spec.block_count) != spec.block_count,
        f"mask_token_id {spec.mask_token_id} of {spec.vocab_size} tokens": spec.mask_token_id >= spec.vocab_size,
        "selector_top_k is larger than the vocabulary": v2 is not None and v2.selector_top_k > spec.vocab_size,
    }
    for fault, present in faults.items():
        if present:
            raise ModelError(fault, where=where, hint="`dflash-gguf check` says more")


def not_computed(tensor: str, where: str) -> ModelError | None:
    """The error for a tensor that makes a draft one that llama.cpp runs and the executor does not, else None."""
    what = next((told for pattern, told in _NOT_COMPUTED.items() if re.fullmatch(pattern, tensor)), None)
    if what is None:
        return None
    hint = "`dflash-gguf bench` runs its GGUF in the real engine; `check` and `diff` judge it"
    return ModelError(f"{what} is not computed by the numpy executor", where=f"{where}: {tensor}", hint=hint)


def _require_planned(spec: DraftSpec, header: Header, where: str) -> None:
    table = {tensor.gguf_name: tensor for tensor in draft_tensors(spec)}
    unknown = sorted(header.tensors.keys() - table.keys())
    for name in unknown:
        if error := not_computed(name, where):
            raise error
    missing = [name for name, t in table.items() if not t.optional and name not in header.tensors]
    for what, names in (("unknown", unknown), ("missing", missing)):
        if names:
            told = ", ".join(names[:10])
            raise ModelError(
                f"{counted(len(names), 'tensor')} {what}: {told}", where=where, hint="`dflash-gguf check` says more"
            )
    for name, info in header.tensors.items():
        if info.shape != table[name].ne:
            raise ModelError(
                f"ne is {list(info.shape)}, the metadata asks for {list(table[name].ne)}", where=f"{where}: {name}"
            )


def open_target(path: Path, budget: Budget, files: ExitStack, *, row_by_row: bool) -> TargetWeights:
    """The target's tensors, from a checkpoint folder or a GGUF; nothing is read but headers."""
    if path.is_dir():
        config = text_config(target_config(path))
        checkpoint = files.enter_context(Checkpoint(path))
        names = _our_names(list(checkpoint.tensors), str(path))
        source = CheckpointTensors(str(path), checkpoint.tensors, names)
        return TargetWeights(path, Weights(source, budget, row_by_row=row_by_row), config=config)
    file = files.enter_context(LocalFile(path))
    header = scan_header(file)
    header.require_sound(file.name)
    require_target(header, file.name)
    tensors = Weights(GGUFTensors(file, header.tensors), budget, row_by_row=row_by_row)
    return TargetWeights(path, tensors, metadata=header.metadata)


def open_vocabulary(target: str, budget: Budget, files: ExitStack) -> TargetWeights:
    """A target's embedding and head alone; of a repository on the Hub no other weights are fetched."""
    ref = parse_reference(target)
    if ref is None:
        return open_target(Path(target), budget, files, row_by_row=False)
    if ref.path.endswith(".gguf"):
        file = open_gguf(target, Hub())
        files.enter_context(file)
        header = scan_header(file)
        header.require_sound(file.name)
        require_target(header, file.name)
        return TargetWeights(Path(target), Weights(GGUFTensors(file, header.tensors), budget), metadata=header.metadata)
    hub = Hub()
    target_config(draft_config_folder(target, hub), target)
    tensors = vocabulary_tensors(target, hub)
    source = CheckpointTensors(target, tensors, _our_names(list(tensors), target))
    return TargetWeights(Path(target), Weights(source, budget, row_by_row=False), config={})


def vocabulary_of(opened: TargetWeights, spec: DraftSpec) -> TargetVocabulary:
    """The embedding and head that `spec`'s draft shares; raises ModelError when their shape is another."""
    weights = opened.weights
    for name in ("token_embd.weight", "output.weight"):
        if name in weights or name == "token_embd.weight":
            _require_shared_shape(weights.shape(name), spec, f"{opened.path}: {name}")
    return TargetVocabulary(weights)


def numpy_target(opened: TargetWeights, spec: DraftSpec) -> NumpyTarget:
    """The whole target with the draft's taps; raises ModelError for an architecture that is not computed here."""
    vocabulary_of(opened, spec)
    target = _spec_of_folder(opened) if opened.config is not None else _spec_of_gguf(opened)
    _require_blocks(target, opened)
    return NumpyTarget(target, opened.weights, spec.target_layers)


def _require_shared_shape(shape: tuple[int, ...], spec: DraftSpec, where: str) -> None:
    rows, width = shape if len(shape) == 2 else (0, 0)
    if width != spec.embedding_length or rows < spec.vocab_size:
        raise ModelError(
            f"shape {list(shape)}, the draft needs [{spec.vocab_size}, {spec.embedding_length}]",
            where=where,
            hint="is this the target the draft was made for?",
        )


def _require_blocks(spec: TargetSpec, opened: TargetWeights) -> None:
    """A target whose tensors are more than those of a dense block would be computed wrongly, not refused."""
    plain_names = set(_LAYER_NAMES.values())
    known = {
        f"blk.{i}.{name}.{kind}" for i in range(spec.block_count) for name in plain_names for kind in ("weight", "bias")
    }
    known |= {"token_embd.weight", "output.weight", "output_norm.weight", "rope_freqs.weight"}
    unknown = sorted(opened.weights.source.shapes.keys() - known)
    if unknown:
        raise ModelError(f"tensor {unknown[0]} has no place in a dense model", where=str(opened.path), hint=_KNOWN)


def _our_names(theirs: list[str], where: str) -> dict[str, str]:
    """Our name → the checkpoint's, for the language model of a checkpoint (others' tensors are left out)."""
    ends = [name for name in theirs if name.endswith("embed_tokens.weight")]
    if len(ends) != 1:
        told = counted(len(ends), "tensor", "ends", "end")
        raise ModelError(f"{told} in embed_tokens.weight, expected one", where=where)
    prefix = ends[0].removesuffix("embed_tokens.weight")
    names = {"token_embd.weight": ends[0]}
    for name in theirs:
        if name.endswith("lm_head.weight"):
            names["output.weight"] = name
        elif name == f"{prefix}norm.weight":
            names["output_norm.weight"] = name
        elif name.startswith(prefix) and (match := _LAYER.fullmatch(name.removeprefix(prefix))):
            layer, what, kind = match.groups()
            names[f"blk.{layer}.{_LAYER_NAMES.get(what, what)}.{kind}"] = name
    return names


def _spec_of_folder(opened: TargetWeights) -> TargetSpec:
    config = opened.config or {}
    architecture = (read_config(opened.path).get("architectures") or ["none"])[0]
    where = f"{opened.path}/config.json"
    if architecture not in HF_DENSE or config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{architecture} is not computed here", where=where, hint=_KNOWN)
    if config.get("use_sliding_window") or (architecture.startswith("Mistral") and config.get("sliding_window")):
        raise ModelError("a target with sliding windows is not computed here", where=where, hint=_KNOWN)
    heads = int(_needed(config, "num_attention_heads", where))
    dims = config.get("head_dim") or int(_needed(config, "hidden_size", where)) // heads
    return TargetSpec(
        block_count=int(_needed(config, "num_hidden_layers", where)),
        embedding_length=int(_needed(config, "hidden_size", where)),
        head_count=heads,
        head_count_kv=int(config.get("num_key_value_heads") or heads),
        key_length=int(dims),
        layer_norm_rms_epsilon=float(_needed(config, "rms_norm_eps", where)),
        rope=_rope_of_config(config, int(dims), where),
    )


def _needed(config: Mapping[str, Any], key: str, where: str) -> Any:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ModelError(f"{key} is {value!r}, expected a positive number", where=where)
    return value


def _rope_of_config(config: Mapping[str, Any], dims: int, where: str) -> Rope:
    """The config's `rope_parameters`, or the older rope_theta and rope_scaling."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1)) != 1:
        raise ModelError("a target with partial rotary is not computed here", where=where, hint=_KNOWN)
    if kind == "default":
        return plain(base, dims)
    if kind == "llama3":
        values = [float(_needed(rope, key, where)) for key in _LLAMA3_KEYS]
        return llama3(base, dims, *values)
    scaling = RopeScaling(
        type=str(kind),
        factor=float(_needed(rope, "factor", where)),
        original_context_length=rope.get("original_max_position_embeddings"),
        yarn_beta_fast=rope.get("beta_fast"),
        yarn_beta_slow=rope.get("beta_slow"),
        yarn_attn_factor=None,
    )
    return scaled_rope(base, dims, scaling, int(_needed(config, "max_position_embeddings", where)))


_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _spec_of_gguf(opened: TargetWeights) -> TargetSpec:
    metadata, where = opened.metadata or {}, str(opened.path)
    architecture = metadata["general.architecture"].value if "general.architecture" in metadata else None
    if architecture not in GGUF_DENSE:
        raise ModelError(f"architecture {architecture!r} is not computed here", where=where, hint=_KNOWN)
    values = {
        key.removeprefix(f"{architecture}."): value.value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.") and not isinstance(value.value, Array)
    }
    if values.get("attention.sliding_window"):
        raise ModelError("a target with sliding windows is not computed here", where=where, hint=_KNOWN)
    heads = int(_needed(values, "attention.head_count", where))
    hidden = int(_needed(values, "embedding_length", where))
    dims = int(values.get("attention.key_length") or hidden // heads)
    return TargetSpec(
        block_count=int(_needed(values, "block_count", where)),
        embedding_length=hidden,
        head_count=heads,
        head_count_kv=int(values.get("attention.head_count_kv") or heads),
        key_length=dims,
        layer_norm_rms_epsilon=float(_needed(values, "attention.layer_norm_rms_epsilon", where)),
        rope=_rope_of_gguf(values, dims, opened),
        paired=architecture == "llama",
    )


def _rope_of_gguf(values: Mapping[str, Any], dims: int, opened: TargetWeights) -> Rope:
    base = float(values.get("rope.freq_base") or 10000.0)
    if values.get("rope.dimension_count", dims) != dims:
        raise ModelError("a target with partial rotary is not computed here", where=str(opened.path), hint=_KNOWN)
    if "rope_freqs.weight" in opened.weights:
        return with_factors(plain(base, dims), opened.weights.vector("rope_freqs.weight"))
    kind = values.get("rope.scaling.type")
    if kind in (None, "none"):
        return plain(base, dims)
    if kind == "linear":
        return linear(plain(base, dims), float(_needed(values, "rope.scaling.factor", str(opened.path))))
    scaling = RopeScaling(
        type=str(kind),
        factor=float(_needed(values, "rope.scaling.factor", str(opened.path))),
        original_context_length=values.get("rope.scaling.original_context_length"),
        yarn_beta_fast=values.get("rope.scaling.yarn_beta_fast"),
        yarn_beta_slow=values.get("rope.scaling.yarn_beta_slow"),
        yarn_attn_factor=values.get("rope.scaling.attn_factor"),
    )
    return scaled_rope(base, dims, scaling, int(_needed(values, "context_length", str(opened.path))))


def stop_tokens(opened: TargetWeights) -> frozenset[int]:
    """The ids at which the target ends a text: generation_config.json, config.json, or the GGUF's eos, eot and eom."""
    if opened.config is not None:
        generation = opened.path / "generation_config.json"
        found = read_json(generation).get("eos_token_id") if generation.is_file() else None
        found = opened.config.get("eos_token_id") if found is None else found
        ids = found if isinstance(found, list) else [found]
    else:
        keys = (f"tokenizer.ggml.{word}_token_id" for word in ("eos", "eot", "eom"))
        ids = [value.value for key in keys if (value := (opened.metadata or {}).get(key))]
    return frozenset(token for token in ids if isinstance(token, int))
