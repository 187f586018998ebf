"""The built-in prompts: different tasks, and apart from them texts that repeat themselves."""

from __future__ import annotations

from dflash_gguf.model.prompts import Prompt, prompt_of

_TASKS = (
    "Write a Python function that merges two sorted lists into one sorted list, with a docstring and two tests.\n",
    "A train leaves at 9:40 and arrives at 13:05 after 246 km. Work out its mean speed in km/h, step by step.\n",
    "Explain to a gardener why leaves turn red in autumn, in two short paragraphs.\n",
    "List the planets of the solar system as JSON, each with its name, its number of moons and one remark.\n",
    "Translate into German: The harbour was quiet until the ferry came round the point with its lights on.\n",
    "Write the minutes of a meeting in which three neighbours agree to share one lawn mower.\n",
)
_REPEATED = (
    "The quick brown fox jumps over the lazy dog. " * 12,
    "1. All work and no play makes Jack a dull boy.\n" + "All work and no play makes Jack a dull boy.\n" * 12,
)

UNIQUE: tuple[Prompt, ...] = tuple(map(prompt_of, _TASKS))
REPETITIVE: tuple[Prompt, ...] = tuple(map(prompt_of, _REPEATED))


def sets_of(prompts: tuple[Prompt, ...]) -> dict[str, tuple[Prompt, ...]]:
    """Prompts by kind, `unique` first. A repetitive text is never alone: the built-in tasks stand beside it."""
    unique = tuple(prompt for prompt in prompts if not prompt.repetitive)
    repetitive = tuple(prompt for prompt in prompts if prompt.repetitive)
    sets = {"unique": unique or UNIQUE, "repetitive": repetitive}
    return {name: held for name, held in sets.items() if held}
