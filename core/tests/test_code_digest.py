"""What a function does, as a digest: everything that could change a result changes it, and nothing else does."""

from __future__ import annotations

import ctypes
import enum
import functools
import operator
import os
import subprocess
import sys
import textwrap
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir.code_digest import digest_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BASE = """
    import functools
    SCALE = 2.0
    TABLE = {"block": 128, "sizes": [1, 2, 3]}

    def helper(x):
        return x + 1

    def kernel(x, epsilon=1e-6):
        return helper(x) * SCALE + TABLE["block"] in {"a", "b", "c"}
"""


def build(source: str, name: str = "kernel", module: str | None = None, file: str = "<made>") -> Any:
    """Return what a module of this source calls by a name, as if it had been imported."""
    scope: dict[str, Any] = {} if module is None else {"__name__": module}
    exec(compile(textwrap.dedent(source), file, "exec"), scope)  # noqa: S102 - the test's own text
    return scope[name]


def digest(source: str, name: str = "kernel", *, reach: bool = True, file: str = "<made>") -> str:
    """Return the digest of what a source calls by a name."""
    return digest_code(build(source, name, file=file), reach=reach)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("helper(x) *", "helper(x) /"),
        ("epsilon=1e-6", "epsilon=1e-5"),
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("return x + 1", "return x + 2"),
        ('"block": 128', '"block": 256'),
        ("[1, 2, 3]", "[1, 2, 4]"),
        ('"c"}', '"d"}'),
        ("SCALE = 2.0", "SCALE = 2"),
        ("SCALE = 2.0", "SCALE = -2.0"),
        ("def kernel(x, epsilon=1e-6)", "def kernel(x, *, epsilon=1e-6)"),
    ],
)
def test_what_changes_a_result_changes_it(old: str, new: str) -> None:
    """Code, constants, defaults, globals that are read, and functions that are called take part."""
    assert old in BASE
    assert digest(BASE.replace(old, new)) != digest(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2.0", "SCALE = 2.0  # doubled"),
        ("import functools", "import functools, operator\n    UNUSED = 7"),
        ("def helper", "\n\n    def another(x):\n        return x\n\n    def helper"),
    ],
)
def test_what_changes_no_result_does_not(old: str, new: str) -> None:
    """Comments, lines and what the function never reads do not matter."""
    assert digest(BASE.replace(old, new)) == digest(BASE)


def test_the_file_that_it_was_compiled_from_does_not_matter() -> None:
    """The same source elsewhere is the same function."""
    assert digest(BASE, file="/one/place.py") == digest(BASE, file="/another/place.py")


def test_zero_has_a_sign() -> None:
    """Minus zero is another constant than zero, although the two are equal."""
    source = "def kernel(x):\n    return x * 0.0\n"
    assert digest(source) != digest(source.replace("0.0", "-0.0"))


def test_without_reach_only_constants_of_the_module_take_part() -> None:
    """What a distribution's files tell already is not read a second time, but a flag that an import computed is."""
    assert digest(BASE.replace("return x + 1", "return x + 2"), reach=False) == digest(BASE, reach=False)
    assert digest(BASE.replace("[1, 2, 3]", "[1, 2, 4]"), reach=False) == digest(BASE, reach=False)
    assert digest(BASE.replace("SCALE = 2.0", "SCALE = 3.0"), reach=False) != digest(BASE, reach=False)


