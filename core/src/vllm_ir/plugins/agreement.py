"""Holding a manifest and the hooks against each other: the file is the source, and its readers must not be misled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import BadHookResult, BadPass, ManifestDisagrees, listed
from vllm_ir.graphs import BasePass
from vllm_ir.implementation import IrOpImpl
from vllm_ir.platforms import Platform
from vllm_ir.plugins.hooks import IMPLEMENTATIONS, OPS, PASSES, PLATFORM, PRIORITIES, WARM_UP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ir.op import IrOp
    from vllm_ir.plugins.hooks import Hooks
    from vllm_ir.plugins.manifest import Manifest, OpManifest
    from vllm_ir.plugins.records import DistributionRecord


def check_hooks(hooks: Hooks, manifest: Manifest) -> None:
    """Refuse hooks that the manifest does not announce, and what it announces without a hook.

    Raises:
        ManifestDisagrees: there is one.
    """
    announced = {
        PLATFORM: ("platform", manifest.platform is not None),
        OPS: ("adds-ops", bool(manifest.adds_ops)),
        PASSES: ("adds-passes", bool(manifest.adds_passes)),
        PRIORITIES: ("defaults-at-run-time", manifest.defaults_at_run_time),
        IMPLEMENTATIONS: ("providers", bool(manifest.providers)),
    }
    for hook, (key, there) in announced.items():
        if hooks.has(hook) != there:
            _disagree(
                hooks.distribution,
                f"hook {hook}",
                f"{'something' if there else 'nothing'} under {key!r}",
                f"that there is {'one' if hooks.has(hook) else 'none'}",
            )


def read_platform(hooks: Hooks, manifest: Manifest) -> Platform | None:
    """Return the platform that a distribution brings to this machine, or None.

    Raises:
        BadHookResult: the hook returned neither a platform nor None.
        ManifestDisagrees: the platform has another name than the manifest says.
    """
    platform = hooks.call(PLATFORM)
    if platform is None:
        return None
    if not isinstance(platform, Platform):
        raise BadHookResult(
            distribution=hooks.distribution, hook=PLATFORM, got=_short(platform), wanted="a Platform or None"
        )
    if platform.name != manifest.platform:
        _disagree(hooks.distribution, "its platform", repr(manifest.platform), repr(platform.name))
    return platform


def read_ops(hooks: Hooks) -> list[IrOp]:
    """Return the ops that a distribution adds.

    Raises:
        BadHookResult: the hook returned something else.
    """
    from vllm_ir.op import IrOp

    return _items(hooks, OPS, hooks.call(OPS), IrOp, "a list of ops made with register_op")


def read_implementations(hooks: Hooks, platform: Platform) -> list[IrOpImpl]:
    """Return the implementations that a distribution brings.

    Raises:
        BadHookResult: the hook returned something else.
    """
    answer = hooks.call(IMPLEMENTATIONS, platform=platform)
    return _items(hooks, IMPLEMENTATIONS, answer, IrOpImpl, "a list of functions declared with implements(...)")


def read_passes(hooks: Hooks, manifest: Manifest, platform: Platform) -> list[BasePass]:
    """Return the graph passes that a distribution brings, in the order in which they run.

    Raises:
        BadPass: the hook returned something else, or two of one name.
        ManifestDisagrees: their names are not those that the manifest lists.
    """
    answer = hooks.call(PASSES, platform=platform)
    if answer is None and not hooks.has(PASSES):
        return []
    items = list(answer) if isinstance(answer, (list, tuple)) else [answer]
    for item in items:
        if not isinstance(item, BasePass):
            got = f"a class, {item.__qualname__}; make an object of it" if isinstance(item, type) else _short(item)
            raise BadPass(distribution=hooks.distribution, got=got)
    names = [item.name for item in items]
    for name in names:
        if names.count(name) > 1:
            raise BadPass(distribution=hooks.distribution, got=f"two passes named {name!r}; one takes another name")
    if set(names) != set(manifest.adds_passes):
        told = listed(sorted(manifest.adds_passes))
        _disagree(hooks.distribution, "the passes it adds", told, listed(sorted(names)))
    return items


def read_priorities(
    hooks: Hooks, manifest: Manifest, platform: Platform, *, compiling: bool
) -> dict[str, tuple[str, ...]]:
    """Return the default order that a distribution wants for its own providers, by op.

    Raises:
        BadHookResult: the hook returned something else, or named a provider of somebody else.
    """
    wanted = f"a dict from op names to lists of its own providers ({listed(manifest.providers)})"
    answer = hooks.call(PRIORITIES, platform=platform, compiling=compiling)
    if answer is None:
        return {}
    if not isinstance(answer, Mapping):
        raise BadHookResult(distribution=hooks.distribution, hook=PRIORITIES, got=_short(answer), wanted=wanted)
    for op, names in answer.items():
        own = (
            not isinstance(names, str)
            and isinstance(names, Sequence)
            and all(name in manifest.providers for name in names)
        )
        if not isinstance(op, str) or not own:
            got = f"{_short(names)} for {op!r}"
            raise BadHookResult(distribution=hooks.distribution, hook=PRIORITIES, got=got, wanted=wanted)
    return {op: tuple(names) for op, names in answer.items()}


def check_ops(distribution: str, manifest: Manifest, ops: Iterable[str]) -> None:
    """Refuse ops that the manifest does not list, and listed ones that are not there.

    Raises:
        ManifestDisagrees: the two differ.
    """
    if set(ops) != set(manifest.adds_ops):
        _disagree(distribution, "the ops it adds", listed(sorted(manifest.adds_ops)), listed(sorted(ops)))


def check_implementations(
    record: DistributionRecord, manifest: Manifest, declared: Mapping[tuple[str, str], IrOpImpl], absent: Iterable[str]
) -> None:
    """Refuse implementations that the manifest does not list, describes otherwise, or lists in vain.

    Args:
        record: the verdict on each provider; what this machine leaves out need not be there.
        manifest: what was promised.
        declared: implementations by provider and op.
        absent: ops that no distribution which loaded has.

    Raises:
        ManifestDisagrees: the two differ.
    """
    for (provider, op), impl in declared.items():
        of_provider = manifest.providers.get(provider)
        promised = of_provider.ops.get(op) if of_provider else None
        if promised is None:
            _disagree(record.name, f"op {op!r} of provider {provider!r}", "nothing", "that it is implemented")
        else:
            _check_flags(record.name, provider, promised, impl)
    for each in record.providers:
        left_out = {op for op, _ in each.refused_ops} | set(absent)
        for op in each.ops if each.usable else ():
            if op not in left_out and (each.name, op) not in declared:
                _disagree(record.name, f"op {op!r} of provider {each.name!r}", "that it is implemented", "nothing")


def check_warm_up(hooks: Hooks, answer: object) -> None:
    """Refuse a warm-up that returned something.

    Raises:
        BadHookResult: it did.
    """
    if answer is not None:
        raise BadHookResult(distribution=hooks.distribution, hook=WARM_UP, got=_short(answer), wanted="nothing")


def _check_flags(distribution: str, provider: str, promised: OpManifest, impl: IrOpImpl) -> None:
    """Refuse a declaration whose flags are not those of the manifest."""
    for key, manifest, hooks in (
        ("inplace", promised.inplace, impl.inplace),
        ("batch-invariant", promised.batch_invariant, impl.batch_invariant),
    ):
        if manifest != hooks:
            what = f"{key} of op {promised.name!r} of provider {provider!r}"
            _disagree(distribution, what, str(manifest).lower(), str(hooks).lower())


def _items(hooks: Hooks, hook: str, answer: object, kind: type[Any], wanted: str) -> list[Any]:
    """Return the items of a hook's list; a hook that is not there has none."""
    if answer is None and not hooks.has(hook):
        return []
    if isinstance(answer, (str, bytes, Mapping)) or not hasattr(answer, "__iter__"):
        raise BadHookResult(distribution=hooks.distribution, hook=hook, got=_short(answer), wanted=wanted)
    items = list(answer)
    for item in items:
        if not isinstance(item, kind):
            got = f"a list with {_short(item)}"
            raise BadHookResult(distribution=hooks.distribution, hook=hook, got=got, wanted=wanted)
    return items


def _disagree(distribution: str, what: str, manifest: str, hooks: str) -> None:
    """Raise for a difference."""
    raise ManifestDisagrees(distribution=distribution, what=what, manifest=manifest, hooks=hooks)


def _short(value: object) -> str:
    """Return what a value is in few words."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"  # noqa: PLR2004
