"""The bytes of a distribution: what takes part in its digest, what does not, and that places never do."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vllm_ir import package_files
from vllm_ir.package_files import read_contents

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "vllm-ir-provider-made"
PACKAGE = "vllm_ir_provider_made"
RECORD = f"{PACKAGE}/__init__.py,,\n{PACKAGE}.libs/libgomp-1.so.1,sha256=x,4\n../../bin/tool,,\n"


def install(root: Path, version: str = "1.0", *, entry_points: str = "", record: str = RECORD) -> Path:
    """Write a distribution as an installer leaves it, and return its package."""
    package = root / PACKAGE
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text("x = 1\n")
    (package / "sub" / "_native.abi3.so").write_bytes(b"\x7fELF" + bytes(4096))
    (root / f"{PACKAGE}.libs").mkdir()
    (root / f"{PACKAGE}.libs" / "libgomp-1.so.1").write_bytes(b"gomp")
    metadata = root / f"{PACKAGE}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")
    (metadata / "RECORD").write_text(record)
    points = entry_points or f"[vllm_ir.providers]\nmade = {PACKAGE}.hooks\n"
    (metadata / "entry_points.txt").write_text(points)
    return package


@pytest.fixture
def put_on_path(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that makes one folder or archive the first on the path, in place of an earlier one."""
    before = list(sys.path)

    def put(root: Path) -> None:
        """Put it there."""
        monkeypatch.setattr(sys, "path", [str(root), *before])
        importlib.invalidate_caches()

    return put


@pytest.fixture
def package(tmp_path: Path, put_on_path: Callable[[Path], None]) -> Path:
    """Give the package of a distribution that is installed in a folder on the path."""
    root = tmp_path / "site"
    made = install(root)
    put_on_path(root)
    return made


@pytest.mark.parametrize(
    "file",
    [
        f"{PACKAGE}/sub/_native.abi3.so",
        f"{PACKAGE}/kernels.py",
        f"{PACKAGE}/sub/rms.cu",
        f"{PACKAGE}/rms.cubin",
        f"{PACKAGE}.libs/libgomp-1.so.1",
    ],
)
def test_one_byte_of_any_file_changes_it(package: Path, file: str) -> None:
    """A library that was built anew under the same Python file is another one, also beside the package."""
    path = package.parent / file
    path.write_bytes(path.read_bytes() if path.exists() else bytes(64))
    before = read_contents(NAME).digest
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert read_contents(NAME).digest != before


def test_the_last_byte_of_a_large_file_takes_part(package: Path) -> None:
    """Reading in pieces leaves none out."""
    path = package / "large.so"
    path.write_bytes(bytes(3 * package_files._CHUNK + 1))
    before = read_contents(NAME).digest
    path.write_bytes(bytes(3 * package_files._CHUNK) + b"\x01")
    assert read_contents(NAME).digest != before


def test_a_file_that_comes_goes_or_is_renamed_changes_it(package: Path) -> None:
    """The set of the files is part of what is installed."""
    seen = [read_contents(NAME).digest]
    (package / "new.py").write_text("x = 1\n")
    seen.append(read_contents(NAME).digest)
    (package / "new.py").rename(package / "other.py")
    seen.append(read_contents(NAME).digest)
    (package / "kernels.py").unlink()
    seen.append(read_contents(NAME).digest)
    assert len(set(seen)) == 4


@pytest.mark.parametrize(
    "file",
    [
        f"{PACKAGE}/__pycache__/kernels.cpython-311.pyc",
        f"{PACKAGE}/kernels.pyc",
        f"{PACKAGE}/sub/.hidden/cache.bin",
        f"{PACKAGE}/.kernels.py.swp",
        "another_package/__init__.py",
        "loose.so",
        f"{PACKAGE}-1.0.dist-info/direct_url.json",
    ],
)
def test_what_is_no_code_of_it_changes_nothing(package: Path, file: str) -> None:
    """Neither bytecode, nor hidden files, nor what others have in the same folder take part."""
    before = read_contents(NAME).digest
    path = package.parent / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"whatever")
    assert read_contents(NAME).digest == before


def test_bytecode_without_a_source_is_code(package: Path) -> None:
    """A distribution may ship bytecode alone."""
    path = package / "secret.pyc"
    path.write_bytes(b"one")
    before = read_contents(NAME).digest
    path.write_bytes(b"two")
    assert read_contents(NAME).digest != before


def test_the_version_takes_part(tmp_path: Path, put_on_path: Callable[[Path], None]) -> None:
    """Two versions with the same files are two."""
    found = []
    for version in ("1.0", "1.1"):
        install(tmp_path / version, version)
        put_on_path(tmp_path / version)
        found.append(read_contents(NAME))
    assert [each.version for each in found] == ["1.0", "1.1"]
    assert found[0].digest != found[1].digest


def test_the_same_wheel_elsewhere_has_the_same_digest(package: Path, put_on_path: Callable[[Path], None]) -> None:
    """No place takes part, so that environments and machines can share a cache."""
    before = read_contents(NAME)
    elsewhere = package.parent.with_name("quite another place")
    shutil.move(package.parent, elsewhere)
    put_on_path(elsewhere)
    assert read_contents(NAME) == before


