"""TK: the vocabulary. All of it is looked at, as bytes: a sample would miss the one token that was moved."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import NotChecked, Problem, rule
from dflash_gguf.checks.subject import MERGES_KEY, SCORES_KEY, TOKENS_KEY, TYPES_KEY, Subject
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.model.metadata import MASK_KEY
from dflash_gguf.model.tokenizer import PRE_NAMES
from dflash_gguf.wording import counted

_PREFIX = "tokenizer.ggml."
_PRE_KEY, _MODEL_KEY = _PREFIX + "pre", _PREFIX + "model"
_SPECIAL = re.compile(r"tokenizer\.ggml\.(\w+_token_id)")
_TEMPLATE = re.compile(r"tokenizer\.chat_template(\..*)?")
_MAX_TEMPLATE = 1 << 20
_BYTE = 6  # llama_token_type of a byte token
_BYTE_TEXT = re.compile(rb"<0x[0-9A-F]{2}>")
_NO_TOKENS = "the file holds no vocabulary"
_WITHOUT_MERGES = "kimi-k2"  # llama.cpp merges by rank of the merged token there


@rule(
    "TK201",
    Severity.ERROR,
    "the vocabulary's arrays do not have the same length as the weights",
    why="Token ids index the codebooks, the target's embedding and its head. llama.cpp reads token types and scores "
    "for as many tokens as there are texts.",
    at_run_time="tensor has wrong shape at load, or reads past the end of an array.",
    fix="vocab_size rows of the target's own tokenizer: `dflash-gguf patch IN OUT --fix TK201 --target T`.",
)
def counts(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    value = subject.metadata.get(TOKENS_KEY)
    if value is None:
        yield Problem("is missing: the draft has no vocabulary", TOKENS_KEY)
        return
    if subject.strings(TOKENS_KEY) is None:
        yield Problem("is no array of strings", TOKENS_KEY)
        return
    rows = subject.codebook_rows
    if rows is not None and rows != subject.token_count:
        yield Problem(f"{counted(subject.token_count, 'token')}, the codebooks have {counted(rows, 'row')}", TOKENS_KEY)
    for key, item in ((TYPES_KEY, ValueType.INT32), (SCORES_KEY, ValueType.FLOAT32)):
        if (value := subject.metadata.get(key)) is None:
            continue
        if not isinstance(value.value, Array) or value.value.item_type is not item:
            yield Problem(f"is no array of {item.name}", key)
        elif value.value.count != subject.token_count:
            yield Problem(f"{counted(value.value.count, 'item')} for {counted(subject.token_count, 'token')}", key)


@rule(
    "TK202",
    Severity.ERROR,
    "the mask token is missing, out of range, or another special token",
    why="The block is filled with this token; the draft was trained to see exactly it at every open position.",
    at_run_time="Without it llama.cpp fills the block with token -1 and aborts; with a wrong one every proposal is "
    "noise and nothing is accepted.",
    fix="dflash_config.mask_token_id of the checkpoint: `dflash-gguf patch IN OUT --fix TK202 --source DRAFT`.",
)
def mask_token(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    value = subject.metadata.get(MASK_KEY)
    if value is None:
        if MASK_KEY not in subject.misplaced:
            yield Problem("is missing", MASK_KEY)
        return
    number = value.value
    if value.type is not ValueType.UINT32 or not isinstance(number, int):
        told = "an array" if isinstance(number, Array) else repr(number)
        yield Problem(f"is {told} ({value.type.name}), expected UINT32", MASK_KEY)
        return
    if not subject.token_count:
        yield NotChecked(_NO_TOKENS)
    elif number >= subject.token_count:
        yield Problem(f"is {number}, the vocabulary has {counted(subject.token_count, 'token')}", MASK_KEY)
    same = [
        word
        for word, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        if (other := subject.metadata.get(f"{_PREFIX}{name}_token_id")) is not None and other.value == number
    ]
    if same:
        yield Problem(f"is {number}, as the {' and '.join(same)} token is", MASK_KEY, severity=Severity.WARNING)


@rule(
    "TK203",
    Severity.ERROR,
    "a special token's id is beyond the vocabulary",
    why="Special ids stop generation, pad batches and open sequences.",
    at_run_time="llama.cpp warns and takes another token; sequences end in the wrong place or not at all.",
    fix="`dflash-gguf patch IN OUT --fix TK203 --target T` takes them from the target; without --target they go.",
)
def special_ids(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    for key, value in subject.metadata.items():
        if key == MASK_KEY or not _SPECIAL.fullmatch(key):
            continue
        if isinstance(value.value, Array) or not isinstance(value.value, int) or value.type is ValueType.BOOL:
            yield Problem(f"has type {value.type.name}, expected UINT32", key)
        elif not subject.token_count:
            yield NotChecked(_NO_TOKENS)
        elif not 0 <= value.value < subject.token_count:
            yield Problem(f"is {value.value}, the vocabulary has {counted(subject.token_count, 'token')}", key)


@rule(
    "TK204",
    Severity.ERROR,
    "text would be split another way than the target splits it",
    why="The vocabulary's kind decides how text is split; a byte-level BPE one needs the name of its pre-tokenizer "
    "and its merges; every merge joins two tokens that exist.",
    at_run_time="`default` or a missing name loads with a warning and splits text wrongly; without merges the file "
    "does not load.",
    fix="`dflash-gguf patch IN OUT --fix TK204 --target T`; or convert anew, with --tokenizer-pre NAME where its way "
    "of splitting is unknown.",
)
def splitting(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    model = subject.metadata.get(_MODEL_KEY)
    if subject.token_count and (model is None or model.type is not ValueType.STRING):
        yield Problem("is missing" if model is None else f"has type {model.type.name}, expected STRING", _MODEL_KEY)
    if model is None or model.value != "gpt2":
        return
    pre = subject.string(_PRE_KEY)
    if pre is None or pre in ("default", ""):
        yield Problem("is missing" if pre is None else f"is {pre!r}", _PRE_KEY)
    elif pre not in PRE_NAMES:
        told = f"{pre!r} is no pre-tokenizer that we know llama.cpp to have"
        yield Problem(told, _PRE_KEY, "check the name against your llama.cpp", Severity.WARNING)
    merges = subject.strings(MERGES_KEY)
    if merges is None or merges.count == 0:
        if pre != _WITHOUT_MERGES:
            yield Problem("are missing", MERGES_KEY)
    elif subject.merges is None:
        yield NotChecked(f"{counted(merges.count, 'merge')}, more than any vocabulary has")
    elif subject.tokens is None:
        yield NotChecked(_why_no_texts(subject))
    else:
        yield from _unknown_merges(subject.merges, set(subject.tokens))


def _why_no_texts(subject: Subject) -> str:
    count = subject.token_count
    return f"{counted(count, 'token')}, more than any vocabulary has" if count else _NO_TOKENS


def _unknown_merges(merges: list[bytes], tokens: set[bytes]) -> Iterator[Problem]:
    """Compare all parts at once; only when one is unknown (or holds a space) look which."""
    parts = b" ".join(merges).split(b" ")
    if len(parts) == 2 * len(merges) and tokens.issuperset(set(parts)):
        return
    bad = []
    for number, merge in enumerate(merges):
        at = merge.find(b" ", 1)  # as llama.cpp does: a merge may begin with a space
        unknown = [merge] if at < 0 else [part for part in (merge[:at], merge[at + 1 :]) if part not in tokens]
        if unknown:
            bad.append((number, unknown[0]))
    if bad:
        number, text = bad[0]
        more = f", and {counted(len(bad) - 1, 'more merge', 'does', 'do')} so" if len(bad) > 1 else ""
        yield Problem(f"merge {number:,} names {_shown(text)}, which is no token{more}", MERGES_KEY)


@rule(
    "TK205",
    Severity.WARNING,
    "a vocabulary that looks damaged",
    why="Byte tokens are <0x00> … <0xFF>, texts are unique, and a chat template of more than 1 MiB is none.",
    at_run_time="llama.cpp loads it; of two tokens with one text only one can ever be produced from text.",
    fix="`dflash-gguf patch IN OUT --fix TK205 --target T` where the texts are right, else convert anew.",
)
def oddities(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    for key, value in subject.metadata.items():
        if _TEMPLATE.fullmatch(key) and isinstance(value.value, str) and len(value.value) > _MAX_TEMPLATE:
            yield Problem(f"{counted(len(value.value), 'character')}, more than 1 MiB", key)
    tokens = subject.tokens
    if tokens is None:
        yield NotChecked(_why_no_texts(subject))
        return
    yield from _bad_byte_tokens(subject, tokens)
    if len(set(tokens)) < len(tokens):
        seen: dict[bytes, int] = {}
        twice = [(seen.setdefault(text, number), number) for number, text in enumerate(tokens)]
        doubles = [pair for pair in twice if pair[0] != pair[1]]
        first, again = doubles[0]
        told = f"tokens {first} and {again} are both {_shown(tokens[first])}"
        yield Problem(told + (f", and {len(doubles) - 1:,} more" if len(doubles) > 1 else ""), TOKENS_KEY)


def _bad_byte_tokens(subject: Subject, tokens: list[bytes]) -> Iterator[Problem]:
    kinds = subject.metadata.get(TYPES_KEY)
    array = kinds.value if kinds is not None else None
    if not isinstance(array, Array) or array.item_type is not ValueType.INT32 or array.count != len(tokens):
        return  # TK201 has told
    if _BYTE.to_bytes(4, "little") not in bytes(array.raw):
        return
    pairs = zip(array.items(), tokens, strict=True)
    bad = [number for number, (kind, text) in enumerate(pairs) if kind == _BYTE and not _BYTE_TEXT.fullmatch(text)]
    if bad:
        told = f"byte token {bad[0]} is {_shown(tokens[bad[0]])}, expected <0x00> … <0xFF>"
        yield Problem(told + (f", and {len(bad) - 1:,} more" if len(bad) > 1 else ""), TOKENS_KEY)


def _shown(text: bytes) -> str:
    """A token's text, short and escaped."""
    return ascii(text[:48].decode("utf-8", "backslashreplace"))
