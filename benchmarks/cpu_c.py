"""What the C++ kernels gain on this machine, over native as it is and over native under Inductor.

All contenders of one size take turns in one process, block by block, and the least block of each counts, so that other
work on the machine meets them alike. Inputs are rotated: a set of arguments comes again only when as many bytes as the
last cache holds have gone by, up to a limit of sets. Ops that may write their inputs are timed in place and not; what
they write stays written, since a clone would be what is measured. `copy` is into memory that is there, `clone` into
fresh memory, of as many bytes as the op moves; the share of the copy is what the kernel reaches of its GB/s.

Run it with nothing else at work: python benchmarks/cpu_c.py [--op OP] [--dtype bfloat16] [--shape 16x4096] [--direct]
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.benchmark import Timer
from vllm_ir import load_providers, ops

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ((1, 576), (1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096))
DTYPES = (torch.bfloat16, torch.float32)
OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding")
CACHE = 64 << 20
MOST_SETS = 256
SECONDS_PER_BLOCK = 0.02
NATIVE, COMPILED, OURS, INPLACE, COPY, CLONE = "native", "compiled", "cpu_c", "cpu_c in place", "copy", "clone"


@dataclass
class Contender:
    """A function over rotated arguments, and its least time.

    Attributes:
        function: what is timed.
        sets: the arguments of each call in turn.
        number: calls per block.
        best: seconds per call of the best block.
    """

    function: Callable[..., Any]
    sets: list[tuple[Any, ...]]
    number: int = 1
    best: float = float("inf")
    timer: Timer = field(init=False)

    def __post_init__(self) -> None:
        """Find how many calls fill a block."""
        rotation = itertools.cycle(self.sets)
        self.timer = Timer(
            "function(*next(rotation))",
            globals={"function": self.function, "rotation": rotation},
            num_threads=torch.get_num_threads(),
        )
        self.timer.timeit(len(self.sets))
        self.number = max(2, int(SECONDS_PER_BLOCK / max(self.timer.timeit(3).mean, 1e-7)))

    def block(self) -> None:
        """Time one block."""
        self.best = min(self.best, self.timer.timeit(self.number).mean)


def sets_of(args: tuple[Any, ...], rows: int) -> list[tuple[Any, ...]]:
    """Return copies of a call's arguments; what has not one row a token, such as a weight, is one for all."""
    one = sum(x.nbytes for x in args if isinstance(x, torch.Tensor))
    count = max(2, min(MOST_SETS, CACHE // max(one, 1)))
    turning = [isinstance(x, torch.Tensor) and x.dim() > 1 and x.shape[0] == rows for x in args]
    return [tuple(x.clone() if turn else x for x, turn in zip(args, turning, strict=True)) for _ in range(count)]


def traffic(args: tuple[Any, ...], results: Any) -> int:
    """Return the bytes that a call reads and writes at least."""
    tensors = (*args, *(results if isinstance(results, tuple) else (results,)))
    return sum(x.nbytes for x in tensors if isinstance(x, torch.Tensor))


def measure(name: str, rows: int, size: int, dtype: torch.dtype, blocks: int, *, direct: bool) -> dict[str, float]:
    """Return GB/s of the copies and microseconds of all contenders for one op at one size."""
    op = getattr(ops, name)
    args = op.generate_inputs(num_tokens=rows, hidden_size=size, dtype=dtype)
    native, ours = op.impls["native"].impl_fn, op.impls[OURS]
    moved = traffic(args, native(*args))
    sets = sets_of(args, rows)
    functional = ours.impl_fn if direct and not ours.inplace else op
    op.set_default(["cpu_c"])
    torch.compiler.reset()
    source = torch.ones(max(moved // 2, 1), dtype=torch.uint8)
    copies = sets_of((source[None], source[None].clone()), 1)
    contenders = {
        NATIVE: Contender(native, sets),
        COMPILED: Contender(torch.compile(native, fullgraph=True, dynamic=False), sets),
        OURS: Contender(functional, sets),
        COPY: Contender(lambda a, b: b.copy_(a), copies),
        CLONE: Contender(lambda a, _b: a.clone(), copies),
    }
    if ours.inplace:
        contenders[INPLACE] = Contender(ours.impl_fn if direct else op.maybe_inplace, sets)
    for _ in range(blocks):
        for contender in contenders.values():
            contender.block()
    return {"bytes": moved, **{name: contender.best * 1e6 for name, contender in contenders.items()}}


def row(shape: str, dtype: torch.dtype, found: dict[str, float]) -> list[str]:
    """Return the cells of one size; ratios are of the in-place call where there is one, as hosts donate."""
    ours = min(found[OURS], found.get(INPLACE, float("inf")))
    cells = [shape, str(dtype).removeprefix("torch.")]
    cells += [f"{found[name]:,.2f}" if name in found else "" for name in (NATIVE, COMPILED, OURS, INPLACE)]
    cells += [f"{found[NATIVE] / ours:.1f}x", f"{found[COMPILED] / ours:.2f}x"]
    cells += [f"{found['bytes'] / ours / 1e3:.1f}", f"{found['bytes'] / found[COPY] / 1e3:.1f}"]
    return [*cells, f"{found[COPY] / ours:.0%}", f"{found[CLONE] / ours:.0%}"]


def main() -> None:
    """Print a table per op."""
    parser = argparse.ArgumentParser(description="Time the C++ kernels against native, eager and compiled.")
    parser.add_argument("--op", action="append", choices=OPS)
    parser.add_argument("--dtype", action="append", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--shape", action="append", help="for example 16x4096")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--direct", action="store_true", help="time the implementation without vllm-ir's dispatch")
    given = parser.parse_args()
    load_providers()
    shapes = [tuple(map(int, text.split("x"))) for text in given.shape] if given.shape else SHAPES
    dtypes = [getattr(torch, name) for name in given.dtype] if given.dtype else DTYPES
    console = Console(width=150)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; microseconds, least of blocks")
    heads = ("shape", "dtype", NATIVE, COMPILED, OURS, "in place", "x native", "x compiled", "GB/s", "copy GB/s")
    with torch.no_grad():
        for name in given.op or OPS[:3]:
            table = Table(*heads, "of copy", "of clone", title=name)
            for dtype in dtypes:
                for rows, size in shapes:
                    found = measure(name, rows, size, dtype, given.blocks, direct=given.direct)
                    table.add_row(*row(f"{rows}x{size}", dtype, found))
            console.print(table)


if __name__ == "__main__":
    main()
