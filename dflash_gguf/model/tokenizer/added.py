"""Added tokens: those of tokenizer.json, with what tokenizer_config.json says about them laid over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dflash_gguf.errors import FormatError
from dflash_gguf.model.checkpoint import read_json
from dflash_gguf.model.tokenizer.byte_chars import through_bytes
from dflash_gguf.model.tokenizer.files import as_list, as_object, brief

if TYPE_CHECKING:
    from dflash_gguf.model.tokenizer.files import TokenizerFiles

#: Special tokens that a tokenizer_config.json may name as `<word>_token`.
SPECIAL_WORDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

#: Texts that other models' tokenizers use for control tokens without marking them so.
_LOOK_SPECIAL = frozenset({"<pad>", "<mask>", "<2mass>", "[@BOS@]"})
_SPECIAL_BRACKETS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


#: special tokens that a tokenizer's class names where its files do not
_CLASS_DEFAULTS = {
    "GemmaTokenizer": {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"},
}


@dataclass(frozen=True, slots=True)
class Added:
    """One added token. `normalized` tokens are matched after normalization, the others as they stand."""

    id: int
    text: str
    special: bool
    normalized: bool

    @property
    def control(self) -> bool:
        """Whether llama.cpp must treat it as a control token: marked special, or looking like one."""
        return self.special or looks_special(self.decoded)

    @property
    def decoded(self) -> str:
        """The text as the byte-level decoder gives it back, for a token that normalization never meets."""
        return self.text if self.normalized else through_bytes(self.text)

    @property
    def row_text(self) -> str:
        """The text of its row: a user-defined token has spaces where SentencePiece has U+2581."""
        return self.decoded if self.control else self.decoded.replace("\u2581", " ")


def looks_special(text: str) -> bool:
    """Whether a token's text says that it is a control token, however it is marked."""
    return text in _LOOK_SPECIAL or any(text.startswith(a) and text.endswith(b) for a, b in _SPECIAL_BRACKETS)


def listed_tokens(target: TokenizerFiles, base: dict[str, int]) -> dict[str, Added]:
    """The added tokens of tokenizer.json by text; raises FormatError for one that is no token or has two ids."""
    where = f"{target.tokenizer_path}: added_tokens"
    tokens: dict[str, Added] = {}
    for entry in as_list(target.tokenizer.get("added_tokens") or [], where):
        token = _parse(entry, as_object(entry, where).get("id"), where)
        known = tokens[token.text].id if token.text in tokens else base.get(token.text, token.id)
        if known != token.id:
            raise FormatError(f"{brief(token.text)} has two ids, {known} and {token.id}", where=where)
        tokens[token.text] = token
    return tokens


def all_added(
    target: TokenizerFiles, listed: dict[str, Added], base: dict[str, int]
) -> tuple[list[Added], tuple[str, ...]]:
    """Every added token of the target, by id, and warnings.

    `listed` are those of tokenizer.json; flags of the same text in tokenizer_config.json replace its flags, and
    tokens that only tokenizer_config.json (or, where it lists none, added_tokens.json) has are added. A token that
    is named as bos, eos, … is special whatever its flags say. This is how AutoTokenizer loads such a directory.
    """
    tokens = dict(listed)
    warnings: list[str] = []
    elsewhere = decoder_tokens(target)
    if elsewhere is None:
        elsewhere = [token for token in mapped_tokens(target) if token.text not in listed]
    for token in elsewhere:
        known = tokens[token.text].id if token.text in tokens else base.get(token.text, token.id)
        if known != token.id:
            warnings.append(f"token {brief(token.text)} has id {known} in tokenizer.json, {token.id} elsewhere")
        tokens[token.text] = replace(token, id=known)
    warnings += _renumbered(listed, base)
    for text in named_tokens(target):
        tokens[text] = _named_token(text, tokens, base, warnings)
    return _by_id(tokens, target.tokenizer_path), tuple(warnings)


def decoder_tokens(target: TokenizerFiles) -> list[Added] | None:
    """The tokens of tokenizer_config.json's `added_tokens_decoder`, None where it has none."""
    settings = target.settings or {}
    if "added_tokens_decoder" not in settings:
        return None
    where = f"{target.settings_path}: added_tokens_decoder"
    decoder = as_object(settings["added_tokens_decoder"], where)
    return [_parse(entry, _decimal(key, where), where) for key, entry in decoder.items()]


def mapped_tokens(target: TokenizerFiles) -> list[Added]:
    """The tokens of added_tokens.json, if there is one."""
    path = target.folder / "added_tokens.json"
    entries = read_json(path) if path.is_file() else {}
    return [_parse({"content": text}, token_id, str(path)) for text, token_id in entries.items()]


def _parse(entry: Any, token_id: Any, where: str) -> Added:
    text = as_object(entry, where).get("content")
    if not isinstance(text, str) or not text:
        raise FormatError(f"a token's content is {brief(text)}, expected a text", where=where)
    if type(token_id) is not int or token_id < 0:
        raise FormatError(f"the id of {brief(text)} is {brief(token_id)}, expected an integer ≥ 0", where=where)
    special = entry.get("special") is True
    return Added(token_id, text, special, normalized=entry.get("normalized", not special) is True)


def _decimal(key: str, where: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise FormatError(f"{brief(key)} is no token id", where=where)
    return int(key)


def _renumbered(listed: dict[str, Added], base: dict[str, int]) -> list[str]:
    """The tokenizers library numbers added tokens one after the other, whatever ids a file gives them."""
    highest = -1
    for token in listed.values():
        expected = base.get(token.text, max(highest + 1, len(base)))
        if token.id != expected:
            return [f"added token {brief(token.text)} has id {token.id}, the tokenizers library gives it {expected}"]
        highest = max(highest, token.id)
    return []


def named_tokens(target: TokenizerFiles) -> list[str]:
    """Texts that the JSON files name as bos, eos, … or as further special tokens."""
    settings = target.settings or {}
    sources = [settings]
    legacy = target.folder / "special_tokens_map.json"
    if "added_tokens_decoder" not in settings and legacy.is_file():
        sources.append(read_json(legacy))
    entries: list[Any] = []
    defaults = _CLASS_DEFAULTS.get(str(settings.get("tokenizer_class")).removesuffix("Fast"), {})
    for source in sources:
        entries += [source.get(f"{word}_token", defaults.get(word)) for word in SPECIAL_WORDS]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            more = source.get(key)
            entries += more if isinstance(more, list) else list(more.values()) if isinstance(more, dict) else []
    texts = (entry.get("content") if isinstance(entry, dict) else entry for entry in entries)
    return list(dict.fromkeys(text for text in texts if isinstance(text, str) and text))


def _named_token(text: str, tokens: dict[str, Added], base: dict[str, int], warnings: list[str]) -> Added:
    if (known := tokens.get(text)) is not None:
        return known if known.special else replace(known, special=True)
    token_id = base.get(text)
    if token_id is None:  # AutoTokenizer appends such a token to the vocabulary
        highest = max((token.id for token in tokens.values()), default=-1)
        token_id = max(highest + 1, len(base))
        warnings.append(f"special token {brief(text)} has no id in tokenizer.json: takes the next one, {token_id}")
    return Added(token_id, text, special=True, normalized=False)


def _by_id(tokens: dict[str, Added], where: str) -> list[Added]:
    ordered = sorted(tokens.values(), key=lambda token: token.id)
    for first, second in pairwise(ordered):
        if first.id == second.id:
            raise FormatError(f"id {first.id} is both {brief(first.text)} and {brief(second.text)}", where=where)
    return ordered
