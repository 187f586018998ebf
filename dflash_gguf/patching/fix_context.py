"""What a fix works on, the table of fixes, and values from the draft's own checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import MetaValue
from dflash_gguf.model.metadata import BY_NAME, MASK_KEY, PREFIX
from dflash_gguf.model.tensor_dialects import known_optional, without_ones
from dflash_gguf.model.tensors import draft_tensors

if TYPE_CHECKING:
    from dflash_gguf.checks.source import SourceDraft
    from dflash_gguf.checks.subject import Subject
    from dflash_gguf.model.target import Target
    from dflash_gguf.patching.edits import Edits

SECTIONS = PREFIX + "rope.dimension_sections"


@dataclass(frozen=True, slots=True)
class FixContext:
    """One rule's work on a file: the header that changes, the file as it is now, and whose vocabulary it should have.

    `donor` opens the target's tokenizer; None without a target. `keys` are those that the rule complains of.
    """

    edits: Edits
    subject: Subject
    donor: Callable[[], Target] | None
    keys: Sequence[str]


Fix: TypeAlias = "Callable[[FixContext], None]"


@dataclass(frozen=True, slots=True)
class RegisteredFix:
    """A fix, and what it cannot do without ("" where the file itself tells all)."""

    fix: Fix
    needs: str = ""


#: rule → its fix, in the order in which they are carried out
FIXES: dict[str, RegisteredFix] = {}


def mends(*rules: str, needs: str = "") -> Callable[[Fix], Fix]:
    """Register the decorated function as the fix of `rules`."""

    def register(fix: Fix) -> Fix:
        FIXES.update(dict.fromkeys(rules, RegisteredFix(fix, needs)))
        return fix

    return register


def take_from_source(work: FixContext, keys: Iterable[str]) -> bool:
    """Have `keys` as converting the source writes them; False without a source."""
    original = own_source(work.subject)
    if original is None:
        return False
    for key in keys:
        value, found = BY_NAME[key].encode(original.spec), work.edits.metadata.get(key)
        if value is not None:
            work.edits.set(key, value)
        elif found is not None and key != SECTIONS:
            work.edits.remove(key)
    return True


def own_source(subject: Subject) -> SourceDraft | None:
    """The source, unless the tensors say that it is another draft's: names and shapes have to be just its own."""
    original = subject.original
    if original is None:
        return None
    table = {tensor.gguf_name: tensor for tensor in draft_tensors(original.spec)}
    found = {subject.canonical.get(name) or name: tensor.shape for name, tensor in subject.tensors.items()}
    if any(not tensor.optional and name not in found for name, tensor in table.items()):
        return None
    for name, shape in found.items():
        if name not in table and known_optional(name, original.spec) is None:
            return None
        if name in table and without_ones(table[name].ne) != without_ones(shape):
            return None
    return original


def take_mask(work: FixContext) -> bool:
    """Have the mask token as converting the source writes it; False without a source."""
    original = own_source(work.subject)
    if original is not None:
        work.edits.set(MASK_KEY, MetaValue(ValueType.UINT32, original.spec.mask_token_id))
    return original is not None
