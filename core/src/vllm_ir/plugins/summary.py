"""One line about what discovery found: which provider serves how many ops, and what was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.plugins import records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm_ir.plugins.records import DistributionRecord


def summarise(found: Iterable[DistributionRecord], settings: str | None = None, policies: Sequence[str] = ()) -> str:
    """Return the line.

    Args:
        found: the distributions after loading.
        settings: the settings file that is in force, if any.
        policies: the files that say who may run, the settings file among them where it does.
    """
    found = list(found)
    providers = [each for record in found for each in record.providers]
    serving = [f"{each.name} serves {_count(each.ops, dict(each.refused_ops))}" for each in providers if each.usable]
    refused = [f"{each.name} ({each.failure.kind})" for each in providers if each.failure]
    refused += [f"{each.name} ({each.failure.kind})" for each in found if each.failure and not each.providers]
    shadowed = [f"{each.name} {copy.version}" for each in found for copy in each.shadowed]
    parts = [
        f"providers: {', '.join(serving) or 'none'}",
        f"refused: {', '.join(refused)}" if refused else "",
        f"shadowed: {', '.join(shadowed)}" if shadowed else "",
        f"settings: {settings}" if settings else "",
        f"policy: {', '.join(policies)}" if policies else "",
        f"digest {records.digest(found)[:12]}",
    ]
    return "; ".join(part for part in parts if part)


def _count(ops: tuple[str, ...], refused: dict[str, str]) -> str:
    """Return how many ops are served here, in words."""
    count = sum(op not in refused for op in ops)
    return f"{count} {'op' if count == 1 else 'ops'}"
