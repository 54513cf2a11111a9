"""RECORD: which entries are the package, one digest of them, and what in it is not to be trusted."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from vllm_ir.lock.record import LIMIT, NoRecord, parse_record, read_record
from vllm_ir.plugins.walk import Folder

if TYPE_CHECKING:
    from pathlib import Path

HASH = "sha256=" + "A" * 43
PACKAGE = f"pack/__init__.py,{HASH},0\npack/kernels.so,{HASH},10\n"


def metadata(folder: Path, record: str | None, url: str | None = None) -> Folder:
    """Write the metadata of a distribution and return them."""
    place = folder / "dist-1.0.dist-info"
    place.mkdir()
    if record is not None:
        (place / "RECORD").write_text(record, encoding="utf-8")
    if url is not None:
        (place / "direct_url.json").write_text(url, encoding="utf-8")
    return Folder(str(folder), place.name)


def test_the_entries_are_the_package() -> None:
    """Native libraries beside it included, in the order of the names, with hash and size."""
    found = parse_record(f"pack.libs/libfoo.so,{HASH},7\n{PACKAGE}")
    assert [(entry.name, entry.size) for entry in found.entries] == [
        ("pack.libs/libfoo.so", 7),
        ("pack/__init__.py", 0),
        ("pack/kernels.so", 10),
    ]
    assert {(entry.algorithm, entry.digest) for entry in found.entries} == {("sha256", "00" * 32)}
    assert (found.faults, found.has_package("pack"), found.has_package("pac")) == ((), True, False)


@pytest.mark.parametrize(
    "line",
    [
        "../../../bin/vllm-ir,sha256=x,12",
        "../../Scripts/vllm-ir.exe,,",
        f"../../../bin/__pycache__/tool.cpython-311.pyc,{HASH},3",
        "pack/__pycache__/__init__.cpython-311.pyc,,",
        f"pack/old.pyc,{HASH},3",
        f"dist-1.0.dist-info/INSTALLER,{HASH},4",
        f"dist-1.0.dist-info/REQUESTED,{HASH},0",
        f"dist-1.0.dist-info/direct_url.json,{HASH},40",
        f"dist-1.0.dist-info/uv_cache.json,{HASH},40",
        f"dist-1.0.dist-info/METADATA,{HASH},40",
        "dist-1.0.dist-info/RECORD,,",
        "",
    ],
)
def test_what_differs_between_environments_does_not_count(line: str) -> None:
    """Scripts, bytecode and what an installer notes leave the digest as it is."""
    plain, more = parse_record(PACKAGE), parse_record(f"{line}\n{PACKAGE}")
    assert (more.digest, more.faults) == (plain.digest, ())


@pytest.mark.parametrize(
    "line",
    [
        f"pack/more.py,{HASH},0",
        f"dist-1.0.dist-info/entry_points.txt,{HASH},40",
        f"pack.libs/libfoo.so,{HASH},7",
        f"loader.pth,{HASH},7",
        f"pack/data.bin,sha512={'A' * 86},7",
    ],
)
def test_what_decides_who_runs_counts(line: str) -> None:
    """Entry points, libraries and lines that Python runs when it starts are in the digest."""
    assert parse_record(f"{line}\n{PACKAGE}").digest != parse_record(PACKAGE).digest


def test_order_and_sizes_do_not_matter_but_hashes_do() -> None:
    """One installer sorts, another does not."""
    one = parse_record(PACKAGE)
    assert parse_record("\n".join(reversed(PACKAGE.splitlines()))).digest == one.digest
    assert parse_record(PACKAGE.replace(",10", ",")).digest == one.digest
    assert parse_record(PACKAGE.replace("AA,10", "EA,10")).digest != one.digest


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("../../../etc/passwd", "a path that leads out of its folder"),
        ("pack/../../secret.py", "a path that leads out of its folder"),
        ("../../../bin/../../secret", "a path that leads out of its folder"),
        ("../../../../../bin/../x.pyc", "a path that leads out of its folder"),
        ("..\\\\..\\\\x.py", "a path that leads out of its folder"),
        ("/etc/passwd", "an absolute path"),
        ("\\\\server\\share\\x", "an absolute path"),
        ("C:\\x.py", "an absolute path"),
        ("C:x.py", "an absolute path"),
        ("pack//x.py", "no plain path"),
        ("./pack/x.py", "no plain path"),
        ("pack\\x.py", "no plain path"),
        ("pack/x\x1b[2J.py", "no plain path"),
        ("pack/__init__.py", "named twice"),
    ],
)
def test_a_name_that_is_no_file_of_the_package_is_a_finding(name: str, fault: str) -> None:
    """It is said, and it is none of the files that are opened."""
    found = parse_record(f"{PACKAGE}{name},{HASH},5\n")
    assert found.faults == ((name, fault),)
    assert [entry.name for entry in found.entries] == ["pack/__init__.py", "pack/kernels.so"]


@pytest.mark.parametrize("hashed", ["", "md5=1B2M2Y8AsgTpgAmY7PhCfg", "sha256=abc", "sha256=!!", "sha256"])
def test_a_file_without_a_hash_is_a_finding(hashed: str) -> None:
    """No digest can cover it; a hash that anybody can forge is none."""
    assert parse_record(f"{PACKAGE}pack/x.py,{hashed},5\n").faults == (("pack/x.py", "without a hash"),)


def test_a_field_without_end_is_no_record() -> None:
    """The reader of the format has a limit of its own."""
    with pytest.raises(NoRecord, match=r"its RECORD cannot be read \(field larger than field limit"):
        parse_record(f'"{"x" * 200_000}')


def test_it_is_read_from_the_metadata(tmp_path: Path) -> None:
    """As the installer left it."""
    assert read_record(metadata(tmp_path, PACKAGE)).digest == parse_record(PACKAGE).digest


@pytest.mark.parametrize(
    ("record", "url", "reason"),
    [
        (None, None, "its installer left no RECORD"),
        (" \n", None, "its installer left no RECORD"),
        (PACKAGE, {"url": "file:///x", "dir_info": {"editable": True}}, "it is installed editable"),
    ],
)
def test_what_has_no_digest_says_why(
    tmp_path: Path, record: str | None, url: dict[str, object] | None, reason: str
) -> None:
    """An operator reads the reason."""
    found = metadata(tmp_path, record, None if url is None else json.dumps(url))
    with pytest.raises(NoRecord, match=reason):
        read_record(found)


@pytest.mark.parametrize("text", ["{", "[]", '{"dir_info": 7}', "[" * 50_000, '{"dir_info": {"editable": "yes"}}'])
def test_a_note_of_the_installer_that_says_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    """It may be broken; the files are held against RECORD all the same."""
    found = metadata(tmp_path, PACKAGE, text)
    assert read_record(found).digest == parse_record(PACKAGE).digest


def test_a_huge_record_is_not_read(tmp_path: Path) -> None:
    """A file that claims more than any RECORD holds takes neither time nor memory."""
    found = metadata(tmp_path, None)
    with (tmp_path / found.name / "RECORD").open("wb") as stream:
        stream.truncate(LIMIT * 100)  # sparse: it takes no room
    with pytest.raises(NoRecord, match=f"its RECORD cannot be read .it holds more than {LIMIT} bytes"):
        read_record(found)


def test_a_record_that_never_ends_or_blocks_is_not_read(tmp_path: Path) -> None:
    """A pipe in its place would wait for a writer."""
    found = metadata(tmp_path, None)
    os.mkfifo(tmp_path / found.name / "RECORD")
    with pytest.raises(NoRecord, match=r"its RECORD cannot be read \(it is no plain file\)"):
        read_record(found)


def test_bytes_that_are_no_text_are_no_record(tmp_path: Path) -> None:
    """Only UTF-8 is."""
    found = metadata(tmp_path, None)
    (tmp_path / found.name / "RECORD").write_bytes(b"\xff\xfe,,")
    with pytest.raises(NoRecord, match="its RECORD cannot be read"):
        read_record(found)


def test_a_finder_of_somebody_else_is_asked(tmp_path: Path) -> None:
    """Metadata that no folder shows come through the standard library."""
    import importlib.metadata

    from vllm_ir.plugins.walk import Foreign

    found = metadata(tmp_path, PACKAGE)
    foreign = Foreign(importlib.metadata.PathDistribution(tmp_path / found.name))
    assert read_record(foreign).digest == parse_record(PACKAGE).digest
