"""The settings file of a deployment: `vllm-ir.toml`, or `[tool.vllm-ir]` in `pyproject.toml`, of the working folder.

No folder above is searched, so what is in force can be read beside where the process was started. A policy file is of
the same shape; it may lie anywhere, and says what may run, not what goes first. What follows is left to `policy`.
"""

from __future__ import annotations

import difflib
import stat
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import MalformedSettings, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POLICY_KEYS: Final = ("allow", "deny", "require", "strict")
"""The keys that a policy file may have."""

KEYS: Final = ("op-priority", *POLICY_KEYS)
"""The keys that a settings file may have."""

BATCH_INVARIANT: Final = "batch_invariant"
"""A property that `require` may ask of every implementation."""

REQUIREMENTS: Final = (BATCH_INVARIANT,)
"""All that `require` may ask for."""

LIMIT: Final = 1 << 20
"""Bytes that a settings file may have: nobody writes so many, and a larger one is some other file."""

_OWN: Final = "vllm-ir.toml"
_PROJECT: Final = "pyproject.toml"
_TABLE: Final = "vllm-ir"
_PLACED: Final = "Put the file there (a bind mount of one that is missing outside makes a folder), or remove it."
_NEAR: Final = 0.8
"""How like our table's name another is that was meant for it: `vllm_ir` is, `vllm` is a project's own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a settings file or a policy file says.

    Attributes:
        file: the file that was read, or None when there is none.
        op_priority: provider names in order, by op name.
        allow: who may run, as written; None when all may.
        deny: who may not, as written.
        strict: raise where a refusal would fall back.
        require: what every implementation must be declared to be.
        doubts: sentences about what is no error but looks like a mistake.
        passed_over: a project file with a table of ours that is not read, because the folder has a file of ours.
        lost: the keys of a policy in that table, which hold nobody unless `VLLM_IR_POLICY` names the file.
    """

    file: Path | None = None
    op_priority: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    strict: bool = False
    require: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    passed_over: Path | None = None
    lost: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path | None = None) -> Settings:
        """Return the settings of a folder; `vllm-ir.toml` comes before `pyproject.toml`.

        Args:
            folder: where to look; the working folder when None.

        Raises:
            MalformedSettings: the file is no regular file or no TOML, or has a key or a value that means nothing.
        """
        folder = Path.cwd() if folder is None else folder
        own, project = folder / _OWN, folder / _PROJECT
        if _stands(own):
            settings = _Table(own, _load(own, _PLACED)).settings(KEYS)
            return replace(settings, **_passed_over(project)) if _stands(project) else settings
        if not _stands(project):
            return cls()
        content = _load(project, _PLACED)
        table = _ours(content)
        return cls(doubts=_misspelling(project, content)) if table is None else _Table(project, table).settings(KEYS)

    @classmethod
    def read_policy(cls, file: Path) -> Settings:
        """Return what a policy file says: a TOML file with the keys of a policy, or a `pyproject.toml`.

        Args:
            file: its path.

        Raises:
            MalformedSettings: it is not there, is no TOML, or has a key or a value that means nothing.
        """
        content = _load(file)
        if file.name != _PROJECT:
            return _Table(file, content).settings(POLICY_KEYS)
        table = _ours(content)
        if table is None:
            near = next((f"[{name}]" for name in _misspelt(content)), None)
            raise MalformedSettings(
                file=str(file),
                problem="it has no table [tool.vllm-ir], so that nothing would be enforced",
                fix=f"{f'Rename {near}' if near else 'Write the table'}, or unset VLLM_IR_POLICY.",
            )
        return _Table(file, table).settings(POLICY_KEYS)


def _stands(file: Path) -> bool:
    """Tell whether anything has a file's name, be it a folder or a link to nowhere; reading it says what is wrong."""
    try:
        file.lstat()
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, NotADirectoryError))
    return True


def _ours(content: Mapping[str, Any]) -> Any | None:
    """Return what a project file has in our table's place, or None where it has nothing there."""
    tool = content.get("tool")
    return tool.get(_TABLE) if isinstance(tool, dict) else None


def _passed_over(project: Path) -> dict[str, Any]:
    """Return what the settings tell of a project file that is not read beside a file of ours, by attribute."""
    try:
        content = _load(project, _PLACED)
    except MalformedSettings as error:
        return {"doubts": (f"{error} It is passed over, because {_OWN} goes before it.",)}
    table, doubts = _ours(content), _misspelling(project, content)
    if not table:
        return {"doubts": doubts}
    lost = tuple(key for key in POLICY_KEYS if key in table) if isinstance(table, dict) else ()
    if not lost:
        said = "is passed over, because vllm-ir.toml goes before it. Move it there, or remove it."
        doubts = (f"{project}: [tool.{_TABLE}] {said}", *doubts)
    return {"doubts": doubts, "passed_over": project, "lost": lost}