def test_an_archive_has_the_digest_of_its_folder(package: Path, put_on_path: Callable[[Path], None]) -> None:
    """How it is packed does not matter, and its version is read out of the archive."""
    (package.parent / f"{PACKAGE}-1.0.dist-info" / "RECORD").unlink()
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "kernels.cpython-311.pyc").write_bytes(b"old")
    before = read_contents(NAME)
    archive = package.parent.with_name("site.zip")
    with zipfile.ZipFile(archive, "w") as opened:
        for path in package.parent.rglob("*"):
            opened.write(path, path.relative_to(package.parent))
    put_on_path(archive)
    assert read_contents(NAME) == before
    assert before.packages == {PACKAGE}


def test_an_editable_install_is_read_where_its_source_lies(
    tmp_path: Path, package: Path, put_on_path: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installer records only a pointer; the package is found as Python would, and has the wheel's digest."""
    shutil.rmtree(package.parent / f"{PACKAGE}.libs")
    before = read_contents(NAME)
    source, site = tmp_path / "checkout" / "src", tmp_path / "venv"
    site.mkdir()
    shutil.move(package, source / PACKAGE)
    shutil.move(package.parent / f"{PACKAGE}-1.0.dist-info", site)
    (site / f"_editable_impl_{PACKAGE}.pth").write_text(f"{source}\n")
    record = site / f"{PACKAGE}-1.0.dist-info" / "RECORD"
    record.write_text(f"_editable_impl_{PACKAGE}.pth,,\n{PACKAGE}-1.0.dist-info/METADATA,,\n")
    put_on_path(site)
    monkeypatch.setattr(sys, "path", [*sys.path, str(source)])  # as the pointer does at start-up
    assert read_contents(NAME) == before
    (source / PACKAGE / "sub" / "_native.abi3.so").write_bytes(b"built anew")
    assert read_contents(NAME).digest != before.digest


def test_a_package_below_a_namespace(tmp_path: Path, put_on_path: Callable[[Path], None]) -> None:
    """Of a namespace that several distributions share, only its own part is read."""
    install(tmp_path, entry_points="[vllm_ir.providers]\nmade = company.made.hooks\n", record="")
    ours, theirs = tmp_path / "company" / "made", tmp_path / "company" / "other"
    for part in (ours, theirs):
        part.mkdir(parents=True)
        (part / "__init__.py").write_text("")
    put_on_path(tmp_path)
    before = read_contents(NAME)
    assert before.packages == {"company"}
    (theirs / "__init__.py").write_text("changed")
    assert read_contents(NAME) == before
    (ours / "kernels.py").write_text("x = 1")
    assert read_contents(NAME) != before


def test_a_distribution_of_one_module(tmp_path: Path, put_on_path: Callable[[Path], None]) -> None:
    """A single file is read like a package."""
    install(tmp_path, entry_points="[vllm_ir.providers]\nmade = made_single\n", record="")
    module = tmp_path / "made_single.py"
    module.write_text("x = 1\n")
    put_on_path(tmp_path)
    before = read_contents(NAME)
    module.write_text("x = 2\n")
    assert read_contents(NAME).digest != before.digest
    assert before.packages == {"made_single"}


def test_a_link_back_up_ends(package: Path) -> None:
    """A folder that contains itself is read once."""
    before = read_contents(NAME)
    (package / "sub" / "up").symlink_to(package, target_is_directory=True)
    assert read_contents(NAME) == before


def test_a_linked_library_is_read(package: Path, tmp_path: Path) -> None:
    """A link to what was built elsewhere stands for its bytes."""
    built = tmp_path / "built.so"
    built.write_bytes(b"one")
    (package / "linked.so").symlink_to(built)
    before = read_contents(NAME)
    built.write_bytes(b"two")
    assert read_contents(NAME).digest != before.digest


def test_what_is_not_installed_has_no_packages() -> None:
    """A name that nobody knows has a digest of its own, and nothing was read for it."""
    contents = read_contents("vllm-ir-provider-nowhere")
    assert contents.version == "unknown"
    assert contents.packages == frozenset()
    assert contents.digest != read_contents("vllm-ir-provider-elsewhere").digest


def test_an_entry_point_to_nowhere_is_no_error(tmp_path: Path, put_on_path: Callable[[Path], None]) -> None:
    """What cannot be found cannot run either; saying so is the work of discovery."""
    install(tmp_path, entry_points="[vllm_ir.providers]\nmade = not-a.module\nother = made_missing.hooks\n")
    put_on_path(tmp_path)
    assert read_contents(NAME).packages == frozenset()


def test_every_spelling_of_a_name_is_one(package: Path) -> None:
    """Installers compare names without looking at case and hyphens."""
    assert package.is_dir()
    assert read_contents("VLLM_IR.provider_Made") == read_contents(NAME)


def test_nothing_is_imported(package: Path) -> None:
    """A distribution that raises at import has a digest."""
    (package / "__init__.py").write_text("raise RuntimeError\n")
    assert read_contents(NAME).packages == {PACKAGE}
    assert PACKAGE not in sys.modules


def test_the_core_has_a_digest_without_being_installed() -> None:
    """A source tree on the path is enough."""
    source = Path(package_files.__file__).parents[1]
    code = "from vllm_ir.package_files import read_contents; print(read_contents('vllm-ir').packages)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(source)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "frozenset({'vllm_ir'})"


def test_ten_megabytes_take_less_than_a_tenth_of_a_second(package: Path) -> None:
    """A start that waits for digests is a start that somebody turns them off for."""
    for number in range(100):
        (package / f"kernel_{number}.cubin").write_bytes(bytes(100_000))
    best = min(_seconds() for _ in range(3))
    assert best < 0.1


def _seconds() -> float:
    """Return how long one digest takes."""
    start = time.perf_counter()
    read_contents(NAME)
    return time.perf_counter() - start
