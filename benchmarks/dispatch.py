"""What one eager call of an op costs beyond the implementation that it runs.

All figures come from one process and are ratios, since absolute times drift between machines: overhead over the bare
implementation as a fraction of `torch.empty_like(x)` on a 4x64 tensor, and the ratio to a `torch.library.custom_op` of
the same body. Minima of interleaved repeats are taken. Run it with nothing else at work on the machine.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from vllm_ir import register_op

if TYPE_CHECKING:
    from collections.abc import Callable

FLOAT16, FLOAT32 = torch.float16, torch.float32


def body(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Return x at once, so that a call costs nothing but the way to it."""
    return x


def cloned(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Return a new tensor, as custom_op demands."""
    return torch.empty_like(x)


def is_float16(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """Take float16 only: refuses the benchmark's calls."""
    return x.dtype is FLOAT16


def is_float32(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """Take float32 only: accepts the benchmark's calls."""
    return x.dtype is FLOAT32


def make(name: str, *predicates: Callable[..., bool] | None, implementation: Callable[..., Any] = body) -> Any:
    """Return an op with one implementation per predicate, all of them before native."""
    op = register_op(name=name)(native)
    providers = []
    for number, predicate in enumerate(predicates):
        provider = f"bench_{number}"
        op.register_impl(provider, supports_args=predicate)(implementation)
        providers.append(provider)
    op.set_default(providers)
    return op


def native(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Return a new tensor of x's shape."""
    return torch.empty_like(x)


def once(function: Callable[..., object], arguments: tuple[Any, ...], calls: int) -> float:
    """Return the time of one call in ns, of many in a row."""
    numbers = range(calls)
    begin = time.perf_counter_ns()
    for _ in numbers:
        function(*arguments)
    return (time.perf_counter_ns() - begin) / calls


def measure(repeats: int, calls: int) -> list[tuple[str, str, float, float]]:
    """Return rows of mode, what, overhead in ns and overhead as a fraction of `empty_like`."""
    x = torch.randn(4, 64)
    weight = torch.nn.Parameter(torch.randn(64), requires_grad=False)
    full = (x, weight, 1e-5)

    @torch.library.custom_op("bench::cloned", mutates_args=())
    def custom(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        """Return a new tensor of x's shape."""
        return torch.empty_like(x)

    overheads: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
        "1 candidate": (make("bench_one", None), body),
        "1 candidate with a predicate": (make("bench_predicate", is_float32), body),
        "2 candidates, each predicate reads a dtype": (make("bench_two", is_float16, is_float32), body),
        "1 candidate, same body as custom_op": (make("bench_cloned", None, implementation=cloned), cloned),
        "torch.library.custom_op": (custom, cloned),
    }
    rows: list[tuple[str, str, float, float]] = []
    for mode, context in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode), ("grad", nullcontext)):
        best: dict[str, float] = {}

        def keep(name: str, value: float, best: dict[str, float] = best) -> None:
            """Keep the least time of a name."""
            best[name] = min(best.get(name, value), value)

        with context():
            for _ in range(repeats):
                keep("empty_like", once(torch.empty_like, (x,), calls))
                for name, (function, bare) in overheads.items():
                    keep(name, once(function, full, calls))
                    keep(f"bare {name}", once(bare, full, calls))
        for name in overheads:
            overhead = best[name] - best[f"bare {name}"]
            rows.append((mode, name, overhead, overhead / best["empty_like"]))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40, help="interleaved repeats of which the minimum counts")
    parser.add_argument("--calls", type=int, default=10_000, help="calls per repeat")
    arguments = parser.parse_args()
    rows = measure(arguments.repeats, arguments.calls)
    table = Table(
        title=f"Eager dispatch, torch {torch.__version__}", caption="limits: 0.45 for 1, 0.70 for 2 candidates"
    )
    for column, justify in (("mode", "left"), ("call", "left"), ("overhead ns", "right"), ("of empty_like", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for mode, name, overhead, fraction in rows:
        table.add_row(mode, name, f"{overhead:.0f}", f"{fraction:.2f}")
    console = Console()
    console.print(table)
    for mode in dict.fromkeys(row[0] for row in rows):
        ours, theirs = (
            next(row[2] for row in rows if row[:2] == (mode, name))
            for name in ("1 candidate, same body as custom_op", "torch.library.custom_op")
        )
        console.print(f"{mode}: custom_op's overhead is {theirs / ours:.1f} times ours")


if __name__ == "__main__":
    main()
