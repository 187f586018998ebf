"""Two thousand varied texts: every script, emoji, code, numbers, white space and special tokens, always the same."""

from __future__ import annotations

import random

WORDS = {
    "latin": "the quick brown fox don't we'll I'VE naïve café œuvre Straße İstanbul ﬁnally ǅungla ａｂｃ",
    "greek": "αλφάβητο Ελλάδα ΣΊΣΥΦΟΣ ὀξύς",
    "cyrillic": "привет мир съешь ещё ёлка Їжак",
    "hebrew": "שלום עולם בְּרֵאשִׁית",
    "arabic": "مرحبا بالعالم كِتَاب ٣٤٥٦",
    "indic": "नमस्ते दुनिया हिन्दी தமிழ் বাংলা १२३४ ಕನ್ನಡ",
    "thai": "สวัสดีชาวโลก ภาษาไทย ລາວ ខ្មែរ မြန်မာ",
    "han": "你好世界 中文分詞測試 〇一二三 𠀀𠮷野家 々〆",
    "kana": "こんにちは カタカナ ｶﾀｶﾅ がぎぐ ー゛",
    "hangul": "안녕하세요 세계 한국어 ㄱㄴㄷ 각",
    "other": "ᚠᛇᚻ ⵣⴰⵎ ჯიქი ԲԱՐԵՒ ሰላም ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ བོད",
    "emoji": "😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ 1️⃣ ☕︎ 🏳️‍🌈 ™️ ⌚",
    "symbols": "€ £ ½ ² ³ × ÷ ≠ ∞ ∑ → ⇔ ░ █ ♞ № ℃ ⅷ ① ⒈ ﷽ … — “quoted” «guillemets» ¿qué?",
    "accents": "e\u0301 a\u0308\u0323 n\u0303o \u0301alone z\u0335\u0322\u0321",
    "numbers": "0 7 42 007 123 1234 12345 3.14159 1,000,000 1e-9 0xDEADBEEF ٣٤ ४५",
    "code": "def f(x): return x**2 for(int i=0;i<n;++i){a[i]&=~m;} <div class='a'>&nbsp;</div> SELECT * FROM t; "
    "#include<stdio.h> fn<T:'a>() -> Vec<u8> $HOME/.bashrc http://a.b/c?d=e&f#g user@example.com C:\\\\dir",
    "controls": "\x00 \x01 \x1b[0m \x7f \u0085 \u200b \u200d \ufeff \ufffd \u2028 \ue000",
}
SPACES = (
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "      ",
    "\n\n\n ",
    "",
)


def texts(special: list[str], count: int = 2000) -> list[str]:
    """`count` texts, some of them with tokens of `special` inside."""
    rng = random.Random(20_260_827)
    pools = [pool.split(" ") for pool in WORDS.values()]
    made = [" ".join(pool) for pool in pools] + ["", " ", "\n", "a", " a", "a ", "  a  "]
    while len(made) < count:
        pool = rng.choice(pools) if rng.random() < 0.6 else [rng.choice(rng.choice(pools)) for _ in range(9)]
        parts = []
        for _ in range(rng.randint(1, 12)):
            parts.append(rng.choice(pool))
            parts.append(" " if rng.random() < 0.5 else rng.choice(SPACES))
            if special and rng.random() < 0.06:
                parts.append(rng.choice(special))
        made.append("".join(parts))
    return made
