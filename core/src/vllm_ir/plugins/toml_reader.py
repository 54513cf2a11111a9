"""A cursor over a parsed TOML file: it knows the key it stands at, so that every error can name it.

Which keys there are, and what they mean, is left to `manifest`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import (
    ManifestMissingKey,
    ManifestUnknownKey,
    ManifestWrongType,
    ManifestWrongValue,
    did_you_mean,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Shape:
    """What a text must look like.

    Args:
        pattern: regular expression that the whole text matches.
        wanted: the same in words.
        known: the texts there are, for suggestions; empty where they cannot be listed.
    """

    pattern: str
    wanted: str
    known: tuple[str, ...] = ()

    def check(self, text: str, file: str, key: str) -> str:
        """Return the text.

        Raises:
            ManifestWrongValue: it does not look like that.
        """
        if re.fullmatch(self.pattern, text) is None:
            raise ManifestWrongValue(
                file=file, key=key, got=repr(text), wanted=self.wanted + did_you_mean(text, self.known)
            )
        return text


@dataclass(frozen=True, slots=True)
class Cursor:
    """A value of the file and the way to it.

    Args:
        file: path of the file.
        value: what TOML holds there.
        key: dotted way to it; empty for the whole file.
    """

    file: str
    value: Any
    key: str = ""

    def table(self, known: Sequence[str], required: Sequence[str] = ()) -> dict[str, Cursor]:
        """Return the values of a table whose keys are fixed.

        Raises:
            ManifestWrongType: it is no table.
            ManifestUnknownKey: it has a key that is not known.
            ManifestMissingKey: it lacks a required one.
        """
        items = self._table()
        for name in items:
            if name not in known:
                raise ManifestUnknownKey(
                    file=self.file,
                    key=self._below(name),
                    got="an unknown key",
                    wanted=(f"one of {listed(known)}" if known else "nothing here") + did_you_mean(name, known),
                )
        for name in required:
            if name not in items:
                wanted = "the key with a value, as docs/manifest.md shows it"
                raise ManifestMissingKey(file=self.file, key=self._below(name), got="missing", wanted=wanted)
        return items

    def mapping(self, names: Shape, *, minimum: int = 0) -> dict[str, Cursor]:
        """Return the values of a table whose keys the author chooses.

        Raises:
            ManifestWrongType: it is no table.
            ManifestWrongValue: a key does not look as it should, or there are too few.
        """
        items = self._table()
        for name in items:
            names.check(name, self.file, self._below(name))
        self._enough(len(items), minimum)
        return items

    def text(self, shape: Shape) -> str:
        """Return a text of that shape."""
        if not isinstance(self.value, str):
            raise self._wrong_type(f"{shape.wanted}, in quotes")
        return shape.check(self.value, self.file, self.key)

    def texts(self, shape: Shape) -> tuple[str, ...]:
        """Return a list of at least one text of that shape, none of them twice."""
        if not isinstance(self.value, list):
            raise self._wrong_type("a list")
        self._enough(len(self.value), 1)
        items = tuple(
            Cursor(self.file, item, f"{self.key}[{index}]").text(shape) for index, item in enumerate(self.value)
        )
        twice = next((item for item in items if items.count(item) > 1), None)
        if twice is not None:
            raise ManifestWrongValue(
                file=self.file, key=self.key, got=f"a list with {twice!r} twice", wanted="each value once"
            )
        return items

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise self._wrong_type("true or false")
        return self.value

    def integer(self) -> int:
        """Return an integer; 1.0 counts as one, as it does in a JSON Schema."""
        value = self.value
        if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
            raise self._wrong_type("an integer")
        return int(value)

    def _table(self) -> dict[str, Cursor]:
        """Return the values of a table."""
        if not isinstance(self.value, dict):
            raise self._wrong_type("a table")
        return {name: Cursor(self.file, value, self._below(name)) for name, value in self.value.items()}

    def _below(self, name: str) -> str:
        """Return the way to a key of this table."""
        return f"{self.key}.{name}" if self.key else name

    def _enough(self, count: int, minimum: int) -> None:
        """Refuse an empty list or table where one entry is needed."""
        if count < minimum:
            raise ManifestWrongValue(file=self.file, key=self.key, got="empty", wanted=f"at least {minimum} entry")

    def _wrong_type(self, wanted: str) -> ManifestWrongType:
        """Return the error for a value of another type."""
        got = f"{type(self.value).__name__} {self.value!r}"
        return ManifestWrongType(file=self.file, key=self.key, got=got[:120], wanted=wanted)
