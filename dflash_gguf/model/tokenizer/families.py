"""Special tokens that a family of targets names by text, whatever its JSON files say.

Source: the tokenizer rules of llama.cpp's converter for each architecture. A rule never replaces an id that
the JSON files gave.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_gguf.errors import ModelError

if TYPE_CHECKING:
    from dflash_gguf.model.tokenizer.files import TokenizerFiles


@dataclass(frozen=True, slots=True)
class _Rule:
    """`tokens` (word, text) of the architectures that `pattern` matches whole."""

    pattern: str
    tokens: tuple[tuple[str, str], ...]


_END = "<|endoftext|>"
_RULES = (
    _Rule(r"chatglm.*|glmforcausallm|glm", (("eos", _END), ("eot", "<|user|>"), ("unk", _END))),
    _Rule(r"qwenlmheadmodel", (("bos", _END), ("eos", _END), ("unk", _END))),
    _Rule(r"dots3note.*", (("eot", "<|endofassistant|>"),)),
    _Rule(
        r"glm4forcausallm|glm4vforconditionalgeneration|glmocr.*|glm4v?",
        (("eos", _END), ("eot", "<|user|>"), ("unk", _END), ("bos", _END)),
    ),
    # GLM-4.5 and later: <|endoftext|> as eot would never end a turn
    _Rule(
        r"glm.*",
        (("bos", "[gMASK]"), ("eot", "<|user|>"), ("unk", _END), ("eom", "<|observation|>")),
    ),
)

#: Architectures that llama.cpp converts as Llama's.
_LLAMA = re.compile(
    r"llamaforcausallm|mistralforcausallm|mixtralforcausallm|vllama3forcausallm|llavaforconditionalgeneration"
    r"|voxtralforconditionalgeneration|iquestcoderforcausallm|llamamodel|smollm3forcausallm|arceeforcausallm"
    r"|llamabidirectionalmodel|apertusforcausallm|afmoeforcausallm|cogvlmforcausallm|granite(moe)?(swa)?forcausallm"
    r"|granite(moeshared|switch)forcausallm|janusforconditionalgeneration|nanbeigeforcausallm"
    r"|sarashina2visionforcausallm|mistral3forconditionalgeneration|ministral3forcausallm"
)

#: Ids that a family writes after all other keys, whatever the JSON files say: architecture, rows (None: any), ids.
_LATE_IDS: tuple[tuple[str, int | None, dict[str, int]], ...] = (
    ("gemmaforcausallm", None, {"eot": 107}),
    ("nemotronforcausallm", None, {"pad": 0, "unk": 1}),
    (_LLAMA.pattern, 32016, {"eot": 32010}),  # CodeLlama
)

#: Tokens of Gemma 4 that are always shown: the chat parser reads them.
VISIBLE_GEMMA4 = frozenset(
    {b"<|channel>", b"<channel|>", b"<|tool_call>", b"<tool_call|>", b"<|tool_response>", b"<tool_response|>", b'<|"|>'}
)


def special_texts(target: TokenizerFiles, added: dict[str, int]) -> dict[str, int]:
    """Special ids of the target's family by token text; empty for most.

    Raises ModelError when the vocabulary lacks a token that the family must have.
    """
    rule = next((rule for rule in _RULES if re.fullmatch(rule.pattern, target.architecture)), None)
    if rule is None:
        return {}
    missing = next((text for _, text in rule.tokens if text not in added), None)
    if missing is not None:
        raise ModelError(
            f"a {target.architecture} target needs the added token {missing}",
            where=target.tokenizer_path,
            hint="is this the target's own tokenizer.json?",
        )
    return {word: added[text] for word, text in rule.tokens}


def late_ids(target: TokenizerFiles, added: dict[str, int], rows: int) -> dict[str, int]:
    """Special ids that the family writes after all other keys, over any that stand there already."""
    architecture = target.architecture
    ids: dict[str, int] = {}
    for pattern, count, found in _LATE_IDS:
        if re.fullmatch(pattern, architecture) and count in (None, rows):
            ids |= {word: token_id for word, token_id in found.items() if token_id < rows}
    if architecture.startswith("museglimmer") and "<|eot|>" in added:
        ids["eot"] = added["<|eot|>"]
    if architecture.startswith("kimilinear") and not target.tokenizer:  # its config names the end of a turn instead
        eos = (target.settings or {}).get("eos_token") or "[EOS]"
        ids |= {"eos": added[eos]} if isinstance(eos, str) and eos in added else {}
    return ids


def is_llama(target: TokenizerFiles) -> bool:
    """Whether llama.cpp converts the target as a Llama: a vocabulary with byte fallback keeps SentencePiece's rules."""
    return _LLAMA.fullmatch(target.architecture) is not None


def space_prefix(target: TokenizerFiles) -> bool | None:
    """`add_prefix_space` of tokenizer_config.json where the family writes it."""
    value = (target.settings or {}).get("add_prefix_space")
    return value if isinstance(value, bool) and is_llama(target) else None


def late_flags(target: TokenizerFiles, rows: int) -> dict[str, bool]:
    """`add_…` flags that the family writes after all other keys."""
    if target.architecture.startswith("gemma4"):
        return {"add_space_prefix": False, "add_bos_token": True}
    if target.architecture.startswith("gemma"):
        return {"add_space_prefix": False}
    # small Granite and SmolLM models, which are trained without a bos
    return {"add_bos_token": False} if is_llama(target) and rows == 49152 else {}


def own_template_file(target: TokenizerFiles) -> bool:
    """Whether the family's chat_template.jinja wins over tokenizer_config.json's template, which only includes it."""
    return re.fullmatch(r"minimax(m1|text01)forcausallm|laguna.*", target.architecture) is not None