def _misspelling(project: Path, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each table of a project that looks meant for us and is read by nobody."""
    return tuple(
        f"{project}: table [{name}] means nothing to vllm-ir and is ignored. Did you mean [tool.vllm-ir]?"
        for name in _misspelt(content)
    )


def _misspelt(content: Mapping[str, Any]) -> list[str]:
    """Return the tables of a project that nearly have the name of ours, or have it in the wrong place."""
    tool = content.get("tool", {})
    below = tool if isinstance(tool, dict) else {}
    return [
        f"{before}{name}"
        for before, tables in (("tool.", below), ("", content))
        for name, table in tables.items()
        if isinstance(table, dict)
        and (before, name) != ("tool.", _TABLE)
        and difflib.SequenceMatcher(None, name.lower(), _TABLE).ratio() >= _NEAR
    ]


def _load(file: Path, fix: str = "Name a TOML file.") -> dict[str, Any]:
    """Return the tables of a TOML file.

    Args:
        file: its path.
        fix: what to do where no regular file is there.
    """
    try:
        regular, content = file.is_file(), b""
        other = None if regular else _irregular(file)
        if other is None:
            with file.open("rb") as stream:
                content = stream.read(LIMIT + 1)
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}"
        raise MalformedSettings(file=str(file), problem=problem, fix="Mend the file, or its path.") from error
    if other is not None:
        raise MalformedSettings(file=str(file), problem=f"it is no regular file but {other}", fix=fix)
    if len(content) > LIMIT:
        problem = f"it has more than {LIMIT} bytes"
        raise MalformedSettings(file=str(file), problem=problem, fix="Shorten it, or name the file that was meant.")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"it cannot be read: {' '.join(str(error).split()).rstrip('.')}"
        raise MalformedSettings(file=str(file), problem=problem, fix="Mend the file.") from error


def _irregular(file: Path) -> str | None:
    """Return what is in a file's place and is no regular file, in words; None where nothing is there."""
    if not file.exists():
        return f"a link to {str(file.readlink())!r}, where nothing is" if file.is_symlink() else None
    mode = file.stat().st_mode
    return "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that is being checked.

    Attributes:
        file: where it stands.
        table: what TOML holds there.
    """

    file: Path
    table: Any

    def settings(self, keys: Sequence[str]) -> Settings:
        """Return the settings, or raise for the first thing that means nothing.

        Args:
            keys: those that the table may have.
        """
        if not isinstance(self.table, dict):
            raise self._error(f"vllm-ir is {self.table!r}, wanted a table", "Write [tool.vllm-ir].")
        for key in self.table:
            if key not in keys:
                raise self._unknown(key, keys)
        priority = self.table.get("op-priority", {})
        if not isinstance(priority, dict):
            raise self._error(f"op-priority is {priority!r}, wanted a table", "Write [op-priority].")
        strict = self.table.get("strict", False)
        if not isinstance(strict, bool):
            raise self._error(f"strict is {strict!r}, wanted true or false", "Write strict = true.")
        return Settings(
            file=self.file,
            op_priority={
                op: self._names(f"op-priority.{op}", value, "provider names", f'{op} = ["native"]')
                for op, value in priority.items()
            },
            allow=self._rules("allow") if "allow" in self.table else None,
            deny=self._rules("deny"),
            strict=strict,
            require=self._requirements(),
        )

    def _rules(self, key: str) -> tuple[str, ...]:
        """Return the entries of an allow or deny list."""
        example = f'{key} = ["a_provider", "another:rms_norm"]'
        return self._policy(key, "providers, or of providers with an op", example)

    def _requirements(self) -> tuple[str, ...]:
        """Return what is required."""
        example = f'require = ["{BATCH_INVARIANT}"]'
        required = self._policy("require", "properties", example)
        for name in required:
            if name not in REQUIREMENTS:
                raise self._error(
                    f"require has {name!r}, which is no property (properties: {', '.join(REQUIREMENTS)})",
                    f"{did_you_mean(name, REQUIREMENTS)} Write {example}.".strip(),
                )
        return required

    def _policy(self, key: str, what: str, example: str) -> tuple[str, ...]:
        """Return a policy's names; an entry without one, as a template leaves it, would hold nobody to anything."""
        value = self.table.get(key, [])
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, str) and not entry.strip(", \t\r\n"):
                raise self._error(f"{key} has {entry!r}, which names nothing", f"Take it out, or write {example}.")
        return self._names(key, value, what, example)

    def _names(self, key: str, value: object, what: str, example: str) -> tuple[str, ...]:
        """Return names given as a list or as one comma-separated text."""
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._error(f"{key} is {value!r}, wanted a list of {what}", f"Write {example}.")
        return tuple(dict.fromkeys(name.strip() for name in value if name.strip()))

    def _unknown(self, key: str, keys: Sequence[str]) -> MalformedSettings:
        """Return the error for a key that means nothing here."""
        if key in KEYS:
            return self._error(
                f"key {key!r} means nothing in a policy file, which says what may run and not what goes first"
                f" (keys: {', '.join(keys)})",
                "Write it in vllm-ir.toml of the working folder.",
            )
        return self._error(
            f"key {key!r} means nothing (keys: {', '.join(keys)})",
            f"{did_you_mean(key, keys)} Rename or remove it.".strip(),
        )

    def _error(self, problem: str, fix: str) -> MalformedSettings:
        """Return the error for something in this file."""
        return MalformedSettings(file=str(self.file), problem=problem, fix=fix)
