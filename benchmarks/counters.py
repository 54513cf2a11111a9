"""What counting calls costs an eager call: nothing where VLLM_IR_COUNTERS is not set, shown in one run.

Four ops with the same two candidates, of which the first refuses, are timed side by side, turn by turn: one as it is
with counters off, one more of these (how far apart the two are is the noise), one whose chain was generated from
candidates that nothing of the core's counting has touched, and one with counters on. Minima of interleaved repeats are
taken; what counts is each figure less the bare implementation's. Whether the first and the third run the same bytecode
is told, too. Run it with nothing else at work on the machine.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from vllm_ir import register_op, runtime
from vllm_ir.assembly import Chains
from vllm_ir.chain import Step, make_chain

if TYPE_CHECKING:
    from collections.abc import Callable

OFF, AGAIN, WITHOUT, ON = "counters off", "counters off, once more", "a chain without counting", "counters on"
FLOAT16, FLOAT32 = torch.float16, torch.float32


def body(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Return x at once, so that a call costs nothing but the way to it."""
    return x


def is_float16(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> bool:
    """Take float16 only: refuses the benchmark's calls."""
    return x.dtype is FLOAT16


def is_float32(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> bool:
    """Take float32 only: accepts the benchmark's calls."""
    return x.dtype is FLOAT32


def make(name: str) -> Any:
    """Return an op with two candidates before native, the first of which refuses what it is called with."""

    @register_op(name=name)
    def native(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
        """Return a new tensor of x's shape."""
        return torch.empty_like(x)

    for provider, predicate in (("bench_0", is_float16), ("bench_1", is_float32)):
        native.register_impl(provider, supports_args=predicate)(body)
    native.set_default(["bench_0", "bench_1"])
    return native


def without_counting() -> Callable[..., Any]:
    """Return the chain that the generator makes of candidates that nothing of the core's counting has touched."""
    told: list[str] = []

    def refused(answer: object) -> None:
        """Hear a refusal, once."""
        told[:] = ["told"]

    def never(*arguments: object) -> Any:
        """Be asked for what does not happen here."""
        raise SystemExit(f"unexpected: {arguments}")

    # Named by somebody, as the others' candidates are, so that a reason is told once; native is the last.
    steps = [
        Step(body, predicate, None, never, (), refused, never, counted=None, seen=seen, told=told)
        for predicate, seen in ((is_float16, set[str]()), (is_float32, set[str]()), (None, None))
    ]
    return make_chain("bench_counters", ("x", "weight", "epsilon"), steps, never)


def once(function: Callable[..., object], arguments: tuple[Any, ...], calls: int) -> float:
    """Return the time of one call in ns, of many in a row."""
    numbers = range(calls)
    begin = time.perf_counter_ns()
    for _ in numbers:
        function(*arguments)
    return (time.perf_counter_ns() - begin) / calls


def measure(repeats: int, calls: int) -> tuple[dict[str, float], bool]:
    """Return the overhead of each variant in ns, and whether the first and the third run the same bytecode."""
    arguments = (torch.randn(4, 64), torch.nn.Parameter(torch.randn(64), requires_grad=False), 1e-5)
    state = runtime.current()
    variants = {name: make(f"bench_counters_{number}") for number, name in enumerate((ON, OFF, AGAIN, WITHOUT))}
    for op in variants.values():
        op(*arguments)
    chain = without_counting()
    state.board(variants[WITHOUT]).connect(Chains(chain, chain, chain, chain, native_only=False))
    counting = state.mode.__class__(counters=True, device_type=state.mode.device_type)
    board = state.board(variants[ON])
    board.connect(board.make(state.candidates(variants[ON]), counting))
    off = state.board(variants[OFF]).make(state.candidates(variants[OFF]), state.mode).default
    best: dict[str, float] = {}
    with torch.inference_mode():
        for _ in range(repeats):
            for name, function in {"bare": body, **variants}.items():
                best[name] = min(best.get(name, float("inf")), once(function, arguments, calls))
    ran = board.ledger.calls()
    if ran != {"bench_1": repeats * calls}:
        raise SystemExit(f"the counting op counted {ran}, wanted {repeats * calls} calls of bench_1")
    same = off.__code__.co_code == chain.__code__.co_code
    return {name: best[name] - best["bare"] for name in (OFF, AGAIN, WITHOUT, ON)}, same


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200, help="interleaved repeats of which the minimum counts")
    parser.add_argument(
        "--calls",
        type=int,
        default=3_000,
        help="calls per repeat; few fit between what else runs",
    )
    options = parser.parse_args()
    overheads, same = measure(options.repeats, options.calls)
    noise = abs(overheads[OFF] - overheads[AGAIN])
    table = Table(title=f"Eager dispatch over two candidates, torch {torch.__version__}")
    table.add_column("variant")
    table.add_column("overhead ns", justify="right")
    table.add_column("to counters off", justify="right")
    for name, overhead in overheads.items():
        table.add_row(name, f"{overhead:.0f}", f"{overhead - overheads[OFF]:+.1f}")
    console = Console()
    console.print(table)
    cost = overheads[OFF] - overheads[WITHOUT]
    console.print(f"counters off cost {cost:+.1f} ns a call; two equal ops are {noise:.1f} ns apart")
    console.print(f"off and without run {'the same' if same else 'different'} bytecode")


if __name__ == "__main__":
    main()
