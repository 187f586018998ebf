"""`python -m dflash_gguf`."""

from __future__ import annotations

from dflash_gguf.cli import main

if __name__ == "__main__":
    main()
