"""Compiled models recorded as CUDA graphs: replayed with new values, they give eager's and leave their inputs alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import ops

pytestmark = pytest.mark.cuda

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
WIDTH = 64


def inputs(tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, a residual and a weight on the device."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((tokens, WIDTH), (tokens, WIDTH), (WIDTH,))
    x, r, w = (torch.randn(shape, generator=generator).cuda() for shape in shapes)
    return x, r, w


def layers(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Run two layers, the first of which must keep the residual that it was given."""
    out, total = fused(rms(x, w, 1e-5), r, w, 1e-5)
    out, total = fused.maybe_inplace(out * 2, total, w, 1e-5)
    return out, total


@pytest.mark.parametrize("door", ["backend", "function"])
@pytest.mark.parametrize("kind", ["native", "functional", "inplace", "both"])
def test_replays(provide: Any, kind: str, door: str) -> None:
    """Every replay reads the inputs of its own call, and its results are eager's."""
    for op in (rms, fused):
        provide(op, kind)
    priority = {op.name: "native" if kind == "native" else "probe" for op in (rms, fused)}
    run: Any
    if door == "function":
        run = vllm_ir.compile(layers, mode="reduce-overhead", priority=priority, fullgraph=True)
    else:
        options: dict[str, Any] = {"triton.cudagraphs": True, "priority": priority}
        run = torch.compile(layers, backend="vllm_ir", options=options, fullgraph=True)
    with torch.no_grad():
        for seed in range(5):
            given, wanted = inputs(16, seed), layers(*inputs(16, seed))
            torch.compiler.cudagraph_mark_step_begin()
            got = tuple(result.clone() for result in run(*given))
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
            assert all(torch.equal(mine, kept) for mine, kept in zip(given, inputs(16, seed), strict=True))
