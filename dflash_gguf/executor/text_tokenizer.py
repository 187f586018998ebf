"""Prompts to token ids and back, with the target's own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from dflash_gguf.errors import FormatError, ModelError
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.model.tokenizer.pre import split_steps_of
from dflash_gguf.model.tokenizer.vocabulary import TokenType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash_gguf.formats.gguf.values import Metadata


class TextTokenizer(Protocol):
    """What `generate` needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Ids, special tokens recognised, BOS in front where the target wants it."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text; bytes that are no UTF-8 become the replacement character."""


class _Wrapped:
    """A `tokenizers.Tokenizer`; `bos` goes in front of every text."""

    def __init__(self, inner: object, bos: list[int]) -> None:
        self._inner, self._bos = cast("_Library", inner), bos

    def encode(self, text: str) -> list[int]:
        return self._bos + list(self._inner.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode(list(ids), skip_special_tokens=False)


class _Encoding(Protocol):
    ids: list[int]


class _Library(Protocol):
    def encode(self, text: str) -> _Encoding: ...
    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...


def tokenizer_of_folder(folder: Path) -> TextTokenizer:
    """tokenizer.json of a target's folder. Raises ModelError when there is none, FormatError when it is broken."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError("has no tokenizer.json", where=str(folder), hint="name a folder that has one with --tokenizer")
    try:
        return _Wrapped(Tokenizer.from_file(str(path)), [])
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for every fault
        raise FormatError(f"cannot be read: {error}", where=str(path)) from None


def tokenizer_of_gguf(metadata: Metadata, where: str) -> TextTokenizer:
    """The byte-level BPE tokenizer that a GGUF's `tokenizer.*` keys describe.

    Raises ModelError for another kind, or a `pre` whose way of splitting is not known here.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    model, pre = (metadata[k].value if k in metadata else None for k in ("tokenizer.ggml.model", "tokenizer.ggml.pre"))
    steps = split_steps_of(str(pre)) if model == "gpt2" else None
    if steps is None:
        raise ModelError(
            f"tokenizer {model!r} with pre {pre!r} cannot be rebuilt",
            where=where,
            hint="name a folder with the target's tokenizer.json with --tokenizer",
        )
    tokens = [str(token) for token in _items(metadata, "tokenizer.ggml.tokens", where)]
    types = _items(metadata, "tokenizer.ggml.token_type", where)
    pairs = (str(merge).split(" ", 1) for merge in _items(metadata, "tokenizer.ggml.merges", where))
    try:
        bpe = models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[(pair[0], pair[-1]) for pair in pairs],
            ignore_merges=pre == "llama-bpe",
        )
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for every fault
        raise FormatError(f"its vocabulary is broken: {error}", where=where) from None
    inner = Tokenizer(bpe)
    splits = [pre_tokenizers.Split(Regex(step), "isolated") for step in steps[:-1]]
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    inner.decoder = decoders.ByteLevel()
    for kind, special in ((TokenType.CONTROL, True), (TokenType.USER_DEFINED, False)):
        added = [token for token, held in zip(tokens, types, strict=True) if held == kind]
        inner.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])
    return _Wrapped(inner, _bos(metadata))


def _items(metadata: Metadata, key: str, where: str) -> list[int | float | bool | str]:
    value = metadata.get(key)
    if value is None or not isinstance(value.value, Array):
        raise ModelError("is missing", where=f"{where}: {key}")
    return value.value.items()


def _bos(metadata: Metadata) -> list[int]:
    add, bos = (metadata.get(f"tokenizer.ggml.{key}") for key in ("add_bos_token", "bos_token_id"))
    return [int(bos.value)] if add and add.value is True and bos and isinstance(bos.value, int) else []
