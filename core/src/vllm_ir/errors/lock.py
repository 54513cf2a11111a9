"""What is read when a lock cannot be read or written, and when a machine is not what was locked."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vllm_ir.errors.base import ConfigurationError, ProviderError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a machine is not what was locked.

    Args:
        what: it is about.
        locked: what the lock says.
        found: what is here.
        mend: a sentence with the command or the line that ends the difference.
        pinned: whether it fails; False for what is only recorded.
    """

    what: str
    locked: str
    found: str
    mend: str
    pinned: bool = True

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.what}: locked {self.locked}, found {self.found}. {self.mend}"


def changed_order(op: str, mode: str, locked: Sequence[str], found: Sequence[str]) -> Difference:
    """Return the difference of an order that a process has from the one that was locked.

    Args:
        op: whose order it is.
        mode: "eager" or "compiling".
        locked: provider names.
        found: provider names.
    """
    compiling = mode == "compiling"
    asked, flags = ", compiling=True" * compiling, f" --static{' --compiling' * compiling}"
    return Difference(
        f"op {op}, {mode}",
        ", ".join(locked) or "nothing that may run",
        ", ".join(found) or "nothing that may run",
        f"See who put it there: vllm_ir.explain({op!r}{asked}) in the process, or vllm-ir explain {op}{flags}."
        " Neither a program nor a flag may change what is locked.",
    )


class LockMismatch(SelectionError):
    """A process that is not what its lock says, so that nothing may run in it."""

    def __init__(self, *, file: str, differences: Sequence[str]) -> None:
        self.file, self.differences = file, tuple(differences)
        count = len(differences)
        told = " ".join(f"({number}) {each}" for number, each in enumerate(differences, 1))
        super().__init__(
            f"This process is not what VLLM_IR_LOCK={file} locks, so no op runs:"
            f" {count} {'difference' if count == 1 else 'differences'}. {told}"
            f" `vllm-ir check --lock {shlex.quote(file)}` tells more.",
            file=file,
            differences=tuple(differences),
        )


class LockUnreadable(ConfigurationError):
    """A lock file that is missing, too large, or no file; what to do is told where writing it would not help."""

    def __init__(self, *, file: str, reason: str, fix: str | None = None) -> None:
        self.file, self.reason, self.fix = file, reason, fix
        told = fix or f"Write it with `vllm-ir lock --lock {shlex.quote(file)}`, or name another file."
        super().__init__(f"{file} cannot be read: {reason}. {told}", file=file, reason=reason, fix=fix)


class LockUnwritable(ConfigurationError):
    """A lock that could not be written; what was there before is there still."""

    def __init__(self, *, file: str, reason: str, fix: str | None = "Make room there") -> None:
        self.file, self.reason, self.fix = file, reason, fix
        told = f"{fix}, or name another file" if fix else "Name another file"
        super().__init__(
            f"{file} was not written: {reason}. What was there before is unchanged. {told}: --lock FILE.",
            file=file,
            reason=reason,
            fix=fix,
        )


class MalformedLock(ConfigurationError):
    """A lock file whose content is not a lock's."""

    def __init__(self, *, file: str, key: str, got: str, wanted: str) -> None:
        self.file, self.key, self.got, self.wanted = file, key, got, wanted
        super().__init__(
            f"{file}: {key or 'the file'} is {got}, wanted {wanted}."
            " A lock is not written by hand; take it from version control, or remove it and write it anew with"
            f" `vllm-ir lock --lock {shlex.quote(file)}`.",
            file=file,
            key=key,
            got=got,
            wanted=wanted,
        )


class Unlockable(ConfigurationError):
    """Distributions of which no digest can be taken, so that a lock would not hold them.

    Args:
        distributions: name and reason of each.
        fixes: sentences that install their wheels, without the dot.
    """

    def __init__(self, *, distributions: Sequence[tuple[str, str]], fixes: Sequence[str]) -> None:
        self.distributions, self.fixes = tuple(distributions), tuple(fixes)
        told = "; ".join(f"{name}: {reason}" for name, reason in distributions)
        super().__init__(
            f"No digest can be taken of {told}. {'. '.join(fixes)}. Or lock without a digest by --allow-editable;"
            " VLLM_IR_LOCK never accepts such a lock.",
            distributions=tuple(distributions),
            fixes=tuple(fixes),
        )


class NotLocked(ProviderError):
    """A distribution that the lock in force does not name, so that it is not loaded."""

    kind: ClassVar[str] = "not in the lock"
    fault: ClassVar[bool] = False

    def __init__(self, *, distribution: str, file: str, command: str | None = None) -> None:
        self.distribution, self.file, self.command = distribution, file, command
        told = command or f"vllm-ir lock --lock {shlex.quote(file)}"
        super().__init__(
            f"Distribution {distribution} is not in VLLM_IR_LOCK={file}, so it is not loaded."
            f" To use it, write the lock anew with `{told}`.",
            distribution=distribution,
            file=file,
            command=command,
        )
