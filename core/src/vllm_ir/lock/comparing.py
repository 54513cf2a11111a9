"""Holding a machine against a lock: every difference, each as a line that also says how it is mended.

What is pinned fails; what is only recorded, such as a driver's version, is told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vllm_ir.errors import DeniedByPolicy, Difference
from vllm_ir.lock.anew import Anew, can_be_named, write_command
from vllm_ir.lock.document import FILE, MODES
from vllm_ir.lock.files import short
from vllm_ir.lock.installed import FORCED
from vllm_ir.plugins.description import CORE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vllm_ir.lock.document import Lock, LockedDistribution, LockedPlatform, Place
    from vllm_ir.lock.installed import Inspected
    from vllm_ir.lock.taking import Taken
    from vllm_ir.plugins.records import Failure


def compare(
    locked: Lock, taken: Taken, *, enforced: bool = False, strict: bool = False, file: str = FILE
) -> tuple[Difference, ...]:
    """Return every difference, those of distributions first.

    Args:
        locked: what the lock says.
        taken: what the machine is, looked at for the platforms that are to be held against the lock.
        enforced: whether a process starts under the lock: what it does not name is then not loaded and no difference,
            the core apart, and a distribution without a digest is one.
        strict: whether what is only recorded has to be the same, too.
        file: the lock's name, as the reader would type it.
    """
    editable = not enforced and any(each.digest is None for each in locked.distributions.values())
    anew = Anew(file, locked.platforms, taken.here, editable=editable)
    return (
        *_core(locked, taken.lock, anew),
        *_distributions(locked, taken, anew, enforced=enforced),
        *_platforms(locked, taken, anew, strict=strict),
        *_recorded("", locked.recorded, taken.lock.recorded, anew, strict=strict),
    )


def _core(locked: Lock, found: Lock, anew: Anew) -> Iterator[Difference]:
    """Yield in what the core differs, its files apart."""
    install = f"pip install {CORE}=={locked.core}"
    told = [each.distributions[CORE].version for each in (locked, found) if CORE in each.distributions]
    if locked.core != found.core and told != [locked.core, found.core]:  # its distribution would say the same
        yield Difference(CORE, locked.core, found.core, f"Install it: {install}; {anew.offer}")
    if locked.provider_api != found.provider_api:
        mend = f"Install the vllm-ir that was locked: {install}; {anew.offer}"
        yield Difference("provider API", ", ".join(locked.provider_api), ", ".join(found.provider_api), mend)


def _distributions(locked: Lock, taken: Taken, anew: Anew, *, enforced: bool) -> Iterator[Difference]:
    """Yield in what distributions differ."""
    for name in sorted({*locked.distributions, *taken.lock.distributions}):
        ours, theirs = locked.distributions.get(name), taken.lock.distributions.get(name)
        what = f"distribution {name}"
        if theirs is None and ours is not None:
            yield _unusable(ours, taken.unusable.get(name), anew)
        elif ours is None and theirs is not None:
            mend = f"Uninstall it: pip uninstall {name}; or deny it: VLLM_IR_PROVIDERS_DISABLED={name}; {anew.offer}"
            if not enforced or name == CORE:
                yield Difference(what, "nothing", theirs.version, mend)
        elif ours is not None and theirs is not None:
            yield from _distribution(ours, theirs, taken.inspected[name], anew, enforced=enforced)


def _unusable(locked: LockedDistribution, failure: Failure | None, anew: Anew) -> Difference:
    """Return the difference of a distribution that is not installed, or is and does not load."""
    what, wheel = f"distribution {locked.name}", f"{locked.name}=={locked.version}"
    if failure is None:
        return Difference(what, locked.version, "not installed", f"Install it: pip install {wheel}; {anew.offer}")
    mend = f"Install it: {FORCED} {wheel}"
    if failure.kind == DeniedByPolicy.kind:
        mend = "It is installed: change the list that leaves it out"
    found = f"what does not load: {failure.reason.rstrip('.')}"
    return Difference(what, locked.version, found, f"{mend}; {anew.offer}")


def _distribution(
    locked: LockedDistribution, found: LockedDistribution, seen: Inspected, anew: Anew, *, enforced: bool
) -> Iterator[Difference]:
    """Yield in what one distribution differs."""
    what, wheel = f"distribution {locked.name}", f"{locked.name}=={locked.version}"
    rest = "." if seen.reason else f"; {anew.offer}"  # what has no digest, `lock` refuses
    if locked.version != found.version:
        mend = f"{seen.install or 'Install it: pip install'} {wheel}{rest}"
        yield Difference(what, locked.version, found.version, mend)
        return  # of another version everything else is another, too
    install = f"{seen.install or f'Install the wheel that was locked: {FORCED}'} {wheel}"
    if locked.digest is None:
        fresh = replace(anew, editable=False).command
        yield Difference(
            what,
            "no digest",
            f"none: {seen.reason}" if seen.reason else "files that a digest can be taken of",
            f"{install} and write the lock anew: {fresh}." if seen.reason else f"Write the lock anew: {fresh}.",
            pinned=enforced or not seen.reason,
        )
    elif found.digest is None:
        yield Difference(what, _short(locked.digest), f"no digest: {seen.reason}", f"{install}{rest}")
    elif locked.digest != found.digest:
        got = f"{_short(found.digest)}, under the same version"
        yield Difference(f"{what}, RECORD", _short(locked.digest), got, f"{install}; {anew.offer}")
    if locked.manifest != found.manifest:
        mend = f"{install}{rest}"
        yield Difference(f"{what}, manifest", _short(locked.manifest), _short(found.manifest), mend)
    yield from seen.faults


def _platforms(locked: Lock, taken: Taken, anew: Anew, *, strict: bool) -> Iterator[Difference]:
    """Yield in what platforms and their orders differ."""
    for key, found in taken.lock.platforms.items():
        wanted = locked.platforms.get(key)
        if wanted is None:
            near = [each for each in locked.platforms.values() if each.name == found.name]
            yield missing_platform(key, locked, anew.file)
            if len(near) != 1:
                continue
            wanted = near[0]
        yield from _orders(wanted, found, taken, anew)
        yield from _recorded(f"platform {key}, ", wanted.recorded, found.recorded, anew, strict=strict)


def missing_platform(key: str, locked: Lock, file: str) -> Difference:
    """Return the difference of a platform that a lock has no section for."""
    near = any(each.name == key.partition(":")[0] for each in locked.platforms.values())
    if can_be_named(key):
        sections = {key, *locked.platforms}
        mend = f"Write the lock with a section for it, too: {write_command(file, sections, None)}."
    else:
        mend = f"Write a lock of its own on that machine: vllm-ir lock --lock {key.partition(':')[0]}.lock."
    what = "device architecture" if near else "platform"
    return Difference(what, ", ".join(sorted(locked.platforms)) or "none", key, mend)


def _orders(locked: LockedPlatform, found: LockedPlatform, taken: Taken, anew: Anew) -> Iterator[Difference]:
    """Yield in what the orders of one platform differ."""
    asked = "" if found.key == taken.here else f" --platform {found.key}"
    for compiling, mode in MODES.items():
        ours, theirs = locked.orders(compiling=compiling), found.orders(compiling=compiling)
        for op in sorted({*ours, *theirs}):
            what = f"op {op}, {mode}, on {found.key}"
            flags = f"--static{asked}{' --compiling' if compiling else ''}"
            mend = f"See who put it there: vllm-ir explain {op} {flags}; {anew.offer}"
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


def _recorded(
    what: str, locked: Mapping[str, str], found: Mapping[str, str], anew: Anew, *, strict: bool
) -> Iterator[Difference]:
    """Yield in what facts differ that may; of a platform that was only named they are not known."""
    for name, value in locked.items():
        got = found.get(name)
        if got is not None and got != value:
            mend = "Nothing has to be done: it is recorded, not pinned."
            if strict:
                mend = f"It fails under --strict alone: bring back {name} {value}; {anew.offer}"
            yield Difference(f"{what}{name}", value, got, mend, pinned=False)


def _short(digest: str) -> str:
    """Return the beginning of a digest."""
    algorithm, _, digits = digest.partition(":")
    return short(algorithm, digits)
