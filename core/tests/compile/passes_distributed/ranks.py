"""A program that several processes run together over gloo, and what each of them has seen, as JSON.

    python ranks.py FOLDER RANKS

Torch is imported once, in the process that the ranks are forked from. A rank that waits for one which is gone gives up.
"""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import sys
import time
import traceback
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm_ir import compile as compile_model
from vllm_ir import ops, report
from vllm_ir.compile import AsyncTensorParallelism, SequenceParallelism, lower_graph
from vllm_ir.compile.passes.collectives import traffic
from vllm_ir.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LAYERS, HIDDEN, HEADS, INNER, TOKENS = 3, 64, 4, 128, 32
EPSILON = 1e-5
LIMIT = 540  # seconds in which all ranks have to be done, many times what an idle machine takes
fused: Any = ops.fused_add_rms_norm


class Decoder(torch.nn.Module):
    """Layers of attention and a gate, each split over the ranks by columns and then by rows, with a residual.

    Args:
        rank: of this process.
        size: how many ranks there are.
        donating: whether a layer gives its residual away.
        layers: how many.
    """

    def __init__(self, rank: int, size: int, *, donating: bool = False, layers: int = LAYERS) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.heads, self.donating = HEADS // size, donating

        def part(rows: int, columns: int, dim: int) -> torch.nn.Parameter:
            """Return this rank's part of a matrix that all of them draw alike."""
            whole = torch.randn(rows, columns, generator=generator) / columns**0.5
            return torch.nn.Parameter(whole.chunk(size, dim)[rank].clone(), requires_grad=False)

        def norm() -> torch.nn.Parameter:
            """Return a weight of a norm, the same on every rank."""
            return torch.nn.Parameter(torch.rand(HIDDEN, generator=generator) + 0.5, requires_grad=False)

        self.parts: Any = torch.nn.ModuleList()
        for _ in range(layers):
            layer: Any = torch.nn.Module()
            for name in ("query", "key", "value"):
                setattr(layer, name, part(HIDDEN, HIDDEN, 0))
            layer.out = part(HIDDEN, HIDDEN, 1)
            layer.gate, layer.up, layer.down = part(INNER, HIDDEN, 0), part(INNER, HIDDEN, 0), part(HIDDEN, INNER, 1)
            layer.before, layer.between = norm(), norm()
            self.parts.append(layer)
        self.last = norm()

    def add(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised sum and the sum."""
        call = fused.maybe_inplace if self.donating else fused
        found: tuple[Tensor, Tensor] = call(x, residual, weight, EPSILON)
        return found

    def forward(self, residual: Tensor) -> Tensor:
        """Return what the last norm makes of tokens [tokens, hidden] or [batch, tokens, hidden]."""
        x = ops.rms_norm(residual, self.parts[0].before, EPSILON)
        for number, layer in enumerate(self.parts):
            if number:
                x, residual = self.add(x, residual, layer.before)
            x, residual = self.add(self.attend(x, layer), residual, layer.between)
            gate = torch.cat([x @ layer.gate.t(), x @ layer.up.t()], -1)
            x = summed(ops.silu_and_mul(gate) @ layer.down.t())
        return self.add(x, residual, self.last)[0]

    def attend(self, x: Tensor, layer: Any) -> Tensor:
        """Return the sum over ranks of what their heads make of the tokens."""
        query, key, value = (
            (x @ matrix.t()).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for matrix in (layer.query, layer.key, layer.value)
        )
        scores = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, -1)
        return summed((scores @ value).transpose(-3, -2).flatten(-2) @ layer.out.t())


def summed(x: Tensor) -> Tensor:
    """Return the sum over all ranks."""
    members: Any = dist.group.WORLD
    total: Tensor = collectives.all_reduce(x, "sum", members)
    return total


def normalized(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return normalised rows."""
    rows: Tensor = ops.rms_norm(x, weight, EPSILON)
    return rows


class Watching(TorchDispatchMode):
    """Counts collectives, the bytes that they are given and give, the bytes of residuals, and memory that lives.

    Args:
        given: what is there already, and so no part of the memory that is counted.
        alone: pretend collectives, which keep what they move for as long as a thread of theirs likes.
    """

    def __init__(self, given: Iterable[Tensor] = (), *, alone: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alone = alone
        self.calls: Counter[str] = Counter()
        self.payload: Counter[str] = Counter()
        self.residuals: list[int] = []
        self.now = self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        name = str(function)
        pretended = self.alone and "c10d" in name
        result = pretend(function, args) if pretended else function(*args, **(kwargs or {}))
        if "c10d" in name and "wait" not in name:
            kind = name.split(".")[1]
            whole = result if kind.startswith("all_gather") else args[0]
            self.calls[kind] += 1
            self.payload[kind] += whole.nbytes
        if function is fused.torch_op:
            self.residuals.append(args[1].nbytes)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        """Count the memory of a tensor until it goes."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            """Give it back."""
            self._seen.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def pretend(function: Any, args: tuple[Any, ...]) -> Any:
    """Return what a collective would return, with memory of its own and nothing in it."""
    if "wait" in str(function):
        return args[0]
    like = function(args[0].to("meta"), *args[1:])
    return torch.empty_like(like, device=args[0].device)


class Kept:
    """A compiler that lets torch run graphs node by node, and keeps what it was given.

    Attributes:
        traffic: what the collectives of each graph move.
        watched: what was counted in the last call.
        peak: the most memory that lived in the last call, had collectives kept nothing.
    """

    def __init__(self, *, lowered: bool = True, measured: bool = False) -> None:
        self.traffic: list[dict[str, Any]] = []
        self.text: list[str] = []
        self.watched = Watching()
        self.peak = 0
        self._lowered, self._measured = lowered, measured

    def __call__(self, module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        """Return what runs a graph."""
        self.traffic.append({kind: vars_of(each) for kind, each in traffic(module.graph).items()})
        self.text.append(str(module.graph))
        if self._lowered:
            lower_graph(module)

        def run(*args: Any) -> Any:
            """Run the graph and count."""
            if self._measured:
                with Watching((arg for arg in args if isinstance(arg, Tensor)), alone=True) as alone:
                    module(*args)
                self.peak = alone.peak
            self.watched = Watching(arg for arg in args if isinstance(arg, Tensor))
            with self.watched:
                return module(*args)

        return run


def vars_of(each: Any) -> dict[str, int]:
    """Return the fields of a count."""
    return {name: getattr(each, name) for name in each.__slots__}


def passes() -> list[dict[str, Any]]:
    """Return what each pass did to the last graph, by name, with what it left alone."""
    return [
        {"name": each.name, "changes": each.changes, "misses": [[m.op, m.reason, m.count] for m in each.near_misses]}
        for each in report().graphs[-1].passes
    ]


def far(got: Tensor, wanted: Tensor) -> float:
    """Return how far a tensor is from another, at most."""
    return float((got.double() - wanted.double()).abs().max())


def bits(x: Tensor) -> Tensor:
    """Return the bytes of a tensor, row by row."""
    return x.contiguous().view(torch.uint8)


def tokens(count: int = TOKENS) -> Tensor:
    """Return the same tokens on every rank."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(count))


WAYS = {
    "plain": (False, True),
    "plain whole": (False, False),
    "parallel": (True, True),
    "parallel whole": (True, False),
}
"""Whether the pass is on, and whether ops are lowered; those that are left whole dispatch when they run."""


def compared(model: Decoder, x: Tensor, *names: str) -> dict[str, Any]:
    """Compare what a compiled decoder says to what it says in eager, in some of these ways, and count what it does."""
    told: dict[str, Any] = {}
    wanted = model(x.clone())
    for name in names:
        parallel, lowered = WAYS[name]
        torch._dynamo.reset()
        kept, made = Kept(lowered=lowered, measured=not model.donating), [SequenceParallelism()] if parallel else []
        got = compile_model(model, lower_to=kept, passes=made, dynamic=False)(x.clone())
        told[name] = {"far": far(got, wanted), "equal": torch.equal(got, wanted), "traffic": kept.traffic[-1]}
        watched = kept.watched
        told[name] |= {"calls": watched.calls, "payload": watched.payload, "peak": kept.peak}
        told[name] |= {"residuals": watched.residuals, "passes": passes()}
    return told


def decoder(rank: int, size: int) -> Any:
    """Run tokens in two dimensions."""
    return compared(Decoder(rank, size), tokens(), *WAYS)


def batches(rank: int, size: int) -> Any:
    """Run tokens in three dimensions, whose first one does not divide."""
    return compared(Decoder(rank, size, layers=2), tokens().view(1, TOKENS, HIDDEN), "parallel whole")


def donated(rank: int, size: int) -> Any:
    """Let every layer give its residual away, to a kernel that writes over what it is given."""

    def inplace(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write the results over the activations."""
        out, total = fused.declaration.native(x, x_residual, weight, epsilon, variance_size)
        return x.copy_(out), x_residual.copy_(total)

    fused.register_impl("probe", inplace=True)(inplace)
    with fused.set_priority("probe"):
        found = compared(Decoder(rank, size, donating=True, layers=2), tokens(), "parallel")
    return found | {"copies": report().graphs[-1].copies, "by": report().graphs[-1].counts}


def whole_numbers(rank: int, size: int) -> Any:
    """Sum numbers that no order of addition rounds, in a graph of one layer."""
    assert rank < size
    generator = torch.Generator().manual_seed(rank)
    x = torch.randint(-8, 8, (TOKENS, HIDDEN), generator=generator).float()
    weight = torch.linspace(0.5, 1.5, HIDDEN)

    def function(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add what all ranks bring to a residual."""
        found: tuple[Tensor, Tensor] = fused(summed(x * 2), residual, weight, EPSILON)
        return found

    residual = tokens().round()
    wanted = function(x, residual)
    got = compile_model(function, lower_to=Kept(), passes=[SequenceParallelism()])(x, residual)
    return {"equal": [torch.equal(mine, theirs) for mine, theirs in zip(got, wanted, strict=True)], "passes": passes()}


def written(rank: int, size: int) -> Any:
    """Sum by what writes to its argument, as plain programs do."""
    weight = torch.linspace(0.5, 1.5, HIDDEN)

    def function(x: Tensor) -> Tensor:
        """Normalise a sum that stands where the tokens stood."""
        x = x * (rank + 1)
        dist.all_reduce(x)
        return normalized(x, weight)

    wanted, kept = function(tokens()), Kept()
    got = compile_model(function, lower_to=kept, passes=[SequenceParallelism()])(tokens())
    return {"far": far(got, wanted), "traffic": kept.traffic[-1], "size": size}


def added(rank: int, size: int) -> Any:
    """Add the residual as programs do that know no op for it."""
    assert rank < size
    bias = torch.linspace(-1, 1, HIDDEN).bfloat16()

    def function(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add twice to a residual and normalise it."""
        residual = residual + summed(x * (rank + 1))
        residual = residual + 0.5 * (summed(normalized(residual)) + bias)
        return normalized(residual), residual

    x, residual = tokens().bfloat16(), tokens(TOKENS + 1)[1:].bfloat16()
    wanted, kept = function(x, residual), Kept()
    got = compile_model(function, lower_to=kept, passes=[SequenceParallelism()])(x, residual)
    alike = [torch.equal(mine, theirs) for mine, theirs in zip(got, wanted, strict=True)]
    return {"equal": alike, "traffic": kept.traffic[-1]}


def sharded(rank: int, size: int) -> Any:
    """Sum by asking for a distributed tensor whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = init_device_mesh("cpu", (size,))

    def function(x: Tensor) -> Tensor:
        """Normalise what a distributed tensor adds up to."""
        total = DTensor.from_local(x * (rank + 1), mesh, [Partial()], run_check=False)
        return normalized(total.redistribute(mesh, [Replicate()]).to_local())

    wanted, kept = function(tokens()), Kept()
    got = compile_model(function, lower_to=kept, passes=[SequenceParallelism(mesh)])(tokens())
    return {"far": far(got, wanted), "traffic": kept.traffic[-1]}


def guarded(rank: int, size: int) -> Any:
    """Run an open number of tokens, of which some divide by the ranks and some do not."""
    assert rank < size

    def function(x: Tensor) -> Tensor:
        """Normalise a sum."""
        return normalized(summed(x))

    told: dict[str, Any] = {}
    for guard in (False, True):
        torch._dynamo.reset()
        kept = Kept()
        run = compile_model(function, lower_to=kept, passes=[SequenceParallelism(guard=guard)])
        farthest, moved = [], []
        for count in (6 * size, 7 * size, 7 * size + 1, 8 * size, 8 * size + 1, 9 * size):
            x = tokens(count)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            farthest.append(far(run(x), function(x)))
            moved.append(sorted(kept.watched.calls))
        told[str(guard)] = {"far": farthest, "moved": moved, "graphs": len(kept.traffic), "passes": passes()}
    return told


def quantized(rank: int, size: int) -> Any:
    """Quantise behind the norm, in each way that there is."""
    scale = torch.tensor([0.02])
    ways: dict[str, Callable[[Tensor], Any]] = {
        "static": lambda x: ops.static_quant_fp8(x, scale),
        "token": ops.dynamic_quant_fp8,
        "tensor": lambda x: ops.dynamic_quant_fp8(x, per_token=False),
        "group": lambda x: ops.dynamic_group_quant_fp8(x, 16),
        "columns": lambda x: ops.dynamic_group_quant_fp8(x, 16, column_major_scales=True),
        "fused": lambda x: ops.rms_norm_dynamic_quant_fp8(x, None, EPSILON),
    }
    told: dict[str, Any] = {}
    for name, way in ways.items():
        torch._dynamo.reset()

        def function(x: Tensor, way: Callable[[Tensor], Any] = way, name: str = name) -> Any:
            """Quantise a normalised sum."""
            total = summed(x * (1 + rank % 2))
            return way(total if name == "fused" else normalized(total))

        kept, x = Kept(), tokens().bfloat16()
        got = compile_model(function, lower_to=kept, passes=[SequenceParallelism()])(x)
        wanted = function(x)
        pairs = zip(tree_leaves(got), tree_leaves(wanted), strict=True)
        alike = [torch.equal(bits(mine), bits(theirs)) for mine, theirs in pairs]
        strides = [each.stride() for each in tree_leaves(got)] == [each.stride() for each in tree_leaves(wanted)]
        told[name] = {"equal": all(alike) and strides, "traffic": kept.traffic[-1], "passes": passes(), "size": size}
    return told


def overlapped(rank: int, size: int) -> Any:
    """Run PyTorch's own stand-ins for its operations on symmetric memory, which a CPU has no kernels for."""
    from torch.distributed import _symmetric_memory as symmetric

    model, x = Decoder(rank, size, layers=2), tokens()
    told: dict[str, Any] = {}
    both = [AsyncTensorParallelism(), SequenceParallelism()]
    compile_model(model, lower_to=Kept(), passes=both)(x)
    told["without"] = passes()
    library = torch.library.Library("symm_mem", "IMPL")
    library.impl("fused_all_gather_matmul", symmetric._fused_all_gather_matmul_fallback, "CPU")
    library.impl("fused_matmul_reduce_scatter", symmetric._fused_matmul_reduce_scatter_fallback, "CPU")
    torch._dynamo.reset()
    compile_model(model, lower_to=Kept(), passes=both)(x)
    told["disabled"] = passes()
    with symmetric._test_mode():
        torch._dynamo.reset()
        kept = Kept()
        got = compile_model(model, lower_to=kept, passes=both)(x)
    told |= {"with": passes(), "graph": kept.text[-1], "traffic": kept.traffic[-1]}
    return told | {"far": far(got, model(x)), "equal": torch.equal(got, model(x))}


def inductor(rank: int, size: int) -> Any:
    """Run one layer through Inductor."""
    model, x = Decoder(rank, size, layers=1), tokens()
    # Headers that are compiled beforehand cost more than they save in so few kernels.
    with torch._inductor.config.patch(force_disable_caches=True, compile_threads=1, cpp_cache_precompile_headers=False):
        got = compile_model(model, passes=[SequenceParallelism()])(x)
    return {"far": far(got, model(x)), "passes": passes()}


SCENARIOS: dict[int, tuple[Callable[[int, int], Any], ...]] = {
    2: (decoder, batches, donated, written, added, sharded, quantized, overlapped, inductor),
    4: (decoder, whole_numbers, guarded),
}
"""What is run, by the number of ranks."""


def work(rank: int, size: int, folder: str) -> None:
    """Be one rank: run all scenarios and write down what was seen."""
    limit = dt.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=limit)
    told: dict[str, Any] = {}
    for scenario in SCENARIOS[size]:
        torch._dynamo.reset()
        start = time.process_time()
        try:
            with isolated(), torch.no_grad():
                told[scenario.__name__] = scenario(rank, size)
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            told[scenario.__name__] = {"failed": traceback.format_exc()}
            break
        told[scenario.__name__]["seconds"] = time.process_time() - start
    Path(folder, f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    count = int(sys.argv[2])
    workers = [context.Process(target=work, args=(rank, count, sys.argv[1])) for rank in range(count)]
    for each in workers:
        each.start()
    deadline = time.monotonic() + LIMIT
    for each in workers:
        each.join(max(0.0, deadline - time.monotonic()))
    for each in workers:
        if each.is_alive():
            each.kill()
    sys.exit(any(each.exitcode != 0 for each in workers))
