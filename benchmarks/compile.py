"""What compiling with IR ops costs against the same model in plain torch: time to compile, time to run, our share.

A stack of decoder layers is compiled as it is, with native functions called directly, and with IR ops through the
backend `vllm_ir`. Pairs are interleaved in one process; each gives a ratio. Printed are the median of the ratios and
the interval that holds the true median with at least 95 % certainty (order statistics, no distribution assumed). Each
compilation begins with empty caches. Run it with nothing else at work on the machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from vllm_ir import ops, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HIDDEN, HEADS = 256, 4
FULL, QUICK = (32, 10, 30), (2, 6, 10)
"""Layers, pairs of compilations and pairs of runs; six pairs are the fewest whose extremes hold a median at 95 %."""
COMPILE_LIMIT, RUN_LIMIT, SHARE_LIMIT = 1.10, 1.05, 0.01


class Functions:
    """The functions that a layer calls: IR ops, or their native functions, which is plain torch."""

    def __init__(self, *, plain: bool) -> None:
        self.norm: Any = ops.rms_norm
        self.gate: Any = ops.silu_and_mul
        self.add_norm: Any = ops.fused_add_rms_norm.maybe_inplace
        if plain:
            self.norm, self.gate = ops.rms_norm.declaration.native, ops.silu_and_mul.declaration.native
            self.add_norm = ops.fused_add_rms_norm.declaration.native


class Layer(torch.nn.Module):
    """A decoder layer: attention and a gated product, each behind an add and a norm."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions
        self.before, self.between = (torch.nn.Parameter(torch.rand(HIDDEN) + 0.5) for _ in range(2))
        self.packed = torch.nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up, self.down = torch.nn.Linear(HIDDEN, 4 * HIDDEN, bias=False), torch.nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's output and the residual [tokens, HIDDEN]; both inputs are donated."""
        x, residual = self.functions.add_norm(x, residual, self.before, 1e-5)
        query, key, value = (
            part.view(-1, HEADS, HIDDEN // HEADS).transpose(0, 1) for part in self.packed(x).chunk(3, -1)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        x = self.out(mixed.transpose(0, 1).reshape(-1, HIDDEN))
        x, residual = self.functions.add_norm(x, residual, self.between, 1e-5)
        return self.down(self.functions.gate(self.up(x))), residual


class Stack(torch.nn.Module):
    """Decoder layers with a residual stream between them."""

    def __init__(self, layers: int, *, plain: bool) -> None:
        super().__init__()
        self.functions = Functions(plain=plain)
        self.layers = torch.nn.ModuleList(Layer(self.functions) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stack's output for rows [tokens, HIDDEN]."""
        residual = x
        x = self.functions.norm(x, None, 1e-5)
        residual = residual + x
        for layer in self.layers:
            x, residual = layer(x, residual)
        return x + residual


def compile_once(stack: Stack, x: torch.Tensor, backend: str) -> tuple[float, Any]:
    """Return the seconds of the first call on empty caches, and what was compiled."""
    from torch._inductor.utils import fresh_cache

    torch.compiler.reset()
    with fresh_cache(), torch.no_grad():
        compiled = torch.compile(stack, backend=backend, fullgraph=True)
        begin = time.perf_counter()
        compiled(x)
        return time.perf_counter() - begin, compiled


def run_many(function: Callable[..., Any], x: torch.Tensor, calls: int) -> float:
    """Return the seconds of one call, of many in a row."""
    begin = time.perf_counter()
    for _ in range(calls):
        function(x)
    return (time.perf_counter() - begin) / calls


def report(text: str) -> None:
    """Print a line of progress to stderr at once; a bar shows nothing in a pipe."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the bounds that hold the true one with at least 95 %, from order statistics."""
    ordered = sorted(ratios)
    count = len(ordered)
    rank = 0
    # The chance that fewer than `rank + 1` of the values are below the true median is a binomial sum.
    while sum(math.comb(count, i) for i in range(rank + 1)) / 2**count <= 0.025:  # noqa: PLR2004 - half of 5 %
        rank += 1
    rank = max(rank - 1, 0)
    return statistics.median(ordered), ordered[rank], ordered[count - 1 - rank]


def measure(layers: int, tokens: int, pairs: int, runs: int) -> tuple[list[float], list[float], list[float]]:
    """Return ratios of compile time, ratios of run time, and our passes' shares of compile time."""
    torch.manual_seed(0)
    plain, ours = Stack(layers, plain=True).eval(), Stack(layers, plain=False).eval()
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(tokens, HIDDEN)
    compiling: list[float] = []
    shares: list[float] = []
    compiled: dict[str, Any] = {}
    with Progress(transient=True, console=Console(stderr=True)) as progress:
        # The first pair pays for imports and is not counted.
        for number in progress.track(range(pairs + 1), description="compiling"):
            order = [("plain", plain, "inductor"), ("ours", ours, "vllm_ir")]
            seconds = {}
            for name, stack, backend in order if number % 2 else reversed(order):
                seconds[name], compiled[name] = compile_once(stack, x, backend)
            told = f"plain {seconds['plain']:.1f} s, with IR ops {seconds['ours']:.1f} s"
            report(f"compiled pair {number} of {pairs}: {told}{'' if number else ', not counted'}")
            if number:
                compiling.append(seconds["ours"] / seconds["plain"])
                shares.append(runtime.current().graphs.all()[-1].seconds / seconds["ours"])
        running: list[float] = []
        with torch.no_grad():
            torch.testing.assert_close(compiled["ours"](x), compiled["plain"](x), rtol=1e-3, atol=1e-3)
            calls = max(1, int(0.2 / run_many(compiled["plain"], x, 5)))
            for number in progress.track(range(runs), description="running"):
                order_of_runs = ("plain", "ours") if number % 2 else ("ours", "plain")
                took = {name: run_many(compiled[name], x, calls) for name in order_of_runs}
                running.append(took["ours"] / took["plain"])
                report(f"ran pair {number + 1} of {runs}: {took['ours'] / took['plain']:.3f} times plain")
    return compiling, running, shares


def main() -> int:
    """Measure, print, and return 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few layers and pairs: minutes, and a wide interval")
    parser.add_argument("--layers", type=int, help=f"default {FULL[0]}, quick {QUICK[0]}")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, help=f"pairs of compilations, default {FULL[1]}, quick {QUICK[1]}")
    parser.add_argument("--runs", type=int, help=f"pairs of runs, default {FULL[2]}, quick {QUICK[2]}")
    options = parser.parse_args()
    usual = QUICK if options.quick else FULL
    layers, pairs, runs = (
        number if given is None else given
        for given, number in zip((options.layers, options.pairs, options.runs), usual, strict=True)
    )
    compiling, running, shares = measure(layers, options.tokens, pairs, runs)
    table = Table(title=f"{layers} layers, {options.tokens} tokens, IR ops over plain torch {torch.__version__}")
    for column in ("what", "median", "from", "to", "limit of the upper end"):
        table.add_column(column)
    missed = False
    for name, values, limit in (("compile time", compiling, COMPILE_LIMIT), ("run time", running, RUN_LIMIT)):
        median, low, high = interval(values)
        missed |= high > limit
        table.add_row(name, f"{median:.3f}", f"{low:.3f}", f"{high:.3f}", f"{limit:.2f}")
    median, low, high = interval(shares)
    missed |= high > SHARE_LIMIT
    table.add_row("our passes, of compile time", f"{median:.2%}", f"{low:.2%}", f"{high:.2%}", f"{SHARE_LIMIT:.0%}")
    console = Console()
    console.print(table)
    last = runtime.current().graphs.all()[-1]
    console.print(f"selected: { {op: sorted(set(nodes.values())) for op, nodes in last.selected.items()} }")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
