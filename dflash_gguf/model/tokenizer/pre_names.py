"""Names that llama.cpp knows for `tokenizer.ggml.pre`, grouped by what it does with them.

Source: `llama_vocab::impl::load` and `llm_tokenizer_bpe`. The names of one group have the same regexes and the same
flags (whole-word lookup, space clean-up, bos). `default` is left out: it loads, and drafts badly.
"""

from __future__ import annotations

from dflash_gguf.errors import UsageError

_GROUPS: tuple[frozenset[str], ...] = tuple(
    frozenset(line.split())
    for line in (
        "minicpm5",
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        "smaug-bpe dbrx",
        "jais-2",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3 joyai-llm hunyuan-dense hy_v4",
        "spark2_5",
        "youtu",
        "falcon",
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4 mpt olmo jais",
        "jina-v1-en jina-v2-code roberta-bpe",
        "trillion granite-docling",
        "starcoder refact codeshell exaone minerva-7b mellum2",
        "command-r smollm",
        "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2",
        "stablelm2 megrez",
        "qwen35",
        "glm4 glm5",
        "chatglm-bpe",
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        "granite-embed-multi-97m",
        "tiny_aya cohere2moe",
        "tekken",
        "kimi-k2",
        "gemma4 granite-embed-multi-311m",
        "sarvam-moe",
        "whitespace",
        "poro-chat",
        "bloom gpt3-finnish",
        "viking",
        "chameleon",
        "exaone-moe",
        "superbpe",
        "bailingmoe bailingmoe2 llada-moe",
        "seed-coder",
        "ufakzeka",
        "afmoe",
        "laguna",
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
    import difflib

    near = difflib.get_close_matches(name, sorted(PRE_NAMES), n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else "see llama.cpp's list of pre-tokenizers"
    raise UsageError(f"llama.cpp knows no pre-tokenizer {name!a}", where="--tokenizer-pre", hint=hint)
