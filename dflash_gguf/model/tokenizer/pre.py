r"""Which of llama.cpp's pre-tokenizers splits text as a tokenizer.json does, found from its structure.

A tokenizer.json splits in steps (regexes, then byte-level encoding). Each known list of steps belongs to a family;
families with the same steps are told apart by the target's architecture. Source of the regexes: the tokenizer.json
files of Qwen3, Llama 3.1, DeepSeek-V3 and gpt-oss, and the originals that llama.cpp quotes beside its own forms.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import ModelError
from dflash_gguf.model.tokenizer.files import brief
from dflash_gguf.model.tokenizer.pre_names import same_pre

if TYPE_CHECKING:
    from dflash_gguf.model.tokenizer.files import TokenizerFiles

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

_QWEN2 = rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}|{_PUNCTUATION}[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n]*|{_SPACES}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n/]*|{_SPACES}"
)
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_PUNCTUATION}[\r\n/]*|{_SPACES}"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_CHINESE_JAPANESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

#: Characters of a step that a message shows: the longest known regex has 270.
_LONGEST_SHOWN = 400

_BYTES = "ByteLevel"
#: SentencePiece's spaces; the splitter behind finds no space any more
_UNDERSCORES, _AT_SPACES = "spaces become U+2581", "Split at spaces"
#: steps → ((architecture pattern, name), …); the first pattern that matches wins.
_FAMILIES: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {
    (_QWEN2, _BYTES): ((".*", "qwen2"),),
    (_QWEN35, _BYTES): ((".*", "qwen35"),),
    (_LLAMA3, _BYTES): (("chatglm.*", "chatglm-bpe"), ("glm.*", "glm4"), ("(llama|smollm).*", "llama-bpe")),
    (_GPT4O, _BYTES): (("minimax.*", "minimax-m2"), ("llama4.*", "llama4"), (".*", "gpt-4o")),
    (_TEKKEN, _BYTES): ((".*", "tekken"),),
    (_UNDERSCORES, _AT_SPACES): ((".*", "gemma4"),),
    (r"\p{N}{1,3}", _CHINESE_JAPANESE, _DEEPSEEK3, _BYTES): ((".*", "deepseek-v3"),),
}


def find_pre(target: TokenizerFiles) -> str | None:
    """Name of the pre-tokenizer, None when the structure or the family is not known."""
    steps = split_steps(target.tokenizer)
    for pattern, name in _FAMILIES.get(steps, ()):
        if re.fullmatch(pattern, target.architecture):
            return name
    # Llama 3's regex with whole-word lookup: what llama.cpp does under this name, whoever uses it
    if steps == (_LLAMA3, _BYTES) and target.tokenizer["model"].get("ignore_merges") is True:
        return "llama-bpe"
    return None


def split_steps_of(pre: str) -> tuple[str, ...] | None:
    """The steps of a known family by a name that llama.cpp handles alike: regexes, then byte-level encoding."""
    return next((s for s, names in _FAMILIES.items() for _, name in names if same_pre(name, pre)), None)


def require_pre(target: TokenizerFiles) -> str:
    """Name of the pre-tokenizer; raises ModelError that says what was found when it is not known."""
    name = find_pre(target)
    if name is not None:
        return name
    steps = split_steps(target.tokenizer)
    if steps in _FAMILIES:
        found = ", ".join(name for _, name in _FAMILIES[steps])
        message = f"its splitting is that of {found}, the architecture ({target.architecture or 'none'}) of neither"
    else:
        message = f"unknown way of splitting text: {' then '.join(map(_printable, steps)) or 'none at all'}"
    raise ModelError(message, where=target.tokenizer_path, hint="name the one it needs with --tokenizer-pre NAME")


def split_steps(tokenizer: dict[str, Any]) -> tuple[str, ...]:
    """What tokenizer.json does to a text before BPE, a word or regex for each step.

    NFC normalization is no step: llama.cpp leaves it out for every family that asks for it.
    """
    normalizers = _flatten(tokenizer.get("normalizer"), "normalizers")
    changing = [_normalizing(part) for part in normalizers if _kind(part) != "NFC"]
    splitters = _flatten(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return tuple(changing + [_step(part) for part in splitters])


def _flatten(whole: Any, key: str) -> list[Any]:
    parts: list[Any] = []
    waiting = [] if whole is None else [whole]
    while waiting:
        part = waiting.pop()
        inner = part.get(key) if isinstance(part, dict) and part.get("type") == "Sequence" else None
        if isinstance(inner, list):
            waiting.extend(reversed(inner))
        else:
            parts.append(part)
    return parts


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else "without a type"


def _normalizing(part: Any) -> str:
    pattern = part.get("pattern") if _kind(part) == "Replace" else None
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return _UNDERSCORES if (text, _content(part)) == (" ", "\u2581") else f"normalizer {_kind(part)}"


def _content(part: Any) -> Any:
    return part.get("content") if isinstance(part, dict) else None


def _step(part: Any) -> str:
    kind = _kind(part)
    if kind == "ByteLevel":
        prefix = " with a space before" if part.get("add_prefix_space", True) else ""
        return f"ByteLevel{prefix}{' with its regex' if part.get('use_regex', True) else ''}"
    pattern = part.get("pattern") if kind == "Split" else None
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(pattern, dict) and pattern.get("String") == " " and part.get("behavior") == "MergedWithPrevious":
        return _AT_SPACES
    if not isinstance(regex, str):
        return kind
    behavior, invert = part.get("behavior"), part.get("invert", False)
    # pieces that match are kept apart; where a regex matches all text, keeping only matches is the same
    plain = (behavior, invert) in (("Isolated", False), ("Removed", True))
    return _one_spelling(regex) if plain else f"Split {brief(behavior)} {brief(invert)} {_one_spelling(regex)}"


def _printable(step: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in step[:_LONGEST_SHOWN])


def _one_spelling(regex: str) -> str:
    spelled_out = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    return regex.replace("\r", r"\r").replace("\n", r"\n").replace(spelled_out, _CONTRACTION)
