"""Counting, processes that come to a bad end, and (marked) the real engine."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.builders_gguf import Parts
from support.executor_engine import target_gguf
from support.executor_fixture import FIXTURES
from support.measured_drafts import TARGET, faulty, prompts
from support.processes import Run

from dflash_gguf.comparison import Inputs, compare
from dflash_gguf.comparison.api import totals
from dflash_gguf.engine import BenchSettings, bench, process
from dflash_gguf.engine.api import BenchReport, Row
from dflash_gguf.engine.process import Completion, Failure, reason_of, run_engine
from dflash_gguf.engine.worker import RESULT
from dflash_gguf.errors import UsageError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.model.prompts import parse_prompts, prompt_of

JOB: dict[str, Any] = {"n_max": 7, "draft": None}


def use_worker(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> None:
    """Put a script in the engine's place."""
    script = folder / "worker.py"
    script.write_text("import json, os, sys, time\njob = json.load(sys.stdin)\n" + source)
    monkeypatch.setattr(process, "_WORKER", script)


SAYS = "sys.stderr.write({!r}); sys.stderr.flush(); "


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("os.abort()", r"the engine crashed \(SIGABRT\)"),
        (
            SAYS.format("x.cpp:1: GGML_ASSERT(n) failed\nbye\n") + "os.kill(os.getpid(), 11)",
            r"\(SIGSEGV\): x\.cpp:1: GGML_",
        ),
        ("sys.exit(3)", r"stopped \(exit 3\)"),
        ("print('RESUL')", r"stopped \(exit 0\)"),
        ("raise MemoryError('no room')", "MemoryError: no room"),
    ],
)
def test_bad_ends(source: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_worker(monkeypatch, tmp_path, source)
    done = run_engine(JOB, 600)
    assert isinstance(done, Failure)
    assert re.search(reason, done.reason), done.reason


def test_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_worker(monkeypatch, tmp_path, SAYS.format("going\n") + "time.sleep(3600)")
    for limit in (1, 10, 100, 300):  # as long as this machine takes to start it
        done = run_engine(JOB, limit)
        assert isinstance(done, Failure)
        assert done.reason.startswith(f"not done after {limit} s")
        if done.reason.endswith(": going"):
            return
    pytest.fail("it was never heard")


def test_a_crash_without_a_word_names_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_worker(monkeypatch, tmp_path, "import os\nos.abort()")
    for draft, told in (("d.gguf", "; run dflash-gguf check d.gguf --target t.gguf"), (None, "")):
        done = run_engine({**JOB, "draft": draft, "target": "t.gguf"}, 300)
        assert isinstance(done, Failure)
        assert done.reason == f"the engine crashed (SIGABRT){told}"


def test_the_reason_is_the_engines_first_error() -> None:
    log = """
0.00.013.754 I srv    load_model: loading model 'target.gguf'
0.00.028.108 E gguf_init: something else
0.00.028.109 E llama_model_load: error loading model: missing tensor 'fc.weight'
0.00.048.039 E srv    load_model: failed to load draft model
RuntimeError: Failed to init server, please check the input params.
"""
    assert reason_of(log) == "llama_model_load: error loading model: missing tensor 'fc.weight'"
    normal = "0.1 E init: failed: dflash requires ctx_other to be set (this warning is normal during memory fitting)\n"
    gdb = "warning: File x auto-loading has been declined\n57\t./nptl/futex-internal.c: No such file or directory.\n"
    place = "/build/llama.cpp/src/llama-graph.cpp:1410: GGML_ASSERT(t_layer_inp[il] != nullptr) failed\n"
    assert reason_of(normal + place + gdb) == "llama-graph.cpp:1410: GGML_ASSERT(t_layer_inp[il] != nullptr) failed"
    unmeasured = "0.1 W operator(): failed to measure the memory of the extra model, fitting without it: no\n"
    assert reason_of(normal + unmeasured + "0.2 I srv init: model loaded\n" + gdb) == ""
    assert reason_of("Traceback\n  File\nRuntimeError: it failed\n") == "RuntimeError: it failed"
    assert reason_of("") == ""


#: an engine whose speed and counts are known: 2 repeats faster and slower, one token a block beside the accepted
FAKE = f"""
draft = job["draft"] is not None
if draft and "refused" in job["draft"]:
    sys.stderr.write("0.0 E load: error loading model: no\\n")
    sys.exit(1)
def answer(prompt, speed):
    n = job["n_predict"]
    return {{"text": prompt[::-1] + ("!" if draft and "odd" in prompt else ""), "prompt_n": len(prompt),
             "predicted_n": n, "predicted_ms": n / speed * 1000 / (2 if draft else 1),
             "draft_n": job["n_max"] * 10 if draft else 0, "draft_n_accepted": 20 if draft else 0}}
runs = [[answer(prompt, speed) for prompt in job["prompts"]] for speed in (10, 30, 20)[:job["repeats"]]]
print("{RESULT}" + json.dumps(runs))
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A target, for an engine that is not real."""
    use_worker(monkeypatch, tmp_path, FAKE)
    monkeypatch.setattr("dflash_gguf.engine.api.require_engine", lambda: "1.0")
    (tmp_path / "target.gguf").write_bytes(b"GGUF")
    return tmp_path / "target.gguf"


def rows_of(report: BenchReport) -> list[tuple[str, str | None, int | None]]:
    return [(row.prompts, row.draft, row.n_max) for row in report.rows]


def test_counts_and_medians(fake: Path, files: dict[str, Path]) -> None:
    report = bench(fake, [files["bf16"]], (prompt_of("a"), prompt_of("b")), BenchSettings(n_predict=64))
    control, row = report.rows
    assert (control.draft, control.speedup, control.mean_accepted) == (None, None, None)
    assert control.tokens_per_second == pytest.approx(20)
    assert row.tokens_per_second == pytest.approx(40)
    assert row.speedup == pytest.approx(2)
    assert (row.n_max, row.drafted, row.accepted, row.generated) == (7, 140, 40, 128)
    assert row.blocks == 128 - 2 - 40
    assert row.mean_accepted == pytest.approx(40 / 86)
    assert row.same_texts == 2
    assert report.notes == ()


def test_n_max_and_p_min_make_ratios_incomparable(fake: Path, files: dict[str, Path]) -> None:
    settings = BenchSettings(n_predict=64, n_max=(3, 7, 20), p_min=0.5, contexts=(256, 512))
    report = bench(fake, [files["bf16"]], (prompt_of("a"),), settings)
    assert rows_of(report) == 2 * [("unique", None, None), *(("unique", files["bf16"].name, n) for n in (3, 7))]
    assert [row.context for row in report.rows] == [256] * 3 + [512] * 3
    notes = "\n".join(report.notes)
    assert "not comparable between rows of n_max 3, 7" in notes
    assert "n_max is clamped to 7" in notes
    assert "p_min 0.5 ends blocks early" in notes


def test_repetitive_prompts_stand_apart(fake: Path, files: dict[str, Path]) -> None:
    again = prompt_of("Again and again. " * 9)
    report = bench(fake, [files["bf16"]], (again, prompt_of("a")), BenchSettings(n_predict=64))
    assert [row.prompts for row in report.rows] == ["unique", "unique", "repetitive", "repetitive"]
    assert report.rows[3].n_prompts == 1
    assert any("never quote them alone" in note for note in report.notes)
    alone = bench(fake, [files["bf16"]], (again,), BenchSettings(n_predict=64))
    assert [row.prompts for row in alone.rows][:2] == ["unique", "unique"]


def test_a_refused_file_is_a_row(fake: Path, files: dict[str, Path], tmp_path: Path) -> None:
    bad = tmp_path / "refused.gguf"
    bad.write_bytes(b"GGUF")
    report = bench(fake, [bad, files["bf16"]], (prompt_of("a"),), BenchSettings(n_predict=64))
    assert [bool(row.error) for row in report.rows] == [False, True, False]
    assert "error loading model: no" in report.rows[1].error
    document = report.document()
    assert document["rows"][1]["tokens_per_second"] is None
    assert document["rows"][2]["speedup"] == pytest.approx(2)


def test_other_texts_than_the_controls_are_told(fake: Path, files: dict[str, Path]) -> None:
    report = bench(fake, [files["bf16"]], (prompt_of("odd"), prompt_of("a")), BenchSettings(n_predict=64))
    assert report.rows[1].same_texts == 1
    assert any("1 of 2 texts not the control's" in note for note in report.notes)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"n_predict": 1}, "-n"),
        ({"n_max": (0,)}, "--n-max"),
        ({"p_min": 2.0}, "--p-min"),
        ({"contexts": (64,)}, "--context"),
        ({"repeats": 0}, "--repeats"),
        ({"time_limit": 0.0}, "--time-limit"),
    ],
)
def test_values_out_of_range(change: dict[str, Any], where: str, fake: Path) -> None:
    with pytest.raises(UsageError, match=where):
        bench(fake, [fake], (prompt_of("a"),), replace(BenchSettings(), **change))


