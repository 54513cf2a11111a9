"""The hooks of a provider: empty functions whose docstrings are the contract, and the marker that makes a function one.

A module with hooks is imported only where its manifest lets this machine use it. Hooks are called once a process;
`warm_up` as often as a host asks. Whoever calls them is left to `loading` and `warm_up`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from vllm_ir.graphs import BasePass
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp
    from vllm_ir.platforms import Platform

PROJECT: Final = "vllm_ir"
"""pluggy's name for the set of hooks."""

hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function as a hook."""

_hookspec: Final = pluggy.HookspecMarker(PROJECT)


@_hookspec
def vllm_ir_platform() -> Platform | None:
    """Return the out-of-tree platform of this machine, or None where it is not here.

    Asked before any other hook, of the distributions whose manifest names a `platform`. The answer has that name.
    At most one installed distribution may answer.
    """


@_hookspec
def vllm_ir_ops() -> Sequence[IrOp]:  # type: ignore[empty-body]
    """Return the ops that this distribution adds, made with `register_op`; the manifest lists them in `adds-ops`.

    An op's schema and meaning never change under its name within one version of the provider API.
    """


@_hookspec
def vllm_ir_implementations(platform: Platform) -> Sequence[IrOpImpl]:  # type: ignore[empty-body]
    """Return the implementations of this distribution's providers, declared with `implements`.

    Modules with kernels are imported inside, not at the top of the module with the hooks. Every op that the manifest
    lists for this machine is among them, and none that it does not list; `inplace` and `batch_invariant` are as there.

    Args:
        platform: the machine.
    """


@_hookspec
def vllm_ir_default_priorities(  # type: ignore[empty-body]
    platform: Platform, compiling: bool
) -> Mapping[str, Sequence[str]]:
    """Return the distribution's own provider names in order, by op; optional.

    Only for what the manifest's `default` tables cannot say; the manifest then has `defaults-at-run-time = true`, and
    the answer stands in place of those tables.

    Args:
        platform: the machine.
        compiling: whether the priorities are for a graph that is being compiled.
    """


@_hookspec
def vllm_ir_passes(platform: Platform) -> Sequence[BasePass]:  # type: ignore[empty-body]
    """Return the passes of this distribution: objects of classes derived from `vllm_ir.compile.passes.GraphPass`.

    They run on every graph that the backend `vllm_ir` compiles on this machine, while ops are still whole in it, behind
    the passes of the user and those of distributions with a higher rank, in the order of the list. Their names are
    those that the manifest lists in `adds-passes`. Each has a key, which is part of the key of every cached graph.
    Asked at load, also by processes that compile nothing: what only compiling needs is imported inside `apply`.

    Args:
        platform: the machine.
    """


@_hookspec
def vllm_ir_warm_up(platform: Platform, device: torch.device | None, dtypes: Sequence[torch.dtype]) -> None:
    """Compile and load what a later call or a graph capture must not wait for; return nothing.

    Called as often as a host asks, from any thread; work that is done already is not done again.

    Args:
        platform: the machine.
        device: where; None for the current device.
        dtypes: for which dtypes of the activations; empty for all that the provider knows.
    """
