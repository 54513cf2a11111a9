"""A lock in force: what a process that was started with VLLM_IR_LOCK may load, and that it is what was locked.

Files are held against the lock before anything is imported. What only loading shows, who implements an op after all
and which order a hook wants, is held against it before the first op runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ir import orders
from vllm_ir.errors import Difference, LockMismatch, NotLocked
from vllm_ir.landscape import Pins
from vllm_ir.lock.anew import write_command
from vllm_ir.lock.comparing import compare, missing_platform
from vllm_ir.lock.document import MODES
from vllm_ir.lock.lock_file import read_lock
from vllm_ir.lock.taking import platform_key, take
from vllm_ir.log import logger
from vllm_ir.names import normalise
from vllm_ir.plugins.description import CORE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ir.dispatch import Candidate
    from vllm_ir.landscape import Landscape
    from vllm_ir.lock.document import Lock
    from vllm_ir.op import IrOp
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.static import Survey
    from vllm_ir.preferences import Preferences


@dataclass(frozen=True, slots=True)
class Enforcement:
    """A lock in force; discovery asks it.

    Args:
        file: the file, as the variable names it.
        lock: what it says.
        preferences: what users asked for.
    """

    file: str
    lock: Lock
    preferences: Preferences

    def refuse(self, distribution: str) -> NotLocked | None:
        """Return why a distribution is not loaded, or None where it is in the lock; of the core `verify` says it."""
        if normalise(distribution) in (*self.lock.distributions, CORE):
            return None
        # A process runs on a machine that the lock has a section for, so one that is alone needs no name.
        here = next(iter(self.lock.platforms)) if len(self.lock.platforms) == 1 else None
        command = write_command(self.file, self.lock.platforms, here)
        return NotLocked(distribution=distribution, file=self.file, command=command)

    def verify(self, found: Survey) -> None:
        """Hold what files tell against the lock; nothing has been imported yet.

        Args:
            found: what is installed, without what `refuse` leaves out.

        Raises:
            LockMismatch: they are not what was locked, with every difference.
        """
        differences = compare(self.lock, take([found], self.preferences), enforced=True, file=self.file)
        self._stop(each for each in differences if each.pinned)
        for each in differences:
            logger.info("%s: %s", self.file, each)

    def confirm(self, landscape: Landscape, ops: Iterable[IrOp]) -> Landscape:
        """Hold what loading found against the lock, and return it with what the lock pins from now on.

        Args:
            landscape: what loading found.
            ops: all that are registered.

        Raises:
            LockMismatch: an order is not what was locked, with every difference.
        """
        pinned = replace(landscape, pins=Pins(self.file, self._orders(landscape.platform)))
        differences = []
        for op in ops:
            for compiling in MODES:
                candidates = self._order(op, pinned, compiling=compiling)
                differences.append(orders.unpinned(op, candidates, pinned, compiling=compiling))
        self._stop(each for each in differences if each is not None)
        return pinned

    def _order(self, op: IrOp, landscape: Landscape, *, compiling: bool) -> tuple[Candidate, ...]:
        """Return the order of an op without any scope."""
        wishes = self.preferences.wishes(op.name, landscape, compiling=compiling)
        order_of = partial(self._order, landscape=landscape, compiling=compiling)
        return orders.candidates(op, wishes, landscape, self.preferences.policy, order_of)

    def _orders(self, platform: Platform | None) -> dict[tuple[str, bool], tuple[str, ...]]:
        """Return the orders of this machine.

        Raises:
            LockMismatch: it is a platform that a distribution brought and the lock does not have.
        """
        key = "" if platform is None else platform_key(platform)
        locked = self.lock.platforms.get(key)
        if locked is None:
            self._stop([missing_platform(key, self.lock, self.file)])
            return {}
        return {
            (op, compiling): tuple(place.provider for place in places)
            for compiling in MODES
            for op, places in locked.orders(compiling=compiling).items()
        }

    def _stop(self, differences: Iterable[Difference]) -> None:
        """Raise where there is a difference."""
        lines = [str(each) for each in differences]
        if lines:
            raise LockMismatch(file=self.file, differences=lines)


def enforce(preferences: Preferences) -> Enforcement | None:
    """Return the lock in force, or None where there is none.

    Args:
        preferences: what users asked for; its variables name the file.

    Raises:
        LockUnreadable: the file that VLLM_IR_LOCK names is missing, too large, or no plain file.
        MalformedLock: its content is not a lock's.
    """
    file = preferences.environment.lock
    return None if file is None else Enforcement(file, read_lock(Path(file).expanduser()), preferences)