def test_a_row_of_an_empty_text() -> None:
    """A target that ends at once generates one token a prompt: no block, and no division by it."""
    assert Row("unique", "d", 7, 64, 2, generated=2).mean_accepted is None


def test_without_the_engine(monkeypatch: pytest.MonkeyPatch, files: dict[str, Path]) -> None:
    monkeypatch.setattr(process, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"dflash-gguf\[engine\]"):
        bench(files["bf16"], [files["bf16"]], (), BenchSettings())


# The real engine.


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("xllamacpp")
    return target_gguf(tmp_path_factory.mktemp("engine") / "target.gguf")


REAL = BenchSettings(n_predict=64, repeats=1, threads=1)


@pytest.mark.engine
def test_totals_agree_with_compare(target: Path, files: dict[str, Path]) -> None:
    """The same prompts, by the engine and by the numpy executor: within 3 %."""
    path = FIXTURES / "prompts.json"
    texts = parse_prompts(path.read_bytes(), str(path))
    report = bench(target, [files["bf16"], files["q4_k_m"]], texts, REAL)
    compared = compare(files["bf16"], files["q4_k_m"], TARGET, Inputs(texts))
    sides = ([prompt.a for prompt in compared.prompts], [prompt.b for prompt in compared.prompts])
    assert [row.error for row in report.rows] == ["", "", ""]
    for row, runs in zip(report.rows[1:], sides, strict=True):
        blocks, drafted, accepted = totals(runs)
        assert row.blocks == pytest.approx(blocks, rel=0.03)
        assert row.drafted == pytest.approx(drafted, rel=0.03)
        assert row.accepted == pytest.approx(accepted, rel=0.03)


