"""One block after 64 context positions at GLM-5.3-Flash's dims: our executor against z-lab's torch model in float32.

usage: python benchmarks/executor.py FOLDER --torch-python PYTHON [--rounds 7]

PYTHON has torch and `dflash[local]`. Both models are loaded (15 GB in all), then asked in turn for the same work:
64 positions of context, a block of 8, the head over 154,880 tokens, the selector's walk. FOLDER gets the inputs
(2.4 GB) and the GGUF. The second row of ours keeps no more than --memory 1G of weights and dequantizes the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import inputs
from timing import verdict

from dflash_gguf.conversion import ConvertOptions, convert

HERE = Path(__file__).parent
BOUND = 1.0


class Worker:
    """A process that does the work once for every line it is sent, and answers with one JSON line."""

    def __init__(self, *command: str | Path) -> None:
        self.name = " ".join(str(part) for part in command)
        words = [str(part) for part in command]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers: list[dict[str, float]] = []
        self._read()  # loaded

    def once(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.answers.append(self._read())

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended")
        answer: dict[str, float] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    full, _, target = inputs.make(options.folder)
    file = options.folder / "executor-bf16.gguf"
    if not file.exists():
        convert(full, target, ConvertOptions(types=("bf16",), out=str(file)))
    ours = HERE / "executor_block.py"
    workers = {
        "torch, float32": Worker(options.torch_python, "-P", "-W", "ignore", HERE / "executor_torch.py", full),
        "executor, --memory 9G": Worker(sys.executable, ours, file, str(9 << 30)),
        "executor, --memory 1G": Worker(sys.executable, ours, file, str(1 << 30)),
    }
    for number in range(options.rounds + 1):  # the first round fills the caches and does not count
        for worker in workers.values():
            worker.once()
        print(f"round {number} of {options.rounds}", file=sys.stderr)
    print("| model | median s | fastest s | peak MB |\n|---|---|---|---|")
    medians = {}
    for name, worker in workers.items():
        seconds = [answer["seconds"] for answer in worker.answers[1:]]
        medians[name] = statistics.median(seconds)
        print(f"| {name} | {medians[name]:.3f} | {min(seconds):.3f} | {worker.answers[-1]['peak_mb']:.0f} |")
        worker.close()
    torch, kept, _ = medians.values()
    sys.exit(0 if verdict("executor / torch", kept / torch, BOUND) else 1)


if __name__ == "__main__":
    main()