def test_every_process_finds_the_same() -> None:
    """Neither the seed of hashes, nor an address, nor the order of a set reaches a digest."""
    program = (
        "from vllm_ir.code_digest import digest_code\n"
        "class Kernel:\n"
        "    names = frozenset({'a', 'b', 'c', 'd'})\n"
        "    def __init__(self): self.seen, self.other = {'x', 'y', 'z'}, object()\n"
        "    def run(self, x):\n"
        "        def inner(y): return y in {'e', 'f', 'g', 'h'} or self.other\n"
        "        return lambda z: inner(z) in (None, frozenset({1, 'i', 2.0}))\n"
        "print(digest_code(Kernel().run, reach=True))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def closing_over(value: Any) -> Callable[[Any], Any]:
    """Return a function whose closure holds a value."""
    return lambda x: (x, value)


class Colour(enum.Enum):
    """An enumeration of the program."""

    RED = 1
    BLUE = 2


@dataclass
class Config:
    """An object of the program."""

    block: int
    inner: object = None

    def read(self) -> int:
        """Return the block."""
        return self.block


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("__hidden", "size")

    def __init__(self, size: int, hidden: int) -> None:
        """Take two values."""
        self.size = size
        self.__hidden = hidden


class Words(list[str]):
    """A list of the program."""


def cyclic(value: int) -> Config:
    """Return an object that contains itself."""
    made = Config(value)
    made.inner = [made]
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        (True, 1),
        ("a", b"a"),
        (None, ()),
        ((1, (2, "x")), (1, (2, "y"))),
        ([1, [2]], [1, [3]]),
        ({"block": {"m": 64}}, {"block": {"m": 128}}),
        ({1, 2}, {1, 3}),
        (frozenset({1, "a"}), frozenset({1, "b"})),
        (Colour.RED, Colour.BLUE),
        (Config(1), Config(2)),
        (Config(1, Config(2)), Config(1, Config(3))),
        (Slotted(1, 2), Slotted(3, 2)),
        (Slotted(1, 2), Slotted(1, 3)),
        (Words(["a"]), Words(["b"])),
        (Words(["a"]), ["a"]),
        (cyclic(1), cyclic(2)),
        (functools.partial(operator.add, 1), functools.partial(operator.add, 2)),
        (functools.partial(operator.add, 1), functools.partial(operator.sub, 1)),
        (array("d", [1.0]), array("d", [2.0])),
        (bytearray(b"a"), bytearray(b"b")),
        (range(3), range(4)),
        (operator.add, operator.sub),
        (len, max),
        (int, float),
        (Config(1).read, Config(2).read),
    ],
)
def test_what_a_closure_holds_takes_part(one: object, other: object) -> None:
    """A function made by another one is told apart by the values it was made with."""
    assert digest_code(closing_over(one), reach=True) != digest_code(closing_over(other), reach=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Config(1, object()),
        lambda: Slotted(1, 2),
        lambda: cyclic(3),
        lambda: closing_over(4),
        lambda: functools.partial(closing_over, 5),
        lambda: {"a": [1, {"b": Config(2)}]},
        lambda: ctypes.c_int(7),
        object,
    ],
)
def test_equal_closures_have_one_digest(make: Callable[[], object]) -> None:
    """No address takes part."""
    one, other = make(), make()
    assert one is not other
    assert digest_code(closing_over(one), reach=True) == digest_code(closing_over(other), reach=True)


def test_a_closure_that_is_not_filled_yet() -> None:
    """A name that is bound later is no error."""

    def outer(bind: bool) -> Callable[[], Any]:
        """Return a function before what it reads is there."""
        if bind:
            value = 1

        def inner() -> Any:
            """Read it."""
            return value

        return inner

    assert digest_code(outer(bind=True), reach=True) != digest_code(outer(bind=False), reach=True)


def test_a_counter_is_state() -> None:
    """What the function itself counts, in its closure or in its module, does not make it another one."""
    source = """
        calls = 0
        def make():
            inner_calls = 0
            def kernel(x):
                global calls
                nonlocal inner_calls
                calls += 1
                inner_calls += 1
                return x, read()
            return kernel
        def read():
            return calls
        kernel = make()
    """
    kernel = build(source)
    before = digest_code(kernel, reach=True)
    kernel(1)
    assert digest_code(kernel, reach=True) == before


def test_where_a_program_lies_does_not_matter(tmp_path: Path) -> None:
    """A path in a global, an attribute or a default stands for its last part; a slash is just a text."""
    found = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        (folder / "table.bin").touch()
        found.append(digest_code(closing_over((str(folder / "table.bin"), 1)), reach=True))
    assert found[0] == found[1]
    assert digest_code(closing_over("/"), reach=True) != digest_code(closing_over("//"), reach=True)


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("kernel = lambda x: x + 1", ("+ 1", "+ 2")),
        ("import functools\ndef f(x, y): return x + y\nkernel = functools.partial(f, 1)", ("f, 1", "f, 2")),
        ("class C:\n def f(self, x): return x + 1\nkernel = C().f", ("x + 1", "x + 2")),
        ("class C:\n @classmethod\n def f(cls, x): return x + 1\nkernel = C.f", ("x + 1", "x + 2")),
        ("class C:\n @staticmethod\n def f(x): return x + 1\nkernel = C.f", ("x + 1", "x + 2")),
        ("class C:\n def __call__(self, x): return x + 1\nkernel = C()", ("x + 1", "x + 2")),
        ("class B:\n n = 1\nclass C(B):\n def __call__(self, x): return self.n\nkernel = C()", ("n = 1", "n = 2")),
        ("class C:\n @property\n def n(self): return 1\nkernel = C", ("return 1", "return 2")),
        ("import functools\n@functools.cache\ndef kernel(x): return x + 1", ("x + 1", "x + 2")),
        ("def d(f):\n def w(*a): return f(*a)\n return w\n@d\ndef kernel(x): return x + 1", ("x + 1", "x + 2")),
        (
            "import contextlib\n@contextlib.contextmanager\ndef kernel(x): yield x + 1",
            ("x + 1", "x + 2"),
        ),
        ("def kernel(x):\n def inner(y): return y + 1\n return inner(x)", ("y + 1", "y + 2")),
        ("def kernel(x): return [y + 1 for y in x]", ("y + 1", "y + 2")),
        ("class C:\n size = 1\ndef kernel(x): return C.size", ("size = 1", "size = 2")),
        ("def kernel(x):\n try: return x\n except ValueError: return 1", ("ValueError", "TypeError")),
    ],
)
def test_functions_of_every_kind(source: str, change: tuple[str, str]) -> None:
    """However a function is made, its own code takes part, and making it again gives the same digest."""
    assert digest(source) == digest(source)
    assert digest(source) != digest(source.replace(*change))


