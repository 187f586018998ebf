"""Special ids and add-bos/add-eos flags, found as llama.cpp's converter finds them.

A target GGUF and its draft must agree in these (llama.cpp compares them before it drafts), so the order of the
sources and even the odd corners are the reference's: a token id counts only if tokenizer.json lists the token
as added, and a bos that is written as an object never equals the name in a TemplateProcessing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError
from dflash_gguf.model.tokenizer.added import SPECIAL_WORDS
from dflash_gguf.model.tokenizer.files import as_list, as_object, brief

if TYPE_CHECKING:
    from dflash_gguf.model.tokenizer.files import TokenizerFiles


@dataclass(frozen=True, slots=True)
class Specials:
    """`ids`: word ("bos", "pad", …) → token id; `flags`: word → add_<word>_token. Both in the order of the keys."""

    ids: dict[str, int]
    flags: dict[str, bool]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """Specials in the making: `named` are tokenizer_config.json's `<word>_token` entries as they stand there."""

    named: dict[str, Any]
    words: list[str] = field(default_factory=lambda: list(SPECIAL_WORDS))
    flags: dict[str, bool] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Note what a user should look at."""
        self.warnings.append(text)


def read_specials(target: TokenizerFiles, listed: dict[str, int], vocab_size: int) -> Specials:
    """Specials of tokenizer.json, tokenizer_config.json and config.json, in this order.

    `listed`: the added tokens of tokenizer.json, text → id.

    An id of config.json that lies beyond the rows is left out with a warning, as the reference does: a target cut to
    a smaller vocabulary keeps its old config. Raises FormatError for an id below 0.
    """
    settings = target.settings or {}
    draft = _Draft({word: settings.get(f"{word}_token") for word in SPECIAL_WORDS})
    if target.architecture.startswith("hunyuan") and _raw_id(target, "pad") == -1:
        draft.words.remove("pad")  # how these configs say that there is none, whatever the tokenizer's files name
    _bos_from_cls(draft)
    _read_post_processor(target, draft)
    ids = _ids_from_names(listed, draft, settings) if settings else {}
    for word in draft.words:
        token_id = _config_id(target, word)
        if token_id is not None and word not in ids and _is_row(word, token_id, vocab_size, draft, str(target.folder)):
            ids[word] = token_id
    return Specials(ids, draft.flags, tuple(draft.warnings))


def _bos_from_cls(draft: _Draft) -> None:
    for word, stand_in in (("bos", "cls"), ("eos", "sep")):
        if not draft.named[word] and draft.named[stand_in]:
            draft.named[word] = draft.named[stand_in]


def _read_post_processor(target: TokenizerFiles, draft: _Draft) -> None:
    where = f"{target.tokenizer_path}: post_processor"
    whole = target.tokenizer.get("post_processor")
    if not whole:
        return
    parts = as_list(as_object(whole, where).get("processors", [whole]), where)
    for part in parts:
        kind = as_object(part, where).get("type")
        if kind == "ByteLevel":
            draft.flags.setdefault("bos", False)
            draft.flags.setdefault("eos", False)
        elif kind == "TemplateProcessing":
            _read_template(part, draft, has_settings=bool(target.settings), where=where)
        else:
            draft.warn(f"post_processor {brief(kind)} is not read: add_bos and add_eos come from elsewhere")


def _read_template(part: dict[str, Any], draft: _Draft, *, has_settings: bool, where: str) -> None:
    """A template for one sequence says whether a token stands before it (bos) and after it (eos)."""
    single = as_list(part.get("single", []), where)
    pair = as_list(part.get("pair", []), where)
    first = _special_of(single[0]) if len(single) > 1 else None
    last = _special_of(single[-1]) if len(single) > 1 else None
    if first:
        _read_first(first, draft, has_settings=has_settings)
    if last:
        _read_last(last, draft, has_settings=has_settings)
    _read_pair(pair, first, last, draft)


def _read_first(first: str, draft: _Draft, *, has_settings: bool) -> None:
    if not has_settings:
        draft.named["bos"] = first
    elif first not in (draft.named["bos"], draft.named["cls"]):
        for word in ("bos", "cls"):
            draft.named[word] = draft.named[word] or first
    known = first in (draft.named["bos"], draft.named["cls"])
    draft.flags["bos"] = known
    if not known:
        draft.warn(f"post_processor begins with {brief(first)}, which is not the bos token: add_bos is false")


def _read_last(last: str, draft: _Draft, *, has_settings: bool) -> None:
    if has_settings and last != draft.named["eos"]:
        for word in ("eot", "eom"):
            if word not in draft.words:
                draft.words.append(word)
                draft.named[word] = draft.named["eos"]
                break
    draft.named["eos"] = last
    draft.flags["eos"] = True


def _read_pair(pair: list[Any], first: str | None, last: str | None, draft: _Draft) -> None:
    """What stands between two sequences, A [sep] [eos] B, is the separator."""
    start = 1 if pair and first and _special_of(pair[0]) == first else 0
    stop = len(pair) - 1 if pair and last and _special_of(pair[-1]) == last else len(pair)
    inner = pair[start:stop]
    if len(inner) < 3 or _sequence_of(inner[0]) != "A" or _sequence_of(inner[-1]) != "B":
        return
    between = [_special_of(piece) for piece in inner[1:-1]]
    known = [text is not None and text in (draft.named["sep"], draft.named["eos"]) for text in between]
    draft.flags["sep"] = (known[0] and not last) or (len(between) == 2 and known[1])
    if draft.flags["sep"] and not draft.named["sep"]:
        draft.named["sep"] = draft.named["eos"]


def _special_of(piece: Any) -> str | None:
    return _id_in(piece, "SpecialToken")


def _sequence_of(piece: Any) -> str | None:
    return _id_in(piece, "Sequence")


def _id_in(piece: Any, kind: str) -> str | None:
    inner = piece.get(kind) if isinstance(piece, dict) else None
    text = inner.get("id") if isinstance(inner, dict) else None
    return text if isinstance(text, str) and text else None


def _ids_from_names(listed: dict[str, int], draft: _Draft, settings: dict[str, Any]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for word in draft.words:
        _read_flag(word, settings.get(f"add_{word}_token"), draft)
        entry = draft.named[word]
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str) and text in listed:
            ids[word] = listed[text]
    return ids


def _read_flag(word: str, flag: Any, draft: _Draft) -> None:
    if not isinstance(flag, bool):
        return
    known = draft.flags.setdefault(word, flag)
    if known != flag:
        draft.warn(f"add_{word}_token is {flag} in tokenizer_config.json, {known} by the post_processor, which wins")


def _config_id(target: TokenizerFiles, word: str) -> int | None:
    value = _raw_id(target, word)
    return value if type(value) is int else None  # a list of ends of text names no single one


def _raw_id(target: TokenizerFiles, word: str) -> Any:
    key = f"{word}_token_id"
    value = target.config.get(key)
    return target.text_config.get(key) if value is None else value


def _is_row(word: str, token_id: int, vocab_size: int, draft: _Draft, where: str) -> bool:
    if token_id < 0:
        raise FormatError(f"{word}_token_id is {brief(token_id)}", where=where)
    if token_id >= vocab_size:
        draft.warn(
            f"{word}_token_id is {brief(token_id)} in config.json, beyond the vocabulary of {vocab_size} rows: left out"
        )
    return token_id < vocab_size
