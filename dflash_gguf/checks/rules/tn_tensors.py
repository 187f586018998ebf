"""TN: names, shapes and types of the tensors, judged by the table that writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dflash_gguf.checks.expected_types import expected_types
from dflash_gguf.checks.finding import Severity
from dflash_gguf.checks.geometry import SELECTOR, uniform_dim
from dflash_gguf.checks.registry import Needs, NotChecked, Problem, rule
from dflash_gguf.checks.subject import Subject
from dflash_gguf.formats.gguf.types import GGMLType
from dflash_gguf.model.config import V2_SIZES
from dflash_gguf.model.metadata import PREFIX, file_type_name
from dflash_gguf.model.spec import DraftSpec
from dflash_gguf.model.tensor_dialects import known_optional, without_ones
from dflash_gguf.model.tensors import draft_tensors
from dflash_gguf.wording import counted

_CONV_NAMES = ("attn_conv_base", "attn_conv_proj.weight", "ffn_conv_base", "ffn_conv_proj.weight")
_MANY = 4  # shapes told one by one; more than these have one cause


def _listed(names: list[str], count: int = 10) -> str:
    return ", ".join(names[:count]) + (f", … ({len(names)} in all)" if len(names) > count else "")


def _spelled(subject: Subject) -> dict[str, str]:
    """Canonical name → the name in the file, of every tensor that is there under any spelling."""
    spec = subject.spec
    if spec is None:
        return {}
    found: dict[str, str] = {}
    for name in (*subject.tensors, *subject.unsized):
        found.setdefault(subject.canonical.get(name) or name, name)
    return found


@rule(
    "TN301",
    Severity.ERROR,
    "tensors are missing, or are none of a draft's",
    why="A DFlash draft has 11·L + 3 tensors, a DFlash 2 draft 15·L + 6. llama.cpp wants each one, and refuses a file "
    "with tensors that nobody asked for.",
    at_run_time="missing tensor / wrong number of tensors: the file does not load.",
    fix="Convert the checkpoint anew; if the source lacks them too, its download is not whole.",
    needs=Needs.TENSORS,
)
def names(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    if not subject.tensors and not subject.unsized:
        yield Problem("the file holds no tensors", "tensor count")
        return
    if not subject.has_sane_count:
        yield Problem(f"{counted(len(subject.tensors), 'tensor')}: no draft has so many", "tensor count")
        return
    spec = subject.spec
    if spec is None:
        yield NotChecked(subject.why_no_spec)
        return
    found, table = _spelled(subject), {tensor.gguf_name: tensor for tensor in draft_tensors(spec)}
    mixed = _mixed(subject)
    missing = [name for name, t in table.items() if name not in found and not t.optional and not _is_v2(name, mixed)]
    unknown = [found[name] for name in found if name not in table and known_optional(name, spec) is None]
    if missing:
        yield Problem(f"{len(missing)} of {counted(_required(spec), 'tensor')} missing: {_listed(missing)}", missing[0])
    if unknown:
        yield Problem(
            f"{counted(len(unknown), 'tensor', 'is', 'are')} none of a draft's: {_listed(unknown)}", unknown[0]
        )


def _required(spec: DraftSpec) -> int:
    return sum(not tensor.optional for tensor in draft_tensors(spec))


def _is_v2(name: str, mixed: bool) -> bool:
    """Whether TN302 has told of it."""
    return mixed and (name in SELECTOR or name.endswith(_CONV_NAMES))


def _mixed(subject: Subject) -> bool:
    """Whether only some of what makes DFlash 2 is there."""
    selector, convs = subject.selector_names, subject.conv_names
    if subject.version == 1:
        return False
    return len(selector) < len(SELECTOR) or not convs


@rule(
    "TN302",
    Severity.ERROR,
    "a mixture of DFlash and DFlash 2",
    why="DFlash 2 is convolutions in every layer plus a selector of three tensors; one without the other is neither.",
    at_run_time="llama.cpp takes selector_hidden.weight for the mark of DFlash 2: it refuses the file, or runs the "
    "draft without the parts that it was trained with.",
    fix="Convert the checkpoint anew from all of its shards.",
    needs=Needs.GEOMETRY,
)
def mixed_versions(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    spec = subject.spec
    if not _mixed(subject) or spec is None or not subject.tensors:
        return
    spelled = _spelled(subject)
    absent = [name for name in SELECTOR if name not in spelled]
    convs = any(name.endswith(_CONV_NAMES) for name in spelled)
    if not absent and convs:
        return  # they are there under other names
    if len(absent) == len(SELECTOR) and not convs:
        key = next(PREFIX + size for size in V2_SIZES if PREFIX + size in subject.metadata)
        yield Problem("the metadata are those of DFlash 2, the tensors those of DFlash", key)
    elif len(absent) == len(SELECTOR):
        yield Problem("convolutions without a selector", SELECTOR[0])
    elif absent:
        yield Problem(f"the selector lacks {_listed(absent)}", absent[0])
    if len(absent) < len(SELECTOR) and not convs:
        yield Problem("a selector without convolutions", "blk.0.attn_conv_base")


@rule(
    "TN303",
    Severity.ERROR,
    "a tensor's shape contradicts the metadata",
    why="Every shape follows from the metadata (docs/rules.md has the formulas' source); fc takes one hidden state of "
    "the target for each of target_layers.",
    at_run_time="tensor has wrong shape: the file does not load.",
    fix="Find which of the two is wrong by the checkpoint's config.json; a key is mended by "
    "`dflash-gguf patch IN OUT --fix SR501 --source DRAFT`.",
    needs=Needs.GEOMETRY,
)
def shapes(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    spec = subject.spec
    if spec is None:
        return
    table = {tensor.gguf_name: tensor.ne for tensor in draft_tensors(spec)}
    d2t = subject.tensors.get("d2t")
    if d2t is not None:  # a reduced vocabulary: its head has as many rows as the map
        table["output.weight"] = (spec.embedding_length, d2t.shape[0])
    bad, told_elsewhere = [], _told_by_heads(subject, spec)
    for name, tensor in subject.tensors.items():
        canonical = subject.canonical[name] or name
        expected = table.get(canonical) or known_optional(canonical, spec)
        if expected and without_ones(tensor.shape) != without_ones(expected) and not canonical.endswith(told_elsewhere):
            bad.append((name, f"{list(tensor.shape)}, the metadata want {list(expected)}"))
    if len(bad) <= _MANY:
        for name, told in bad:
            yield Problem(f"ne is {told}", name)
    else:
        name, told = bad[0]
        rest = [name for name, _ in bad[1:]]
        yield Problem(f"ne is {told}; {len(rest)} more contradict: {_listed(rest, 5)}", name)


def _told_by_heads(subject: Subject, spec: DraftSpec) -> tuple[str, ...]:
    """Tensors of which KV107 tells that all layers contradict the head counts, so that not each one has to."""
    told: tuple[str, ...] = ()
    for heads, kind, names in (
        (spec.head_count, "attn_q", (".attn_q.weight", ".attn_output.weight", ".attn_sinks.weight")),
        (spec.head_count_kv, "attn_k", (".attn_k.weight", ".attn_v.weight")),
    ):
        rows = uniform_dim(subject.tensors, rf"blk\.\d+\.{kind}\.weight", 1)
        if rows is not None and rows != heads * spec.key_length:
            told += names
    return told


@rule(
    "TN304",
    Severity.ERROR,
    "a norm, conv base or sink is not F32",
    why="ggml multiplies these elementwise and supports F32 only; the conv bases are added to, not multiplied with.",
    at_run_time="An abort in the compute graph (unsupported types), at the first block.",
    fix="Convert anew: every output type keeps these in F32.",
    needs=Needs.GEOMETRY,
)
def f32_tensors(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    spec = subject.spec
    if spec is None:
        return
    wanted = {tensor.gguf_name for tensor in draft_tensors(spec) if tensor.f32}
    for name, tensor in subject.tensors.items():
        if (subject.canonical[name] or name) in wanted and tensor.type is not GGMLType.F32:
            yield Problem(f"is {tensor.type.name}, expected F32", name)


@rule(
    "TN305",
    Severity.ERROR,
    "a tensor has a name that llama.cpp does not look for",
    why="Early converters wrote `attn_conv_base.weight`, `selector.pred_codebook` or the checkpoint's own names.",
    at_run_time="missing tensor: the file does not load; or the selector is not noticed and never runs.",
    fix="`dflash-gguf patch IN OUT --fix TN305` renames them.",
    needs=Needs.GEOMETRY,
)
def legacy_names(subject: Subject) -> Iterator[Problem]:
    """See the registry."""
    for name in subject.tensors:
        canonical = subject.canonical.get(name)
        if canonical is not None and canonical != name:
            yield Problem(f"a spelling that is not read: {canonical} is", name)


@rule(
    "TN307",
    Severity.NOTE,
    "types that differ from the recipe, or gave way",
    why="Rows that a type's block does not divide take a type with smaller blocks: such tensors are larger (or "
    "coarser) than the file's name says. Other differences are somebody's choice.",
    at_run_time="Nothing but size and speed.",
    fix="Nothing has to be mended; `convert --dry-run` shows the plan, --tensor-type changes it.",
    needs=Needs.GEOMETRY,
)
def type_table(subject: Subject) -> Iterator[Problem | NotChecked]:
    """See the registry."""
    value = subject.metadata.get("general.file_type")
    name = file_type_name(value.value) if value is not None and isinstance(value.value, int) else None
    choices = expected_types(subject, name)
    if not choices:
        yield NotChecked("no recipe is known of the type that general.file_type names")
        return
    fallbacks = [
        f"{tensor} {choice.type.name}"
        for tensor, choice in choices.items()
        if choice.reason.startswith("fallback") and subject.tensors[tensor].type is choice.type
    ]
    if fallbacks:
        rows = re.sub(r"fallback: ", "", choices[fallbacks[0].split(" ")[0]].reason)
        yield Problem(
            f"{counted(len(fallbacks), 'tensor')} in a fallback type ({rows}): {_listed(fallbacks, 6)}", "types"
        )
    other = [
        f"{tensor} is {subject.tensors[tensor].type.name} (recipe: {choice.type.name})"
        for tensor, choice in choices.items()
        if subject.tensors[tensor].type is not choice.type
    ]
    if other:
        yield Problem(
            f"{counted(len(other), 'tensor', 'differs', 'differ')} from {name}'s recipe: {_listed(other, 6)}", "types"
        )
