"""What fusing norm and gate with their quantisation gains in a decoder's MLP block, eager and compiled.

The same block is written with the parts and with the fused ops, and runs by one provider; compiled, both begin as
parts, and `vllm_ir.compile` fuses one of them. A CPU has no product of 8-bit floats, so values are widened again before
each product; `--bare` leaves the products out and shows the ops alone. The two take turns in one process, block by
block of calls; what counts is processor time, which other work on the machine moves less. Printed are the median of
the ratios and the interval that holds the true median with at least 95 % certainty (order statistics, no distribution
assumed).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
import vllm_ir
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from vllm_ir import load_providers, ops, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

TOKENS = (1, 64, 1024)
EPSILON = 1e-6


class Block(torch.nn.Module):
    """An add and a norm, a gated product, and a product back, each behind a quantisation per token.

    Args:
        hidden: elements of a row.
        fused: whether it is written with the fused ops.
        bare: whether the products are left out.
    """

    def __init__(self, hidden: int, *, fused: bool, bare: bool) -> None:
        super().__init__()
        self.fused, self.bare = fused, bare
        self.weight = torch.nn.Parameter(torch.rand(hidden) + 0.5)
        self.up = torch.nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = torch.nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, x: Tensor, residual: Tensor, packed: Tensor) -> Any:
        """Return the block's output and the residual; `packed` stands for the first product where there is none."""
        if self.fused:
            q, scale, total = ops.fused_add_rms_norm_dynamic_quant_fp8(x, residual, self.weight, EPSILON)
        else:
            normal, total = ops.fused_add_rms_norm(x, residual, self.weight, EPSILON)
            q, scale = ops.dynamic_quant_fp8(normal)
        product = packed if self.bare else self.up(q.to(x.dtype) * scale.to(x.dtype))
        gated, other = (
            ops.silu_and_mul_dynamic_quant_fp8(product)
            if self.fused
            else ops.dynamic_quant_fp8(ops.silu_and_mul(product))
        )
        if self.bare:
            return q, scale, gated, other, total
        return self.down(gated.to(x.dtype) * other.to(x.dtype)), total


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the bounds that hold the true one with at least 95 %, from order statistics."""
    ordered = sorted(ratios)
    count, rank = len(ordered), 0
    # The chance that fewer than `rank + 1` of the values are below the true median is a binomial sum.
    while sum(math.comb(count, i) for i in range(rank + 1)) / 2**count <= 0.025:  # noqa: PLR2004 - half of 5 %
        rank += 1
    rank = max(rank - 1, 0)
    return statistics.median(ordered), ordered[rank], ordered[count - 1 - rank]


def seconds(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Return the seconds of processor time of one call, of many in a row."""
    begin = time.process_time()
    for _ in range(calls):
        function(*args)
    return (time.process_time() - begin) / calls


def check(got: Any, wanted: Any) -> None:
    """Stop if two results differ in a bit."""
    for one, other in zip(got, wanted, strict=True):
        mine, theirs = (each.contiguous().view(torch.uint8) for each in (one, other))
        if not torch.equal(mine, theirs):
            raise SystemExit(f"results differ in {int((mine != theirs).sum())} of {mine.numel()} bytes")


def measure(plain: Any, fused: Any, args: tuple[Any, ...], pairs: int) -> list[float]:
    """Return ratios of the time of `fused` to that of `plain`."""
    calls = max(1, int(0.05 / seconds(plain, args, 3)))
    seconds(fused, args, 3)
    ratios: list[float] = []
    for number in range(pairs):
        order = (("plain", plain), ("fused", fused))
        took = {name: seconds(each, args, calls) for name, each in (order if number % 2 else reversed(order))}
        ratios.append(took["fused"] / took["plain"])
    return ratios


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", default="cpu_c", help="who runs parts and fused ops")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--pairs", type=int, default=30, help="pairs of blocks of calls")
    parser.add_argument("--bare", action="store_true", help="leave the products out")
    options = parser.parse_args()
    load_providers()
    for op in runtime.current().registry:
        if options.provider in op.impls:
            op.set_default(options.provider)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    parts, whole = (
        Block(options.hidden, fused=fused, bare=options.bare).to(dtype).eval().requires_grad_(requires_grad=False)
        for fused in (False, True)
    )
    whole.load_state_dict(parts.state_dict())
    table = Table(title=f"time fused over unfused, {options.provider}, {options.dtype}, hidden {options.hidden}")
    for column in ("tokens", "mode", "median", "from", "to"):
        table.add_column(column)
    with torch.no_grad(), Progress(transient=True, console=Console(stderr=True)) as progress:
        for tokens in progress.track(TOKENS, description="measuring"):
            x, residual = (torch.randn(tokens, options.hidden, dtype=dtype) for _ in range(2))
            args = (x, residual, torch.randn(tokens, 4 * options.hidden, dtype=dtype))
            torch.compiler.reset()
            compiled = vllm_ir.compile(parts, dynamic=False)
            fusing = vllm_ir.compile(parts, dynamic=False, fusions="all")
            check(whole(*args), parts(*args))
            compiled(*args)
            fusing(*args)
            for mode, pair in (("eager", (parts, whole)), ("compiled", (compiled, fusing))):
                median, low, high = interval(measure(*pair, args, options.pairs))
                table.add_row(str(tokens), mode, f"{median:.3f}", f"{low:.3f}", f"{high:.3f}")
    console = Console()
    console.print(table)
    last = vllm_ir.report().graphs[-1]
    console.print(f"in the last graph: { {op: sorted(set(nodes.values())) for op, nodes in last.selected.items()} }")


if __name__ == "__main__":
    main()
