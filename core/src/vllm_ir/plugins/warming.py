"""Warming up: everything that a later call, or a graph capture, must not wait for is done now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_ir import runtime
from vllm_ir.errors import ProviderError, WarmUpFailed
from vllm_ir.log import logger
from vllm_ir.plugins import agreement, discovery, hooks
from vllm_ir.plugins.records import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from vllm_ir.plugins.hooks import Hooks


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What warming up one distribution took.

    Args:
        distribution: its name.
        seconds: how long it took.
        failure: why it failed; None where it did not.
    """

    distribution: str
    seconds: float
    failure: Failure | None = None


def warm_up(device: torch.device | str | None = None, dtypes: Sequence[torch.dtype] = ()) -> tuple[WarmUp, ...]:
    """Discover providers, connect every op, and let each distribution compile and load what its kernels need.

    A distribution that fails is a warning and a failure in the answer; its kernels would fail at their first call.

    Args:
        device: where; default: the current device.
        dtypes: for which dtypes of the activations; default: all that a provider knows.

    Returns:
        one value for each distribution that has something to warm up.

    Raises:
        ConfigurationError: a priority that somebody set names what does not exist or cannot run.
        WarmUpFailed: strict mode is on and a distribution failed.
    """
    import torch

    state = runtime.current()
    found = discovery.load_providers()
    for op in state.registry:
        state.warm(op)
    place = torch.device(device) if isinstance(device, str) else device
    return tuple(
        _warm(each, place, tuple(dtypes)) for each in (found.hooks if found else ()) if each.has(hooks.WARM_UP)
    )


def _warm(each: Hooks, device: torch.device | None, dtypes: Sequence[torch.dtype]) -> WarmUp:
    """Warm up one distribution."""
    state = runtime.current()
    start = time.perf_counter()
    try:
        answer = each.call(hooks.WARM_UP, platform=state.platform, device=device, dtypes=dtypes)
        agreement.check_warm_up(each, answer)
    except ProviderError as error:
        failed = WarmUpFailed(distribution=each.distribution, cause=getattr(error, "cause", str(error)))
        if state.policy.strict:
            raise failed from (error.__cause__ or error)
        logger.warning("%s", failed, exc_info=error)
        return WarmUp(each.distribution, time.perf_counter() - start, Failure.of(failed, hooks.traceback_of(error)))
    return WarmUp(each.distribution, time.perf_counter() - start)
