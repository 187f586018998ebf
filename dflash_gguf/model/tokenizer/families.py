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
    from dflash_gguf.model.tokenizer.files import Target


@dataclass(frozen=True, slots=True)
class _Rule:
    """`tokens` (word, text) of the architectures that `pattern` matches whole."""

    pattern: str
    tokens: tuple[tuple[str, str], ...]


_END = "<|endoftext|>"
_RULES = (
    _Rule(r"chatglm.*|glmforcausallm|glm", (("eos", _END), ("eot", "<|user|>"), ("unk", _END))),
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

#: Architectures whose converter also writes add_space_prefix.
_SPACE_PREFIX = re.compile(
    r"llamaforcausallm|mistralforcausallm|mixtralforcausallm|vllama3forcausallm|llavaforconditionalgeneration"
    r"|voxtralforconditionalgeneration|iquestcoderforcausallm|llamamodel|smollm3forcausallm"
)


def special_texts(target: Target, added: dict[str, int]) -> dict[str, int]:
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


def late_end_of_turn(target: Target, added: dict[str, int]) -> int | None:
    """Id of the end-of-turn token where the family writes it after all other keys."""
    return added.get("<|eot|>") if target.architecture.startswith("museglimmer") else None


def space_prefix(target: Target) -> bool | None:
    """`add_prefix_space` of tokenizer_config.json where the family writes it."""
    value = (target.settings or {}).get("add_prefix_space")
    return value if isinstance(value, bool) and _SPACE_PREFIX.fullmatch(target.architecture) else None
