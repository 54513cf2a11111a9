"""An implementation of a provider, as vLLM's own ops want it: functions with vLLM's signature, and a digest.

vLLM compares schemas by signature and calls implementations with what it was given, so the functions take anything
and say that they take what the op takes.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm_ir import fingerprint
from vllm_ir.dispatch import foreign, read_exception
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir import IrOpImpl

DISTRIBUTION = "vllm-ir-host-vllm"

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


@dataclass(frozen=True, slots=True)
class Adapted:
    """What vLLM registers.

    Attributes:
        run: the implementation; one that is in place writes to its activations.
        functional: the same without writing to any input.
        accepts: whether it takes a call; None where it takes every one.
        digest: changes with whatever may change what it computes.
    """

    run: Callable[..., Any]
    functional: Callable[..., Any]
    accepts: Callable[..., bool] | None
    digest: str


def adapt(impl: IrOpImpl, native: Callable[..., Any], count: Callable[[], object] | None = None) -> Adapted:
    """Return an implementation as vLLM's op takes it.

    Args:
        impl: a registered implementation.
        native: the native function of vLLM's op, whose signature the functions show.
        count: called before each eager call; None where calls are not counted.
    """
    shown = inspect.signature(native)
    plain = _counted(impl.impl_fn, count)
    functional = _counted(impl.functional or (impl.func_impl_fn if impl.inplace else impl.impl_fn), count)

    def run(*args: Any, **kwargs: Any) -> Any:
        """Run the implementation; it may write to its activations."""
        return plain(*args, **kwargs)

    def run_functional(*args: Any, **kwargs: Any) -> Any:
        """Run the implementation so that no input changes."""
        return functional(*args, **kwargs)

    for made in (run, run_functional):
        made.__name__ = f"{impl.provider}_{impl.op_name}"
        made.__signature__ = shown  # type: ignore[attr-defined]  # what inspect looks for
    return Adapted(run, run_functional, _accepts(impl, native), digest(impl))


def _counted(run: Callable[..., Any], count: Callable[[], object] | None) -> Callable[..., Any]:
    """Return a function that counts its calls; those of a compiled graph are not, as everywhere in vllm-ir."""
    if count is None:
        return run

    def counted(*args: Any, **kwargs: Any) -> Any:
        """Count, and run."""
        if not is_dynamo_compiling():
            count()
        return run(*args, **kwargs)

    return counted


def digest(impl: IrOpImpl) -> str:
    """Return what an implementation and the functions around it are known by in vLLM's compile cache, in hex."""
    parts = (fingerprint.implementation_digest(impl), fingerprint.distribution_digest(DISTRIBUTION))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _accepts(impl: IrOpImpl, native: Callable[..., Any]) -> Callable[..., bool] | None:
    """Return the predicate: the provider's own, and no tensor of a device that its kernels cannot be given."""
    predicate, devices = impl.predicate, impl.devices
    if predicate is None and devices is None:
        return None
    op, provider = impl.op_name, impl.provider

    def accepts(*args: Any, **kwargs: Any) -> bool:
        """Tell whether the implementation takes a call; a predicate that raises is a refusal."""
        if devices is not None and foreign(impl, (*args, *kwargs.values())) is not None:
            return False
        if predicate is None:
            return True
        try:
            return predicate(*args, **kwargs) is True
        except Exception as error:  # noqa: BLE001 - whatever a predicate raises is a refusal with that reason
            logger.warning("op %s: %s is skipped: %s", op, provider, read_exception(error))
            return False

    accepts.__name__ = f"{provider}_{op}_accepts"
    accepts.__signature__ = inspect.signature(native)  # type: ignore[attr-defined]  # what inspect looks for
    return accepts
