"""The engine's own option parser on one command line, in a process of its own; prints what it understood as JSON.

usage: engine_options.py WORD…      the words of a line, the program's name first

The binding has no name for the parser, but its library exports it, and a CommonParams begins with the struct that
the parser fills. The server's options are those of the 13th example program; `--slot-save-path` proves that.
"""

from __future__ import annotations

import ctypes
import json
import sys

import xllamacpp

_HEAD = 16  # of a Python object: reference count and type
_SERVER = 12


def parse(params: xllamacpp.CommonParams, words: list[str]) -> bool:
    """Whether the engine takes these words."""
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    function = library._Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E
    function.restype = ctypes.c_bool
    values = (ctypes.c_char_p * (len(words) + 1))(*[word.encode() for word in words], None)
    return bool(function(len(words), values, ctypes.c_void_p(id(params) + _HEAD), _SERVER, None))


def main() -> None:
    probe = parse(xllamacpp.CommonParams(), ["llama-server", "--slot-save-path", ".", "-m", "x.gguf"])
    foreign = parse(xllamacpp.CommonParams(), ["llama-server", "--ppl-stride", "1", "-m", "x.gguf"])
    params = xllamacpp.CommonParams()
    taken = parse(params, sys.argv[1:])
    draft = params.speculative.draft
    understood = {
        "server": probe and not foreign,
        "taken": taken,
        "model": params.model.path,
        "hf_repo": params.model.hf_repo,
        "draft": draft.mparams.path,
        "n_max": draft.n_max,
        "p_min": draft.p_min,
        "types": [kind.name for kind in params.speculative.types],
    }
    sys.stdout.write("\nUNDERSTOOD " + json.dumps(understood) + "\n")


if __name__ == "__main__":
    main()
