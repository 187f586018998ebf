"""Names that llama.cpp knows for `tokenizer.ggml.pre`, grouped by what it does with them.

Source: `llama_vocab::impl::load`. Names of one group are handled alike in every respect. `default` is left out: it
loads, and drafts badly.
"""

from __future__ import annotations

import difflib

from dflash_gguf.errors import UsageError

_GROUPS: tuple[frozenset[str], ...] = tuple(
    frozenset(line.split())
    for line in (
        "minicpm5",
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "spark2_5",
        "youtu",
        "falcon",
        "mpt",
        "starcoder",
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4",
        "jais-2",
        "gemma4 granite-embed-multi-311m",
        "sarvam-moe",
        "jina-v1-en jina-v2-code roberta-bpe",
        "whitespace",
        "refact",
        "command-r",
        "qwen2 deepseek-r1-qwen kormo f2llmv2",
        "qwen35",
        "stablelm2",
        "olmo",
        "dbrx",
        "smaug-bpe",
        "poro-chat",
        "chatglm-bpe",
        "glm4 glm5",
        "viking",
        "jais",
        "tekken",
        "smollm",
        "codeshell",
        "bloom",
        "gpt3-finnish",
        "exaone",
        "exaone-moe",
        "chameleon",
        "minerva-7b",
        "megrez",
        "gpt-4o llama4 kanana2 talkie",
        "granite-embed-multi-97m",
        "tiny_aya cohere2moe",
        "superbpe",
        "trillion",
        "granite-docling",
        "bailingmoe bailingmoe2 llada-moe",
        "seed-coder",
        "hunyuan",
        "hunyuan-dense",
        "hy_v4",
        "joyai-llm",
        "kimi-k2",
        "ufakzeka",
        "grok-2",
        "afmoe",
        "laguna",
        "minimax-m2",
        "solar-open",
        "mellum2",
    )
)

#: Every known name.
PRE_NAMES: frozenset[str] = frozenset().union(*_GROUPS)


def same_pre(first: str, second: str) -> bool:
    """Whether llama.cpp splits text alike under both names."""
    return first == second or any(first in group and second in group for group in _GROUPS)


def require_known_pre(name: str) -> None:
    """Raise UsageError unless llama.cpp knows `name`."""
    if name in PRE_NAMES:
        return
    near = difflib.get_close_matches(name, sorted(PRE_NAMES), n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else "see llama.cpp's list of pre-tokenizers"
    raise UsageError(f"llama.cpp knows no pre-tokenizer {name!a}", where="--tokenizer-pre", hint=hint)
