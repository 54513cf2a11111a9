"""Objects that are no code: what tells them apart, and that nothing of them is run or left to an address."""

from __future__ import annotations

import ctypes
import sys
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import opaque

if TYPE_CHECKING:
    from pathlib import Path


class Base:
    """An object with a slot and no dictionary."""

    __slots__ = ("__hidden", "empty", "shown")

    def __init__(self) -> None:
        """Fill two of the slots."""
        self.__hidden, self.shown = 1, 2


class Derived(Base):
    """One that adds a dictionary."""

    def __init__(self) -> None:
        """Add an attribute."""
        super().__init__()
        self.added = 3


def test_attributes_come_in_the_order_of_their_names() -> None:
    """Slots of every base, filled ones only, and the dictionary."""
    assert list(opaque.attributes(Derived())) == [("_Base__hidden", 1), ("added", 3), ("shown", 2)]
    assert list(opaque.attributes(object())) == []


def test_what_a_wrapper_wraps() -> None:
    """The function and the name, and nothing else of an object that may hold anything."""

    class Wrapper:
        """Stands for a library's."""

        def __init__(self) -> None:
            """Hold a function and a cache."""
            self.fn, self.cache, self.func = len, {1: object()}, "not callable but a text"

    assert dict(opaque.wrapped(Wrapper())) == {"fn": len, "func": "not callable but a text"}


def test_nothing_of_a_foreign_object_runs() -> None:
    """A property may do anything."""

    class Trap:
        """Raises when it is asked."""

        @property
        def fn(self) -> None:
            """Raise."""
            raise AssertionError

    assert list(opaque.wrapped(Trap())) == []


def test_the_bytes_of_an_array() -> None:
    """Values, type and shape; of a large one not the bytes."""
    assert opaque.facts(array("d", [1.0])) != opaque.facts(array("d", [2.0]))
    assert opaque.facts(array("d", [1.0])) != opaque.facts(array("q", [0x3FF0000000000000]))
    assert opaque.facts(bytearray(b"a")) == opaque.facts(bytearray(b"a"))
    assert len(opaque.facts(bytearray(1 << 21))) < 100


def test_no_address_takes_part() -> None:
    """What ctypes makes holds addresses."""
    assert opaque.facts(ctypes.pointer(ctypes.c_int(1))) == b""
    assert opaque.facts(ctypes.CFUNCTYPE(None)(print)) == b""
    assert opaque.facts(object()) == b""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="copies the library of a running Linux process")
def test_the_bytes_of_a_loaded_library(tmp_path: Path) -> None:
    """A library that was built anew under the same name is another one, and its folder does not matter."""
    import _ctypes
    import shutil

    found = []
    for name, more in (("one", b""), ("same", b""), ("other", b"\0")):
        copy = tmp_path / name / "kernels.so"
        copy.parent.mkdir()
        shutil.copy(_ctypes.__file__, copy)
        copy.write_bytes(copy.read_bytes() + more)
        found.append(opaque.facts(ctypes.CDLL(str(copy))))
    assert found[0] == found[1]
    assert found[1] != found[2]


def test_tensors() -> None:
    """Values, dtype and shape of a small plain one; of others what can be told without running anything."""
    torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

    def told(value: Any) -> bytes:
        """Return what is told of it."""
        return opaque.facts(value)

    assert told(torch.ones(2)) == told(torch.ones(2))
    assert told(torch.ones(2)) != told(torch.zeros(2))
    assert told(torch.ones(2)) != told(torch.ones(1, 2))
    assert told(torch.ones(2)) != told(torch.ones(2, dtype=torch.float64))
    assert told(torch.nn.Parameter(torch.ones(2))) != told(torch.nn.Parameter(torch.zeros(2)))
    assert told(torch.ones(2, 3).t()) != told(torch.ones(3, 3).t())
    assert len(told(torch.ones(1 << 20))) < 100
    assert told(torch.empty(0)) != told(torch.empty(0, 1))
    assert told(torch.ones(2, device="meta")) == told(torch.zeros(2, device="meta"))
    assert told(torch.float32) != told(torch.float16)
    assert told(torch.device("cpu")) != told(torch.device("cuda", 1))
    assert told(torch.contiguous_format) != told(torch.channels_last)
