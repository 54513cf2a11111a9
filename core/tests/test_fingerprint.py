"""Digests: what changes them, that they are worked out once, and that no place takes part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import fingerprint, package_files
from vllm_ir.code_digest import digest_code
from vllm_ir.fingerprint import (
    device_architecture,
    distribution_digest,
    implementation_digest,
    source_digest,
)
from vllm_ir.implementation import IrOpImpl, implements
from vllm_ir.platforms.platform import Device, Platform
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PACKAGE = "vllm_ir_provider_digested"
NAME = "vllm-ir-provider-digested"
KERNELS = """
    from vllm_ir import implements

    def predicate(x):
        return True

    @implements("silu_and_mul", provider="fake", supports_args=predicate)
    def silu_and_mul(x):
        return x + 1
"""


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """Give every test a process that has worked out nothing yet."""
    fingerprint.forget()
    yield
    fingerprint.forget()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder on the path in which a distribution with one kernel is installed."""
    root = tmp_path / "site"
    package = root / PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernels.py").write_text(textwrap.dedent(KERNELS))
    (package / "_native.abi3.so").write_bytes(b"\x7fELF" + bytes(1000))
    set_version(root, "1.0")
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return root


def set_version(root: Path, version: str) -> None:
    """Write the metadata of a version, in place of those of another."""
    for old in root.glob("*.dist-info"):
        shutil.rmtree(old)
    metadata = root / f"{PACKAGE}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {NAME}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[vllm_ir.providers]\nfake = {PACKAGE}.hooks\n")


