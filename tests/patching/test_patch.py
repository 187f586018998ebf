"""Edits by hand, from file to file and in place; what was not touched stays, and whatever goes wrong too."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from pathlib import Path

import pytest
from support.builders_gguf import Parts
from support.faults import NAME
from support.processes import Run, obey_permissions

import dflash_gguf
from dflash_gguf.errors import DflashError, FormatError, InputError, ModelError, OutputError, UsageError
from dflash_gguf.formats.gguf.types import ValueType
from dflash_gguf.formats.gguf.values import Array
from dflash_gguf.patching import patch
from dflash_gguf.patching.parse_values import parse_set

BLOCK = "dflash.block_size"


def sha256_of_tensors(path: Path) -> str:
    return hashlib.sha256(b"".join(raw for _, _, raw in Parts.of(path).tensors.values())).hexdigest()


def test_set_remove_rename(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    done = patch(
        file,
        out,
        sets=[f"{BLOCK}=u32:5", 'general.tags=str:["a", "b"]', "dflash.logit_scale=f32:0.5", "x.y=bool:true"],
        removes=["tokenizer.ggml.pre"],
        renames=["selector_predecessor.weight=selector.pred_codebook"],
    )
    before, after = Parts.of(file), Parts.of(out)
    pairs = dict(before.pairs)
    del pairs["tokenizer.ggml.pre"]
    assert {key: after.pairs[key] for key in pairs if key != BLOCK} == {k: v for k, v in pairs.items() if k != BLOCK}
    assert after.pairs[BLOCK].value == 5
    assert after.pairs["dflash.logit_scale"].value == 0.5
    assert after.pairs["x.y"].value is True
    tags = after.pairs["general.tags"].value
    assert isinstance(tags, Array)
    assert tags.items() == ["a", "b"]
    assert next(iter(after.pairs)) == "general.architecture"
    assert list(after.pairs).index("dflash.logit_scale") == list(after.pairs).index("tokenizer.ggml.model") - 1
    assert list(after.tensors.values()) == list(before.tensors.values())
    renamed = [("selector.pred_codebook" if n == "selector_predecessor.weight" else n) for n in before.tensors]
    assert list(after.tensors) == renamed
    assert done.sha256 == sha256_of_tensors(file) == sha256_of_tensors(out)
    assert [(c.old, c.new) for c in done.changes] == [
        ("tokenizer.ggml.pre", ""),
        ("selector_predecessor.weight", "selector.pred_codebook"),
        (BLOCK, BLOCK),
        ("", "general.tags"),
        ("", "dflash.logit_scale"),
        ("", "x.y"),
    ]


def test_there_and_back_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "1.gguf", tmp_path / "2.gguf"
    patch(file, one, sets=[f"{BLOCK}=u32:5"], removes=["dflash.attention.sliding_window"])
    patch(one, two, sets=[f"{BLOCK}=u32:{Parts.of(file).pairs[BLOCK].value}"])
    value = Parts.of(file).pairs["dflash.attention.sliding_window"].value
    patch(two, one, sets=[f"dflash.attention.sliding_window=u32:{value}"], force=True)
    assert one.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("sets", [[], ["general.architecture=str:dflash"]])
def test_nothing_to_change_is_the_identity(file: Path, tmp_path: Path, sets: list[str]) -> None:
    file.write_bytes(file.read_bytes() + b"trailing")  # not asked for, so not mended either
    out, old = tmp_path / "x.gguf", file.stat()
    done = patch(file, out, sets=sets)
    assert done.changes == ()
    assert out.read_bytes() == file.read_bytes()
    assert patch(file, sets=sets).bytes_written == 0
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (old.st_mtime_ns, old.st_ino)
    assert list(file.parent.iterdir()) == [file]


def test_in_place_only_the_header_is_written_where_it_keeps_its_size(file: Path) -> None:
    old, inode = file.read_bytes(), file.stat().st_ino
    done = patch(file, sets=[f"{BLOCK}=u32:5"])
    new = file.read_bytes()
    assert file.stat().st_ino == inode
    assert 0 < done.bytes_written <= 1024
    assert done.sha256 is None
    assert [at for at in range(len(old)) if old[at] != new[at]] == [new.index(BLOCK.encode()) + len(BLOCK) + 4]
    assert list(file.parent.iterdir()) == [file]
    patch(file, sets=[f"{BLOCK}=u32:8"])
    assert file.read_bytes() == old


def test_in_place_all_is_written_where_the_header_grows(file: Path) -> None:
    inode, tensors = file.stat().st_ino, Parts.of(file).tensors
    done = patch(file, sets=[f"general.description=str:{'x' * 500}"])
    assert file.stat().st_ino != inode
    assert done.bytes_written == file.stat().st_size
    assert Parts.of(file).tensors == tensors
    assert done.sha256 == sha256_of_tensors(file)
    assert list(file.parent.iterdir()) == [file]


def test_in_place_through_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    patch(link, sets=[f"{BLOCK}=u32:5"])
    patch(link, sets=["general.description=str:" + "x" * 500])
    assert link.is_symlink()
    assert Parts.of(file).pairs[BLOCK].value == 5


@pytest.mark.parametrize(
    ("wishes", "error", "told"),
    [
        ({"sets": ["x"]}, UsageError, "is not KEY=TYPE:VALUE"),
        ({"sets": ["x=8"]}, UsageError, "is not KEY=TYPE:VALUE"),
        ({"sets": ["x=u33:8"]}, UsageError, "is no type"),
        ({"sets": ["x=u8:256"]}, UsageError, "does not fit UINT8"),
        ({"sets": ["x=u8:-1"]}, UsageError, "does not fit UINT8"),
        ({"sets": ["x=i32:1.5"]}, UsageError, "does not fit INT32"),
        ({"sets": ["x=f32:1e39"]}, UsageError, "does not fit FLOAT32"),
        ({"sets": ["x=f32:nan"]}, UsageError, "does not fit FLOAT32"),
        ({"sets": ["x=bool:2"]}, UsageError, "does not fit BOOL"),
        ({"sets": ['x=i32:[1,"a"]']}, UsageError, "does not fit INT32"),
        ({"sets": ["x=f64:1" + "0" * 400]}, UsageError, "does not fit FLOAT64"),
        ({"sets": ["x=f64:[1" + "0" * 400 + "]"]}, UsageError, "does not fit FLOAT64"),
        ({"sets": ['x=str:["\\ud800"]']}, UsageError, "does not fit STRING"),
        ({"sets": ["x=str:\udcff"]}, UsageError, "does not fit STRING"),
        ({"sets": ["x=u32:1_000"]}, UsageError, "does not fit UINT32"),
        ({"sets": ["x=u32:\u0661"]}, UsageError, "does not fit UINT32"),
        ({"sets": ["=u8:1"]}, UsageError, "is no key"),
        ({"sets": ["é=u8:1"]}, UsageError, "is no key"),
        ({"sets": ["x=i32:1,2,3"]}, UsageError, r"does not fit INT32 \(a list is \[1,2,3\]\)"),
        ({"removes": ["dflash.block_sze"]}, UsageError, r"has no such key \(did you mean dflash\.block_size"),
        ({"removes": ["zz"]}, UsageError, "has no such key .*lists them"),
        ({"removes": ["dflash.nothing"]}, UsageError, "has no such key"),
        ({"renames": ["fc.weight"]}, UsageError, "is not OLD=NEW"),
        ({"renames": ["nothing=x"]}, UsageError, "has no such tensor"),
        ({"renames": ["fc.weight=output_norm.weight"]}, UsageError, "another tensor is"),
        ({"renames": ["fc.weight=x", "output_norm.weight=x"]}, UsageError, "another tensor is"),
        ({"renames": ["fc.weight=\udcff"]}, UsageError, "is not OLD=NEW"),
        ({"renames": ["fc.weight=a\x01"]}, UsageError, "is not OLD=NEW"),
        ({"renames": ["fc.weight=" + "x" * 64]}, FormatError, "would not be read: .* 64 bytes"),
        ({"sets": ["general.alignment=u32:48"]}, FormatError, "would not be read: 48 is not a power of two"),
        ({"sets": ["general.alignment=u32:2147483648"]}, ModelError, "expected 1 to 65,536"),
        ({"sets": ["general.alignment=u32:0"]}, ModelError, "expected 1 to 65,536"),
    ],
)
def test_wishes_that_cannot_be(
    file: Path, tmp_path: Path, wishes: dict[str, list[str]], error: type[DflashError], told: str
) -> None:
    old = file.read_bytes()
    with pytest.raises(error, match=told):
        patch(file, tmp_path / "x.gguf", **wishes)  # type: ignore[arg-type]
    with pytest.raises(error, match=told):
        patch(file, **wishes)  # type: ignore[arg-type]
    assert file.read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_another_alignment(file: Path, tmp_path: Path, alignment: int) -> None:
    out = tmp_path / "x.gguf"
    patch(file, out, sets=[f"general.alignment=u32:{alignment}"])
    assert Parts.of(out).tensors == Parts.of(file).tensors


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("u64:18446744073709551615", ValueType.UINT64, (1 << 64) - 1),
        ("i8:-128", ValueType.INT8, -128),
        ("u32:8.0", ValueType.UINT32, 8),
        ("f32:1e-6", ValueType.FLOAT32, float.fromhex("0x1.0c6f7ap-20")),
        ("f64:3", ValueType.FLOAT64, 3.0),
        ("bool:false", ValueType.BOOL, False),
        ("bool:1", ValueType.BOOL, True),
        ("str:a=b:c", ValueType.STRING, "a=b:c"),
        ("str:[not a list", ValueType.STRING, "[not a list"),
        ("str:", ValueType.STRING, ""),
        ("str:8", ValueType.STRING, "8"),
    ],
)
def test_values(text: str, kind: ValueType, value: object) -> None:
    key, parsed = parse_set(f"a.b={text}")
    assert (key, parsed.type, parsed.value) == ("a.b", kind, value)


def test_two_tensors_change_places(file: Path, tmp_path: Path) -> None:
    one, two = "selector_predecessor.weight", "selector_successor.weight"
    patch(file, tmp_path / "x.gguf", renames=[f"{one}={two}", f"{two}={one}"])
    before, after = Parts.of(file).tensors, Parts.of(tmp_path / "x.gguf").tensors
    assert (after[one], after[two]) == (before[two], before[one])


def test_floats_are_compared_as_the_file_has_them(file: Path, tmp_path: Path) -> None:
    key = "dflash.attention.layer_norm_rms_epsilon"
    value = Parts.of(file).pairs[key].value
    assert isinstance(value, float)
    assert patch(file, tmp_path / "x.gguf", sets=[f"{key}=f32:{value:.6g}"]).changes == ()
    (change,) = patch(file, tmp_path / "y.gguf", sets=["dflash.logit_scale=f32:1e-50"]).changes
    assert change.after is not None
    assert change.after.value == 0
    (change,) = patch(tmp_path / "y.gguf", tmp_path / "z.gguf", sets=["dflash.logit_scale=f32:-0.0"]).changes
    assert change.old


def test_paths_that_cannot_be(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file)
    for out, told in ((file, "is the input"), (tmp_path / "link", "is the input"), (tmp_path, "is a directory")):
        with pytest.raises(UsageError, match=told):
            patch(file, out, sets=["x=u8:1"])
    (tmp_path / "there").write_text("old")
    with pytest.raises(UsageError, match="exists already"):
        patch(file, tmp_path / "there")
    with pytest.raises(UsageError, match="no such file"):
        patch(tmp_path / "none.gguf", tmp_path / "x")


def test_a_file_of_the_hubs_cache_is_not_changed_in_place(file: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "abc"
    blob.parent.mkdir()
    file.rename(blob)
    link = tmp_path / NAME
    link.symlink_to(blob)
    with pytest.raises(UsageError, match="belongs to the Hub's cache"):
        patch(link, sets=["x=u8:1"])
    with pytest.raises(UsageError, match="belongs to the Hub's cache"):
        patch("hf://org/name/file.gguf", sets=["x=u8:1"])


def test_a_file_that_is_none(tmp_path: Path, file: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(FormatError, match="truncated"):
        patch(cut, tmp_path / "x.gguf", fixes=["all"])
    cut.write_text("<html>")
    with pytest.raises(FormatError, match="not a GGUF"):
        patch(cut, tmp_path / "x.gguf", fixes=["all"])


def test_a_source_that_shrinks_meanwhile(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shrink(*_: object, **__: object) -> None:
        os.truncate(file, 1 << 16)

    monkeypatch.setattr("dflash_gguf.patching.copy.check_room", shrink)
    with pytest.raises(InputError, match="the file ended while"):
        patch(file, tmp_path / "x.gguf", sets=["x=u8:1"])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_disk_that_lies_is_noticed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor data that arrive changed by one bit."""
    copy = os.copy_file_range

    def lie(source: int, out: int, count: int, offset: int, at: int) -> int:
        done = copy(source, out, count, offset, at)
        os.pwrite(out, bytes([os.pread(out, 1, at)[0] ^ 1]), at)
        return done

    monkeypatch.setattr("os.copy_file_range", lie)
    with pytest.raises(OutputError, match="differ from the source's"):
        patch(file, tmp_path / "x.gguf", sets=["x=u8:1"])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_copy_in_which_nothing_changes_is_compared_too(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = os.copy_file_range

    def lie(source: int, out: int, count: int, offset: int, at: int) -> int:
        done = copy(source, out, count, offset, at)
        os.pwrite(out, b"?", at + count - 1)
        return done

    monkeypatch.setattr("os.copy_file_range", lie)
    with pytest.raises(OutputError, match="differ from the source's"):
        patch(file, tmp_path / "x.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_between_file_systems_that_cannot_copy(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.copy_file_range", cannot)
    patch(file, tmp_path / "x.gguf", sets=["x=u8:1"])
    assert Parts.of(tmp_path / "x.gguf").tensors == Parts.of(file).tensors


# the command line


def test_the_command(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run("patch", file, out, "--set", f"{BLOCK}=u32:5", "--remove", "dflash.context_length", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    assert answer["changes"][1] == {"kind": "key", "rule": None, "old": BLOCK, "new": BLOCK, "before": 8, "after": 5}
    assert answer["tensor_sha256"] == sha256_of_tensors(file)
    assert answer["bytes_written"] == answer["file_size"] == out.stat().st_size
    assert "KV102" in {finding["rule"] for finding in answer["left"]}
    again = run("patch", out, "--in-place", "--fix", "KV102")
    assert again.returncode == 1  # the key is in no tensor's shape
    assert "nothing to change" in again.stdout
    assert "left: KV102 error: dflash.context_length: is missing" in again.stderr
    assert "--source" in again.stderr


def test_the_command_shows_what_it_does(run: Run, file: Path) -> None:
    done = run("patch", file, "--in-place", "--set", f"{BLOCK}=u32:5")
    assert done.stdout.startswith("dflash.block_size: 8 (uint32) → 5 (uint32)\n")
    assert "not touched" in done.stdout
    shown = run("patch", file, "--dry-run", "--set", f"{BLOCK}=u32:6")
    assert "5 (uint32) → 6 (uint32)" in shown.stdout
    assert "nothing was written (--dry-run)" in shown.stdout
    assert Parts.of(file).pairs[BLOCK].value == 5


@pytest.mark.parametrize("arguments", [[], ["out.gguf", "--in-place"]])
def test_where_to_write_is_said_once(run: Run, file: Path, arguments: list[str]) -> None:
    done = run("patch", file, *arguments, "--set", "x=u8:1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--in-place" in done.stderr


def test_disk_full(run: Run, file: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    old = file.read_bytes()
    description = "general.description=str:" + "x" * 500
    for arguments in (["out.gguf"], ["--in-place"]):
        done = run("patch", file, *arguments, "--set", description, preexec_fn=limit)
        assert done.returncode == 3, done.stderr
        assert "no room for" in done.stderr
    assert file.read_bytes() == old
    assert list(file.parent.iterdir()) == [file]
    assert list((tmp_path / "work").iterdir()) == []


def test_read_only(run: Run, file: Path) -> None:
    file.chmod(0o444)
    file.parent.chmod(0o555)
    old = file.read_bytes()
    try:
        done = run("patch", file, "--in-place", "--set", f"{BLOCK}=u32:5", preexec_fn=obey_permissions)
    finally:
        file.parent.chmod(0o755)
    assert done.returncode == 3, done.stderr
    assert "cannot be changed in place: Permission denied" in done.stderr
    assert file.read_bytes() == old


def test_the_library_function(file: Path, tmp_path: Path) -> None:
    done = dflash_gguf.patch(str(file), str(tmp_path / "x.gguf"), sets=["x.y=u8:1"])
    assert done.path == tmp_path / "x.gguf"
