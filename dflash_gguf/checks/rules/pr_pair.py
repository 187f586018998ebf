"""PR: whether draft and target belong together; configs and headers are enough to tell."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.registry import Needs, NotChecked, Problem, rule
from dflash_gguf.checks.subject import TOKENS_KEY, Subject
from dflash_gguf.checks.target import RopeKind, Target
from dflash_gguf.model.metadata import MASK_KEY, PREFIX
from dflash_gguf.model.tokenizer import same_pre
from dflash_gguf.wording import counted

_LAYERS = PREFIX + "target_layers"


def _pair(subject: Subject) -> Target:
    if subject.target is None:
        raise ValueError("a pair rule was run without a target")
    return subject.target


@rule(
    "PR401",
    Severity.ERROR,
    "draft and target do not share a vocabulary",
    why="Draft tokens go to the target as ids, and the draft uses the target's embedding and head: each id must be the "
    "same token in both.",
    at_run_time="Different sizes abort; the same size with other tokens runs, and proposals mean something else to the "
    "target: acceptance near zero.",
    fix="Pair the draft with the target it was trained for, or convert it anew with that target's tokenizer.",
    needs=Needs.TARGET,
)
def vocabulary(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    target = _pair(subject)
    if subject.tokens is None:
        yield NotChecked("the draft holds no tokens that can be compared")
        return
    if target.vocab_size is not None and target.vocab_size != subject.token_count:
        yield Problem(f"{counted(subject.token_count, 'token')}, the target has {target.vocab_size:,}", TOKENS_KEY)
        return
    words = target.words(subject.token_count)
    if words.texts is None:
        yield NotChecked(f"the target's token texts: {words.problem}")
        return
    yield from _texts(subject.tokens, words.texts)
    model = subject.string("tokenizer.ggml.model")
    if model and words.model and model != words.model:
        yield Problem(f"{model!r}, the target's is {words.model!r}", "tokenizer.ggml.model")
    pre = subject.string("tokenizer.ggml.pre")
    if words.pre is None:
        yield NotChecked("how the target splits text is not known")
    elif pre not in (None, "", "default") and not same_pre(str(pre), words.pre):
        yield Problem(f"{pre!r}, the target splits text as {words.pre!r}", "tokenizer.ggml.pre")


def _texts(ours: list[bytes], theirs: list[bytes]) -> Iterator[Problem]:
    if ours == theirs:
        return
    if len(ours) != len(theirs):
        yield Problem(f"{counted(len(ours), 'token')}, the target has {len(theirs):,}", TOKENS_KEY)
        return
    differing = [number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    first = differing[0]
    here, there = (ascii(texts[first][:48].decode("utf-8", "backslashreplace")) for texts in (ours, theirs))
    count = counted(len(differing), "token", "differs", "differ")
    told = f"{count} from the target's, first id {first}: {here}, there {there}"
    yield Problem(told, TOKENS_KEY)


@rule(
    "PR402",
    Severity.ERROR,
    "the target has not the hidden states that the draft taps",
    why="fc takes one hidden state of the target for each of target_layers, which count the target's blocks.",
    at_run_time="llama.cpp aborts (target layer not extracted), or reads features of the wrong width: noise.",
    fix="Pair the draft with the target it was trained for; where target_layers are wrong, "
    "`dflash-gguf patch IN OUT --fix PR402 --source DRAFT --target T`.",
    needs=Needs.TARGET,
)
def taps(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    target, layers = _pair(subject), subject.integers(_LAYERS) or []
    fc = subject.tensors.get("fc.weight")
    if fc and fc.shape and layers and target.hidden and fc.shape[0] != len(layers) * target.hidden:
        states = counted(len(layers), "state")
        told = f"takes {counted(fc.shape[0], 'feature')}, {states} of the target: {len(layers) * target.hidden:,}"
        yield Problem(told, "fc.weight")
    unknown = {
        "the draft names no target_layers": not layers,
        "the draft holds no fc.weight": fc is None or not fc.shape,
        "the target does not say its hidden size": target.hidden is None,
        "the target does not say its number of blocks": target.blocks is None,
    }
    yield from (NotChecked(reason) for reason, holds in unknown.items() if holds)
    if not layers or target.blocks is None:
        return
    if max(layers) > target.blocks:
        yield Problem(f"{layers} exceed the target's {counted(target.blocks, 'block')}", _LAYERS)
    elif max(layers) == target.blocks and not target.exposes_last:
        told = f"{max(layers)} is the output of the target's last block, which llama.cpp hands out for few targets"
        hint = "llama.cpp aborts for Qwen3 and the like: see whether yours drafts at all"
        yield Problem(told, _LAYERS, hint, Severity.WARNING)


@rule(
    "PR403",
    Severity.ERROR,
    "an M-RoPE target, and the draft has no rope sections",
    why="A vision target gives positions in sections. Drafts made before 2026-08-27 lack the key that makes llama.cpp "
    "rope them on the temporal position.",
    at_run_time="The pair runs, and acceptance falls to nothing.",
    fix="`dflash-gguf patch IN OUT --fix PR403 --target T`: only the metadata have to change.",
    needs=Needs.TARGET,
)
def sections(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    target, where = _pair(subject), PREFIX + "rope.dimension_sections"
    if target.rope is RopeKind.PLAIN or where in subject.metadata:
        return
    head = subject.natural(PREFIX + "rope.dimension_count") or subject.natural(PREFIX + "attention.key_length")
    if target.rope is RopeKind.XDROPE:
        told = "is missing; the target uses XD-RoPE, for which nobody has reported whether it is needed"
        yield Problem(told, where, "compare acceptance with and without it", Severity.NOTE)
    else:
        yield Problem(f"is missing, the target uses M-RoPE: expected [{(head or 0) // 2}, 0, 0, 0]", where)


@rule(
    "PR404",
    Severity.ERROR,
    "the draft cannot use the target's embedding or head",
    why="A draft without its own token embedding and head borrows the target's: their rows are token ids, their width "
    "is the hidden size.",
    at_run_time="An abort when the mask token's row is looked up, or when the head is applied.",
    fix="Pair the draft with the target it was trained for.",
    needs=Needs.TARGET,
)
def borrowed(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    target, hidden = _pair(subject), subject.natural(PREFIX + "embedding_length")
    fc, layers = subject.tensors.get("fc.weight"), subject.integers(PREFIX + "target_layers") or []
    own = "token_embd.weight" in subject.tensors
    fits = not (fc and fc.shape and layers and target.hidden) or fc.shape[0] == len(layers) * target.hidden
    if not own and fits and target.hidden and hidden and hidden != target.hidden:  # else PR402 has told
        yield Problem(f"{hidden}, the target's is {target.hidden}", PREFIX + "embedding_length")
    mask, rows = subject.natural(MASK_KEY), target.embedding_rows
    if not own and target.hidden is None:
        yield NotChecked("the target does not say its hidden size")
    if not own and rows is None:
        yield NotChecked("the target does not say how many rows its embedding has")
    if not own and mask is not None and rows is not None and rows <= mask < subject.token_count == target.vocab_size:
        yield Problem(f"is {mask}, the target's embedding has {counted(rows, 'row')}", MASK_KEY)


@rule(
    "PR405",
    Severity.NOTE,
    "not known whether llama.cpp hands out this target's hidden states",
    why="A target's graph has to mark the input of every block; the architectures that do are a list.",
    at_run_time="Where it does not: an abort (layer input tensor is null) at the first draft.",
    fix="Try one prompt with the draft; use a newer llama.cpp if it aborts.",
    needs=Needs.TARGET,
)
def exposed(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    target = _pair(subject)
    if not target.exposes_blocks:
        yield Problem(f"the target's architecture is {target.architecture or 'not named'!r}", _LAYERS)
