"""Gates, computed in float32 without a rounding between the activation and the multiply."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter.strict import alike, apart, demand, flushed, plain, truncated, widened


def silu_and_mul(out: Tensor, input: Tensor) -> None:  # noqa: A002 - AITER's name
    """Write silu(gate) * up."""
    plain("silu_and_mul", out=(out, Tensor), input=(input, Tensor))
    alike(input, out)
    apart(out, input)
    size = input.shape[-1] // 2
    demand(input.is_contiguous() and out.is_contiguous(), f"strides {input.stride()} and {out.stride()}")
    demand(out.shape == (*input.shape[:-1], size), f"shapes {tuple(out.shape)} and {tuple(input.shape)}")
    demand(out.numel() > 0, "no rows: a grid without blocks")
    steps, at_once = size // 64, 1
    while at_once < steps and at_once < 8:
        at_once *= 2
    demand(size % at_once == 0, f"halves of {size} elements, loaded by {at_once}")
    gate, up = widened(input[..., :size]), widened(input[..., size:])
    activated = flushed(gate * (1 / (1 + torch.exp(-gate))))
    out.copy_(truncated(flushed(activated * up).contiguous(), input.dtype))
