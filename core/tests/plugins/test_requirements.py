"""Required libraries: installed in a fitting version and importable, found out without importing them."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.plugins.manifest import Requirement
from vllm_ir.plugins.requirements import Libraries, importable, in_range, installed_version

if TYPE_CHECKING:
    from core.tests.plugins.conftest import Site


def here(versions: dict[str, str], modules: set[str]) -> Libraries:
    """Return libraries by hand."""
    return Libraries(version=versions.get, importable=modules.__contains__)


CUPY = Requirement("cupy", ">=13", ("cupy-cuda13x", "cupy"))


@pytest.mark.parametrize(
    ("versions", "modules", "said"),
    [
        ({"cupy-cuda13x": "13.4"}, {"cupy"}, None),
        ({"cupy": "13.4"}, {"cupy"}, None),
        ({"cupy": "14.0rc1"}, {"cupy"}, None),
        ({"cupy-cuda13x": "12.0", "cupy": "13.4"}, {"cupy"}, "cupy-cuda13x 12.0 is installed"),
        ({"cupy": "12.9"}, {"cupy"}, "cupy 12.9 is installed"),
        ({"cupy": "13.4"}, set(), "cupy 13.4 is installed but Python finds no module 'cupy'"),
        ({}, set(), "cupy-cuda13x or cupy is not installed"),
        ({}, {"cupy"}, "cupy-cuda13x or cupy is not installed (a module 'cupy' of unknown origin is)"),
        ({"cupy": "a mess"}, {"cupy"}, "cupy a mess is installed"),
    ],
)
def test_the_first_installed_name_decides(versions: dict[str, str], modules: set[str], said: str | None) -> None:
    """Version and module both have to be there; a module of that name alone proves nothing."""
    refusal = here(versions, modules).refuse([CUPY], "fast", "fast-kernels")
    if said is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.got == said
        assert str(refusal) == (
            f"Provider 'fast' of fast-kernels requires cupy >=13, and {said}."
            " Install it: pip install 'cupy-cuda13x>=13'."
        )


OTHER = Requirement("tea", ">=1", ("maker-tea",))


@pytest.mark.parametrize(
    ("versions", "modules", "said"),
    [
        ({"tea": "0.13"}, {"tea"}, "maker-tea is not installed (tea 0.13 is, another package with a module 'tea')"),
        ({"tea": "0.13"}, set(), "maker-tea is not installed"),
        ({}, {"tea"}, "maker-tea is not installed (a module 'tea' of unknown origin is)"),
    ],
)
def test_another_package_of_that_name_is_told_apart(versions: dict[str, str], modules: set[str], said: str) -> None:
    """Unrelated packages share a name on the index; the metadata tell which one is there."""
    refusal = here(versions, modules).refuse([OTHER], "fast", "fast-kernels")
    assert refusal is not None
    assert refusal.got == said


def test_the_first_requirement_that_is_not_met_is_told() -> None:
    """One reason is enough, and the order is that of the manifest."""
    libraries = here({"a": "1"}, {"a"})
    refusal = libraries.refuse([Requirement("a", "", ("a",)), Requirement("b", "", ("b",)), CUPY], "p", "d")
    assert refusal is not None
    assert refusal.library == "b"


@given(st.tuples(*[st.integers(0, 30)] * 2), st.tuples(*[st.integers(0, 30)] * 2), st.tuples(*[st.integers(0, 30)] * 2))
def test_a_range_is_judged_by_numbers_not_by_text(
    low: tuple[int, ...], version: tuple[int, ...], high: tuple[int, ...]
) -> None:
    """3.10 is above 3.9, and an end with "<" is outside."""
    text = ".".join(map(str, version))
    ends = f">={'.'.join(map(str, low))},<{'.'.join(map(str, high))}"
    assert in_range(text, ends) == (low <= version < high)


@pytest.mark.parametrize("version", ["3.5.0.dev20250101", "3.5.0rc1", "3.5.0+cu130", "3.5.0.post1"])
def test_what_is_installed_counts_even_if_it_is_no_release(version: str) -> None:
    """Nightly builds are how new hardware is brought up."""
    assert in_range(version, ">=3.4,<4")


def test_what_is_installed_is_looked_up_in_this_process(site: Site) -> None:
    """Versions come from metadata, modules from the path, and nothing is imported."""
    site.metadata("synthetic-lib", "4.2")
    site.write("synthetic_lib/__init__.py", "raise RuntimeError('imported')")
    site.write("synthetic_broken/__init__.py", "raise RuntimeError('imported')")
    assert installed_version("synthetic.LIB") == "4.2"
    assert installed_version("synthetic-absent") is None
    assert importable("synthetic_lib")
    assert not importable("synthetic_absent")
    assert "synthetic_lib" not in sys.modules


def test_modules_of_strange_making_are_judged_without_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in without a specification is there; a name that is blocked is not."""
    stand_in = types.ModuleType("synthetic_stand_in")
    stand_in.__spec__ = None
    monkeypatch.setitem(sys.modules, "synthetic_stand_in", stand_in)
    monkeypatch.setitem(sys.modules, "synthetic_blocked", None)
    assert importable("synthetic_stand_in")
    assert not importable("synthetic_blocked")


def test_a_finder_that_raises_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some environments forbid imports by raising out of a finder."""

    class Forbid:
        """A finder that raises."""

        def find_spec(self, name: str, *_: object) -> None:
            """Raise for one name."""
            if name == "synthetic_forbidden":
                raise ImportError(name)

    monkeypatch.setattr(sys, "meta_path", [Forbid(), *sys.meta_path])
    assert not importable("synthetic_forbidden")
