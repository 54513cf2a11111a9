"""The kernel and its predicate: what it computes, and what it refuses.

Which op, which provider name and when it is preferred are said by the decorator and the manifest.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from vllm_ir import Unsupported, implements

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def accepts(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool | Unsupported:
    """Tell from dtypes and options alone whether the kernel may run; never from batch sizes or values.

    The parameters are the op's own, with its names and defaults.
    """
    del weight, epsilon  # any weight, or none, is fine
    if variance_size is not None:
        return Unsupported(f"takes the variance of the whole row, got variance_size={variance_size}")
    if x.dtype not in DTYPES:
        return Unsupported(f"needs float32, bfloat16 or float16, got {x.dtype}")
    return True


@implements("rms_norm", provider="first_provider", supports_args=accepts)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return `x` over its root mean square along the last dimension, times `weight`, as a contiguous tensor.

    The roundings are native's, in native's order: the row is normalised in float32, rounded to the weight's
    dtype, multiplied there, and the product rounded to `x.dtype`. One rounding more, less or elsewhere flips
    a greedy answer on a near tie.

    Args:
        x: `[..., hidden]`, float32, bfloat16 or float16, any strides, any number of rows including none.
        weight: `[hidden]` of any floating dtype, or `None`.
        epsilon: added to the mean square.
        variance_size: `None`; anything else is refused by `accepts`.
    """
    del variance_size
    normalised = functional.rms_norm(x.float(), x.shape[-1:], None, epsilon)
    if weight is not None:
        normalised = normalised.to(weight.dtype) * weight
    return normalised.to(x.dtype).contiguous()