@pytest.mark.engine
def test_the_engine_survives_nothing_but_we_do(target: Path, files: dict[str, Path], tmp_path: Path) -> None:
    """A truncated file is refused; a tap on the last block's output aborts the engine; the others are measured."""
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(files["bf16"].read_bytes()[:3_000_000])

    def tap_the_end(parts: Parts) -> None:
        parts.set_array("dflash.target_layers", ValueType.INT32, [1, 2, 4])

    aborts = faulty(files["bf16"], tmp_path / "aborts.gguf", tap_the_end)
    report = bench(target, [truncated, aborts, files["q8_0"]], prompts(3), REAL)
    control, refused, crashed, fine = report.rows
    assert not control.error
    assert "not within the file bounds" in refused.error
    assert "crashed" in crashed.error
    assert not fine.error
    assert fine.accepted > 0
    assert fine.same_texts == 1


@pytest.mark.engine
@pytest.mark.skipif(sys.platform == "win32", reason="no bound of address space there")
def test_memory_and_time_are_bounded(target: Path, files: dict[str, Path]) -> None:
    for bound, word in (({"memory": 64 << 20}, "engine"), ({"time_limit": 1e-4}, "not done after 0.0001 s")):
        report = bench(target, [files["bf16"]], prompts(3), replace(REAL, **bound))
        assert all(word in row.error for row in report.rows)


@pytest.mark.engine
def test_a_context_ladder(target: Path, files: dict[str, Path]) -> None:
    report = bench(target, [files["bf16"]], prompts(3), replace(REAL, contexts=(256, 768)))
    depths = [row.prompt_tokens for row in report.rows]
    assert [row.error for row in report.rows] == [""] * 4
    assert depths[0] == depths[1]
    assert depths[2] == depths[3]
    assert 100 < depths[0] <= 256 - 64
    assert 350 < depths[2] <= 768 - 64


@pytest.mark.engine
def test_the_command(target: Path, files: dict[str, Path], run: Run) -> None:
    common = ("--target", target, "--prompts", FIXTURES / "prompts.json", "-n", 32, "--threads", 1, "--repeats", 2)
    done = run("bench", files["bf16"], *common, "--n-max", "3,7", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    assert [row["n_max"] for row in answer["rows"]] == [None, 3, 7]
    assert answer["settings"]["warm_up"] == 1
    shown = run("bench", files["bf16"], *common)
    assert shown.stdout.startswith("| prompts | draft | n_max |")
    assert "Settings: " in shown.stdout
    assert run("bench", TARGET / "config.json", *common, "--time-limit", 60).returncode == 1


def test_usage(run: Run, tmp_path: Path) -> None:
    missing = run("bench", tmp_path / "none.gguf", "--target", tmp_path / "t.gguf", "--n-max", "x")
    assert missing.returncode == 2
    assert len(missing.stderr.strip().splitlines()) == 1


def test_completions_hold_what_the_worker_sends() -> None:
    keys = {"text", "prompt_n", "predicted_n", "predicted_ms", "draft_n", "draft_n_accepted"}
    assert keys == set(Completion.__slots__)