def test_a_compiled_function_has_its_name() -> None:
    """There is no code to read of one that is built in."""
    assert digest_code(len, reach=True) == digest_code(len, reach=True)
    assert digest_code(len, reach=True) != digest_code(max, reach=True)
    assert digest_code("".join, reach=True) != digest_code("".split, reach=True)


def test_a_wrapper_of_a_library_is_looked_through() -> None:
    """What somebody's just-in-time compiler made of a function holds that function, in an attribute."""

    class Jitted:
        """Stands for a library's wrapper."""

        def __init__(self, fn: Callable[..., Any]) -> None:
            """Keep the function."""
            self.fn = fn
            self.cache = {id(fn): object()}

    Jitted.__module__ = "torch.jitted"
    one, same, other = (Jitted(build(f"kernel = lambda x: x + {n}")) for n in (1, 1, 2))
    assert digest_code(closing_over(one), reach=True) == digest_code(closing_over(same), reach=True)
    assert digest_code(closing_over(one), reach=True) != digest_code(closing_over(other), reach=True)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Return a function that writes a module, in place of an earlier one; its folder is on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(name: str, source: str) -> None:
        """Write a module; the next import finds the new text, whatever the clock says."""
        for module in [each for each in sys.modules if each.startswith("made_")]:
            del sys.modules[module]
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        sys.path_importer_cache.clear()

    yield write
    for module in set(sys.modules) - before:
        if module.startswith("made_"):
            del sys.modules[module]


def test_modules_of_the_same_program_are_followed(program: Callable[[str, str], None]) -> None:
    """A helper in another file of the program takes part, by name and through its module."""

    def found(value: int, way: str) -> str:
        """Return the digest with a helper that adds a value."""
        program("made_pkg.__init__", "")
        program("made_pkg.sub.__init__", "")
        program("made_pkg.sub.helpers", f"def helper(x): return x + {value}\n")
        program("made_main", way)
        return digest_code(__import__("made_main").kernel, reach=True)

    for way in (
        "from made_pkg.sub.helpers import helper\ndef kernel(x): return helper(x)",
        "from made_pkg.sub import helpers\ndef kernel(x): return helpers.helper(x)",
        "import made_pkg.sub.helpers\ndef kernel(x): return made_pkg.sub.helpers.helper(x)",
    ):
        assert found(1, way) == found(1, way)
        assert found(1, way) != found(2, way)


def test_of_what_is_installed_the_version_takes_part(program: Callable[[str, str], None], tmp_path: Path) -> None:
    """Code with metadata beside it is told by its version and is not read."""

    def found(version: str, value: int) -> str:
        """Return the digest with an installed library of that version."""
        for old in tmp_path.glob("lib/*.dist-info/METADATA"):
            old.unlink()
        metadata = tmp_path / "lib" / f"made_lib-{version}.dist-info"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "METADATA").write_text(f"Name: made-lib\nVersion: {version}\n")
        program("lib.made_lib", f"def helper(x): return x + {value}\n")
        program("made_main", "from made_lib import helper\ndef kernel(x): return helper(x)")
        return digest_code(__import__("made_main").kernel, reach=True)

    sys.path.insert(0, str(tmp_path / "lib"))
    try:
        assert found("1.0", 1) == found("1.0", 2)
        assert found("1.0", 1) != found("1.1", 1)
    finally:
        sys.path.remove(str(tmp_path / "lib"))