def brought(site: Path) -> str:
    """Return the digest of the kernel as a process would find it that starts now."""
    for name in [each for each in sys.modules if each.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.path_importer_cache.clear()
    fingerprint.forget()
    __import__(f"{PACKAGE}.kernels")
    impl = sys.modules[f"{PACKAGE}.kernels"].silu_and_mul
    assert str(site) in impl.where
    return implementation_digest(replace(impl, distribution=NAME))


def test_a_changed_library_under_the_same_python_file_changes_it(site: Path) -> None:
    """A provider that was upgraded in place is another one: a cache must not serve what was compiled with the old."""
    before = brought(site)
    assert brought(site) == before
    library = site / PACKAGE / "_native.abi3.so"
    content = bytearray(library.read_bytes())
    content[500] ^= 1
    library.write_bytes(content)
    assert brought(site) != before


def test_the_version_of_the_distribution_takes_part(site: Path) -> None:
    """An upgrade that changes no file of the package is still an upgrade."""
    before = brought(site)
    set_version(site, "1.1")
    assert brought(site) != before


def test_any_file_of_its_package_takes_part_and_none_beside_it(site: Path) -> None:
    """A helper module may hold what the kernel runs; another distribution does not."""
    before = brought(site)
    (site / "another_package").mkdir()
    (site / "another_package" / "__init__.py").write_text("")
    (site / PACKAGE / "__pycache__").mkdir(exist_ok=True)
    (site / PACKAGE / "__pycache__" / "kernels.cpython-311.pyc").write_bytes(b"old")
    assert brought(site) == before
    (site / PACKAGE / "helpers.py").write_text("x = 1\n")
    assert brought(site) != before


def test_the_same_distribution_elsewhere_has_the_same_digest(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two environments with one wheel share a cache."""
    before = brought(site)
    elsewhere = site.with_name("another environment")
    shutil.move(site, elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))
    assert brought(elsewhere) == before


def kernel(x: Any) -> Any:
    """Stand for a kernel."""
    return x


def refuse(x: Any) -> Unsupported:
    """Refuse every call."""
    return Unsupported(f"not {x}")


def declared(**changes: Any) -> IrOpImpl:
    """Return an implementation with some fields of its own."""
    fields: dict[str, Any] = {"op_name": "silu_and_mul", "provider": "fake", "impl_fn": kernel}
    return IrOpImpl(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"op_name": "gelu_and_mul"},
        {"provider": "other"},
        {"impl_fn": lambda x: x + 1},
        {"supported": Unsupported("not here")},
        {"predicate": refuse},
        {"predicate": lambda x: x is None},
        {"inplace": True},
        {"batch_invariant": True},
        {"devices": frozenset({"cpu"})},
        {"devices": frozenset()},
        {"distribution": "vllm-ir-provider-nowhere"},
        {"activation_indices": (0,)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_part_of_a_declaration_takes_part(changes: dict[str, Any]) -> None:
    """Whatever decides who runs, on what and how, makes another implementation."""
    assert implementation_digest(declared(**changes)) != implementation_digest(declared())


def test_the_functional_form_takes_part() -> None:
    """A graph that may not write to the activations runs it, so another one is another kernel."""
    forms = [declared(inplace=True, functional=form) for form in (None, lambda x: x + 2, lambda x: x + 3)]
    assert len({implementation_digest(form) for form in forms}) == len(forms)


def test_where_it_was_declared_takes_no_part() -> None:
    """A line that moved, or another folder, is no other kernel."""
    assert implementation_digest(declared(where="a.py:1")) == implementation_digest(declared(where="b.py:2"))


def test_the_values_that_a_closure_holds_take_part() -> None:
    """One function that makes kernels of several sizes makes several kernels."""

    def make(block: int) -> IrOpImpl:
        """Declare a kernel of a block size."""

        @implements("silu_and_mul", provider="fake", supports_args=lambda x: x == block)
        def kernel(x: Any) -> Any:
            """Stand for a kernel."""
            return x * block

        return kernel

    assert implementation_digest(make(64)) == implementation_digest(make(64))
    assert implementation_digest(make(64)) != implementation_digest(make(128))


def test_the_function_of_a_distribution_that_is_not_among_its_files_is_read() -> None:
    """A kernel that was declared by a program for an installed distribution cannot be told by that one's files."""
    source = "def helper(x): return x + {}\ndef kernel(x): return helper(x)"
    found = []
    for value in (1, 1, 2):
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(source.format(value), scope)  # noqa: S102 - the test's own text
        found.append(implementation_digest(declared(impl_fn=scope["kernel"], distribution="vllm-ir")))
    assert found[0] == found[1]
    assert found[1] != found[2]


def test_files_are_read_once_whatever_the_number_of_threads(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of graphs and several threads ask for the digests of one process."""
    brought(site)
    impls = [
        replace(sys.modules[f"{PACKAGE}.kernels"].silu_and_mul, distribution=NAME, inplace=flag)
        for flag in (True, False)
    ]
    fingerprint.forget()
    read: list[str] = []
    hash_file = package_files.hash_file

    def counted(path: str) -> bytes:
        """Note the path and read the file."""
        read.append(path.rpartition(os.sep)[2])
        return hash_file(path)

    monkeypatch.setattr(package_files, "hash_file", counted)
    start = threading.Barrier(8)
    found: set[tuple[str, ...]] = set()

    def ask() -> None:
        """Ask for everything at the same time as the others."""
        start.wait()
        for _ in range(10):
            found.add((distribution_digest(NAME), *map(implementation_digest, impls)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read) == ["__init__.py", "_native.abi3.so", "kernels.py"]
    assert len(found) == 1
    assert len(set(found.pop())) == 3


def test_a_second_look_at_a_function_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a function or class is worked out once."""
    worked: list[object] = []

    def counted(source: Any, *, reach: bool) -> str:
        """Note the function and work it out."""
        worked.append(source)
        return digest_code(source, reach=reach)

    monkeypatch.setattr(fingerprint, "digest_code", counted)
    assert len({source_digest(kernel) for _ in range(5)} | {source_digest(Platform) for _ in range(5)}) == 2
    assert worked == [kernel, Platform]


def test_a_function_that_is_gone_is_forgotten() -> None:
    """A program that makes passes by the thousand does not keep them for their digests."""

    def made(x: Any) -> Any:
        """Stand for a pass."""
        return x

    source_digest(made)
    known = fingerprint._SOURCES._facts
    assert made in known
    before = len(known)
    del made
    assert len(known) == before - 1


def test_callables_of_every_kind_have_a_digest() -> None:
    """Bound methods, objects that cannot be hashed, and compiled functions can be kernels and passes."""

    class Unhashable:
        """A callable that compares by value."""

        __hash__ = None  # type: ignore[assignment]

        def __init__(self, size: int) -> None:
            """Keep a size."""
            self.size = size

        def __eq__(self, other: object) -> bool:
            return True

        def __call__(self, x: Any) -> Any:
            """Stand for a kernel."""
            return x * self.size

    found = [source_digest(each) for each in (Unhashable(1), Unhashable(2), Unhashable(1).__call__, len, Unhashable)]
    assert len(set(found)) == 5
    assert source_digest(Unhashable(1)) == found[0]


def test_a_class_is_what_its_methods_and_bases_do() -> None:
    """A pass that inherits what it does changes with what it inherits."""

    def make(base: str, own: str) -> type:
        """Define a class and its base."""
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(f"class B:\n def f(self): return {base}\nclass C(B):\n def g(self): return {own}", scope)  # noqa: S102
        made: type = scope["C"]
        return made

    found = {source_digest(make(base, own)) for base in "12" for own in "34"}
    assert len(found) == 4
    assert source_digest(make("1", "3")) in found


@pytest.mark.parametrize(
    "other",
    [
        Platform(name="cuda", device_type="cuda", devices=[Device("H100", (9, 1))]),
        Platform(name="cuda", device_type="cuda", devices=[Device("H200", (9, 0))]),
        Platform(name="cuda", device_type="cuda", devices=[Device("H100", (9, 0)), Device("L4", (8, 9))]),
        Platform(name="rocm", device_type="cuda", devices=[Device("H100", (9, 0))]),
        Platform(name="rocm", device_type="cuda", devices=[Device("H100", None, "gfx942")]),
        Platform(name="npu", device_type="npu", devices=[Device("H100", (9, 0))]),
    ],
)
def test_another_architecture_has_another_digest(other: Platform) -> None:
    """Kernels are compiled for a device."""
    assert device_architecture(other) != device_architecture(hopper())


def hopper(count: int = 1, **facts: Any) -> Platform:
    """Return a machine with some equal devices."""
    return Platform(name="cuda", device_type="cuda", devices=[Device("H100", (9, 0))] * count, **facts)


def test_how_many_devices_there_are_and_their_driver_do_not_matter() -> None:
    """A cache serves workers that see one device and those that see eight."""
    assert device_architecture(hopper()) == device_architecture(hopper(8, driver="570.1", torch_build="2.13"))
    mixed = [Device("H100", (9, 0)), Device("L4", (8, 9))]
    platforms = [Platform(name="cuda", device_type="cuda", devices=order) for order in (mixed, mixed[::-1])]
    assert len(set(map(device_architecture, platforms))) == 1


def test_every_process_finds_the_same(site: Path) -> None:
    """Neither the seed of hashes nor an address nor who asks first reaches a digest."""
    program = (
        f"from dataclasses import replace; from {PACKAGE}.kernels import silu_and_mul as impl\n"
        "from vllm_ir.fingerprint import *\nfrom vllm_ir import fingerprint as f, platforms\n"
        f"impl = replace(impl, distribution={NAME!r}, devices=frozenset({{'cpu', 'cuda', 'xpu', 'npu'}}))\n"
        "print(f.implementation_digest(impl), f.source_digest(f.Memo), f.device_architecture(platforms.detect()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1
    assert [len(each) for each in found.pop().split()] == [64, 64, 64]


def test_digests_are_sha256_in_hex(site: Path) -> None:
    """A reader may compare them with those that other tools print."""
    found = [brought(site), distribution_digest(NAME), source_digest(kernel), device_architecture(hopper())]
    assert [len(each) for each in found] == [64] * 4
    assert all(int(each, 16) for each in found)


def op_digest(native: Callable[..., Any], fake: Callable[..., Any] | None = None, **options: Any) -> str:
    """Return the digest of an op that is declared and never registered."""
    torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")
    from vllm_ir.declaration import OpDeclaration
    from vllm_ir.op import IrOp

    native.__annotations__ = {"x": torch.Tensor, "epsilon": float, "return": torch.Tensor}
    wanted = {"activations": None, "allow_inplace": False, "batch_invariant": False, **options}
    nobody: Any = None
    op = IrOp(OpDeclaration.read(native, name="digested", where="", **wanted), nobody, nobody)
    if fake is not None:
        op.register_fake(fake)
    return fingerprint.native_digest(op)


def test_the_meaning_of_an_op_has_a_digest() -> None:
    """Native, its defaults, what may be donated, and a fake of its own take part."""

    def make(value: int, default: float = 1.0) -> Callable[..., Any]:
        """Return a native function."""

        def digested(x: Any, epsilon: float = default) -> Any:
            """Stand for a native function."""
            return x + value + epsilon

        return digested

    def fake(x: Any, epsilon: float = 1.0) -> Any:
        """Return something of the right shape."""
        return x.new_empty(x.shape) if epsilon else x

    base = op_digest(make(1))
    assert op_digest(make(1)) == base
    others = [
        op_digest(make(2)),
        op_digest(make(1, 2.0)),
        op_digest(make(1), allow_inplace=True),
        op_digest(make(1), batch_invariant=True),
        op_digest(make(1), activations=[]),
        op_digest(make(1), fake=fake),
    ]
    assert len({base, *others}) == 7
