"""Holding a machine against a lock: every difference, each as a line that also says how it is mended.

What is pinned fails; what is only recorded, such as a driver's version, is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir.errors import Difference
from vllm_ir.lock.document import MODES
from vllm_ir.lock.files import short
from vllm_ir.plugins.description import CORE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vllm_ir.lock.document import Lock, LockedDistribution, LockedPlatform, Place
    from vllm_ir.lock.installed import Inspected
    from vllm_ir.lock.taking import Taken

ANEW: Final = "or write the lock anew: vllm-ir lock."


def compare(locked: Lock, taken: Taken, *, enforced: bool = False) -> tuple[Difference, ...]:
    """Return every difference, those of distributions first.

    Args:
        locked: what the lock says.
        taken: what the machine is, looked at for the platforms that are to be held against the lock.
        enforced: whether a process starts under the lock: what it does not name is then not loaded and no difference,
            the core apart, and a distribution without a digest is one.
    """
    return (
        *_core(locked, taken.lock),
        *_distributions(locked, taken, enforced=enforced),
        *_platforms(locked, taken),
        *_recorded("", locked.recorded, taken.lock.recorded),
    )


def _core(locked: Lock, found: Lock) -> Iterator[Difference]:
    """Yield in what the core differs, its files apart."""
    if locked.core != found.core:
        yield Difference("core", locked.core, found.core, f"Install it: pip install vllm-ir=={locked.core}; {ANEW}")
    if locked.provider_api != found.provider_api:
        mend = f"Install the vllm-ir that was locked: pip install vllm-ir=={locked.core}; {ANEW}"
        yield Difference("provider API", ", ".join(locked.provider_api), ", ".join(found.provider_api), mend)


def _distributions(locked: Lock, taken: Taken, *, enforced: bool) -> Iterator[Difference]:
    """Yield in what distributions differ."""
    for name in sorted({*locked.distributions, *taken.lock.distributions}):
        ours, theirs = locked.distributions.get(name), taken.lock.distributions.get(name)
        what = f"distribution {name}"
        if theirs is None and ours is not None:
            mend = f"Install it: pip install {name}=={ours.version}; {ANEW}"
            unusable = taken.unusable.get(name)
            found = f"what does not load: {unusable.rstrip('.')}" if unusable else "not installed"
            yield Difference(what, ours.version, found, mend)
        elif ours is None and theirs is not None:
            mend = f"Uninstall it: pip uninstall {name}; or deny it: VLLM_IR_PROVIDERS_DISABLED={name}; {ANEW}"
            if not enforced or name == CORE:
                yield Difference(what, "nothing", theirs.version, mend)
        elif ours is not None and theirs is not None:
            yield from _distribution(ours, theirs, taken.inspected[name], enforced=enforced)


def _distribution(
    locked: LockedDistribution, found: LockedDistribution, seen: Inspected, *, enforced: bool
) -> Iterator[Difference]:
    """Yield in what one distribution differs."""
    what, install = f"distribution {locked.name}", f"pip install {locked.name}=={locked.version}"
    if locked.version != found.version:
        yield Difference(what, locked.version, found.version, f"Install it: {install}; {ANEW}")
        return  # of another version everything else is another, too
    if locked.digest is None:
        yield Difference(
            what,
            "no digest",
            f"none: {seen.reason}" if seen.reason else "files that a digest can be taken of",
            f"Install the wheel and write the lock anew: {install} && vllm-ir lock.",
            pinned=enforced or not seen.reason,
        )
    elif found.digest is None:
        mend = f"Install the wheel: {install}; {ANEW}"
        yield Difference(what, _short(locked.digest), f"no digest: {seen.reason}", mend)
    elif locked.digest != found.digest:
        mend = f"Install the wheel that was locked: pip install --force-reinstall --no-deps {locked.name}"
        yield Difference(
            f"{what}, RECORD",
            _short(locked.digest),
            f"{_short(found.digest)}, under the same version",
            f"{mend}=={locked.version}; {ANEW}",
        )
    if locked.manifest != found.manifest:
        mend = f"Install the wheel that was locked: {install}; {ANEW}"
        yield Difference(f"{what}, manifest", _short(locked.manifest), _short(found.manifest), mend)
    yield from seen.faults


def _platforms(locked: Lock, taken: Taken) -> Iterator[Difference]:
    """Yield in what platforms and their orders differ."""
    for key, found in taken.lock.platforms.items():
        wanted = locked.platforms.get(key)
        if wanted is None:
            near = [each for each in locked.platforms.values() if each.name == found.name]
            yield missing_platform(key, locked)
            if len(near) != 1:
                continue
            wanted = near[0]
        yield from _orders(wanted, found, taken)
        yield from _recorded(f"platform {key}, ", wanted.recorded, found.recorded)


def missing_platform(key: str, locked: Lock) -> Difference:
    """Return the difference of a platform that a lock has no section for."""
    near = any(each.name == key.partition(":")[0] for each in locked.platforms.values())
    mend = f"Write the lock with a section for it, too: vllm-ir lock --platform {key}, and those that it has now."
    what = "device architecture" if near else "platform"
    return Difference(what, ", ".join(sorted(locked.platforms)) or "none", key, mend)


def _orders(locked: LockedPlatform, found: LockedPlatform, taken: Taken) -> Iterator[Difference]:
    """Yield in what the orders of one platform differ."""
    for compiling, mode in MODES.items():
        ours, theirs = locked.orders(compiling=compiling), found.orders(compiling=compiling)
        for op in sorted({*ours, *theirs}):
            what = f"op {op}, {mode}, on {found.key}"
            mend = f"See who put it there: vllm-ir explain {op} --static{' --compiling' if compiling else ''}; {ANEW}"
            if op not in ours or op not in theirs:
                yield Difference(what, _order(ours, op), _order(theirs, op), mend)
                continue
            wanted, got = ours[op], theirs[op]
            if _names(wanted) != _names(got):
                why = _why(wanted, taken.refused.get((found.key, compiling, op), ()))
                yield Difference(what, _order(ours, op), _order(theirs, op) + why, mend)
            elif wanted != got:
                yield Difference(what, _layers(wanted), _layers(got), mend, pinned=False)


def _order(orders: Mapping[str, tuple[Place, ...]], op: str) -> str:
    """Return an order in words."""
    if op not in orders:
        return "no such op"
    return ", ".join(_names(orders[op])) or "nothing that may run"


def _names(places: tuple[Place, ...]) -> tuple[str, ...]:
    """Return who stands in an order."""
    return tuple(place.provider for place in places)


def _layers(places: tuple[Place, ...]) -> str:
    """Return who stands in an order, and who put them there."""
    return ", ".join(f"{place.provider} by {place.layer}" for place in places)


def _why(wanted: tuple[Place, ...], refusals: tuple[str, ...]) -> str:
    """Return why those that were locked do not stand in the order, in brackets, or nothing."""
    told = [each.rstrip(".") for each in refusals if each.partition(":")[0] in _names(wanted)]
    return f" ({'; '.join(told)})" if told else ""


def _recorded(what: str, locked: Mapping[str, str], found: Mapping[str, str]) -> Iterator[Difference]:
    """Yield in what facts differ that may; of a platform that was only named they are not known."""
    for name, value in locked.items():
        got = found.get(name)
        if got is not None and got != value:
            mend = "Nothing has to be done: it is recorded, not pinned."
            yield Difference(f"{what}{name}", value, got, mend, pinned=False)


def _short(digest: str) -> str:
    """Return the beginning of a digest."""
    algorithm, _, digits = digest.partition(":")
    return short(algorithm, digits)
