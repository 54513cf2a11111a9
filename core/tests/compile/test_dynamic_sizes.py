"""One graph serves all batches: whoever runs an op, nothing is guarded on a size that changes from call to call.

Torch makes graphs of their own for sizes 0 and 1 where the size is backed by an example, ops or none: a dynamic size is
taken to be at least two. Sizes that are unbacked have no such limit.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from torch._dynamo.decorators import mark_unbacked
from vllm_ir import ops
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.errors import BatchGuard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
silu: Any = ops.silu_and_mul
gelu: Any = ops.gelu_and_mul
rotary: Any = ops.rotary_embedding
ALL = (rms, fused, silu, gelu, rotary)
WIDTH, NEOX = 8, True
WEIGHT = torch.linspace(0.5, 1.5, WIDTH)
ANGLES = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.3]))
CACHE = torch.cat((ANGLES.cos(), ANGLES.sin()), dim=-1)
SIZES = (2, 3, 5, 8, 64)
Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(tokens: int) -> Inputs:
    """Return rows, a residual and positions of some tokens."""
    generator = torch.Generator().manual_seed(tokens)
    x, r = (torch.randn(tokens, WIDTH, generator=generator) for _ in range(2))
    return x, r, torch.arange(tokens) % 8


def layer(chosen: Sequence[Any], x: Tensor, r: Tensor, positions: Tensor) -> Tensor:
    """Be a layer of all ops, on packed projections of which queries and keys are parts."""
    norm, add, silu_mul, gelu_mul, turn = chosen
    out, total = add(norm(x, WEIGHT, 1e-5) * 2, r * 1, WEIGHT, 1e-5)
    packed = torch.cat((out, total), dim=-1)
    query, key = (packed * 1).split((WIDTH, WIDTH), dim=-1)
    query, key = turn(positions, query, key, 4, 4, CACHE, NEOX)
    result: Tensor = query + key + silu_mul(packed) * gelu_mul(packed) + total
    return result


def donating(x: Tensor, r: Tensor, positions: Tensor) -> Tensor:
    """Call every op, donating what can be."""
    return layer((rms, fused.maybe_inplace, silu, gelu, rotary.maybe_inplace), x, r, positions)


def natives(x: Tensor, r: Tensor, positions: Tensor) -> Tensor:
    """Call every native."""
    return layer([op.declaration.native for op in ALL], x, r, positions)


def chosen_rows(mask: Tensor, x: Tensor, r: Tensor, positions: Tensor) -> Tensor:
    """Call every op on as many rows as a mask has ones."""
    rows = mask.nonzero().squeeze(1)
    return donating(x[rows], r[rows], positions[rows])


def keep(tensor: Tensor, dimension: int) -> None:
    """Mark nothing."""
    del tensor, dimension


class Compiler:
    """Compiles functions and counts their graphs.

    Attributes:
        graphs: lowered graphs.
        lowered: what became of their ops.
    """

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.lowered: list[Any] = []

    def lower(self, module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Lower a graph and let torch run it node by node."""
        self.lowered.append(lower_graph(module))
        module.graph.lint()
        self.graphs.append(module)
        return module

    def __call__(
        self,
        function: Callable[..., Any],
        provider: str = "probe",
        *,
        door: str = "backend",
        dynamic: bool | None = None,
    ) -> Any:
        """Return a compiled function in which a provider comes before native wherever it has an implementation."""
        priority = {op.name: [*([provider] if provider in op.impls else []), "native"] for op in ALL}
        own: dict[str, Any] = {"priority": priority, "lower_to": self.lower}
        if door == "function":
            return vllm_ir.compile(function, fullgraph=True, dynamic=dynamic, **own)
        return torch.compile(function, backend="vllm_ir", options=own, fullgraph=True, dynamic=dynamic)

    def counts(self, compiled: Any, sizes: Sequence[int], mark: Callable[..., Any] = keep) -> list[int]:
        """Call a function with batches of these sizes and return how many graphs there were behind each of them."""
        found = []
        for size in sizes:
            given, wanted = inputs(size), donating(*inputs(size))
            for tensor in given:
                mark(tensor, 0)
            with torch.no_grad():
                torch.testing.assert_close(compiled(*given), wanted)
            found.append(len(self.graphs))
        return found

    def check_selected(self, provider: str) -> None:
        """Fail unless a provider ran every op that it has, in every graph."""
        for lowered in self.lowered:
            for op in ALL:
                assert set(lowered.selected[op.name].values()) == {provider if provider in op.impls else "native"}


@pytest.fixture
def compiler() -> Compiler:
    """Return what compiles functions and counts their graphs."""
    return Compiler()


def installed() -> list[str]:
    """Return the names of providers that are usable here."""
    vllm_ir.load_providers()
    return sorted({provider for op in ALL for provider in op.impls})


@pytest.fixture(params=["native", "functional", "inplace", "both", "cpu_c", "first_provider"])
def provider(request: pytest.FixtureRequest) -> str:
    """Return the name of a provider: one of this test's, of one of four kinds, or one that is installed."""
    kind: str = request.param
    if kind in ("cpu_c", "first_provider"):
        if kind not in installed():
            pytest.skip(f"needs provider {kind}, which is not installed or not usable here")
        return kind
    provide = request.getfixturevalue("provide")
    for op in ALL:
        provide(op, kind)
    return "native" if kind == "native" else "probe"


def test_no_installed_provider_is_left_out() -> None:
    """The list above has every provider that this machine has; parts that run unfused are themselves in it."""
    known = {"native", "unfused", "cpu_c", "first_provider"}
    assert known.issuperset(installed())


def torchs_counts(sizes: Sequence[int], *, dynamic: bool | None = None) -> list[int]:
    """Return how many graphs torch makes of natives, with nothing of ours, behind each of some sizes."""
    graphs: list[Any] = []

    def compile_one(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Count a graph."""
        graphs.append(module)
        return module

    compiled = torch.compile(natives, backend=compile_one, fullgraph=True, dynamic=dynamic)
    found = []
    for size in sizes:
        compiled(*inputs(size))
        found.append(len(graphs))
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize("dynamic", [None, True])
def test_as_many_graphs_as_torch_makes(compiler: Compiler, provider: str, dynamic: bool | None) -> None:
    """Sizes from two on share one graph, behind a first one of its own at most; 0 and 1 cost what they cost torch."""
    door = "function" if dynamic else "backend"
    sizes = (*SIZES, 0, 1, 7)
    got = compiler.counts(compiler(donating, provider, door=door, dynamic=dynamic), sizes)
    assert got[: len(SIZES)] == ([1] * 5 if dynamic else [1, 2, 2, 2, 2])
    assert got == torchs_counts(sizes, dynamic=dynamic)
    compiler.check_selected(provider)


def test_marked_dynamic(compiler: Compiler, provider: str) -> None:
    """A size that is marked has one graph, where torch would raise if anything had fixed or narrowed it."""
    compiled = compiler(donating, provider)
    assert compiler.counts(compiled, SIZES, functools.partial(torch._dynamo.mark_dynamic, min=2, max=1024)) == [1] * 5
    compiler.check_selected(provider)


def test_marked_unbacked(compiler: Compiler, provider: str) -> None:
    """A size without an example has one graph for all of them, 0 and 1 included."""
    compiled = compiler(donating, provider, door="function")
    mark = functools.partial(mark_unbacked, shape_id="tokens")
    assert compiler.counts(compiled, (3, 2, 0, 1, 64), mark) == [1] * 5
    compiler.check_selected(provider)


def test_sizes_that_follow_from_data(compiler: Compiler, provider: str) -> None:
    """A size that only the values tell has one graph, for no rows, too."""
    compiled = compiler(chosen_rows, provider)
    given = inputs(4)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        for mask in ((1, 0, 1, 0), (0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 0)):
            flags = torch.tensor(mask).bool()
            torch.testing.assert_close(compiled(flags, *given), chosen_rows(flags, *given))
    assert len(compiler.graphs) == 1
    compiler.check_selected(provider)


def test_training_with_changing_batches(compiler: Compiler, provider: str) -> None:
    """A dynamic graph with its backward graph serves all batches, with native's gradients."""
    compiled = compiler(donating, provider, dynamic=True)
    for size in SIZES:
        found = []
        for run in (compiled, natives):
            x, r, positions = inputs(size)
            x.requires_grad_()
            run(x, r, positions).sin().sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=2e-4)
    assert len(compiler.graphs) == 2


PREDICATES: dict[str, Callable[[Tensor], Any]] = {
    "compares": lambda x: x.shape[0] > 16,
    "divides": lambda x: x.shape[0] % 8 == 0,
    "counts elements": lambda x: x.numel() > 32,
    "counts bytes": lambda x: x.numel() * x.element_size() < 64,
    "asks for emptiness": lambda x: x.shape[0] != 3,
    "makes a number": lambda x: int(x.shape[0]) > 16,
}


@pytest.mark.parametrize("how", ["dynamic", "unbacked"])
@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_that_asks_for_the_batch(state: Runtime, compiler: Compiler, name: str, how: str) -> None:
    """An answer that depends on the batch is an error that names op, provider and the user's line."""
    assert state is not None
    predicate = PREDICATES[name]

    def accepts(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
        """Ask for a size."""
        del weight, epsilon, variance_size
        return predicate(x)

    rms.register_impl("narrow", supports_args=accepts)(rms.declaration.native)
    x = torch.ones(5, WIDTH)
    (mark_unbacked if how == "unbacked" else torch._dynamo.mark_dynamic)(x, 0)
    compiled = compiler(lambda x: rms(x, WEIGHT, 1e-5) * 2, "narrow", door="function")
    with pytest.raises(BatchGuard) as raised:
        compiled(x)
    assert (raised.value.op, raised.value.provider) == ("rms_norm", "narrow")
    assert "test_dynamic_sizes.py" in raised.value.where


def test_a_predicate_that_hides_the_question(state: Runtime, compiler: Compiler) -> None:
    """One that asks for the batch and catches what comes of it has fixed nothing: its answer serves all batches."""
    assert state is not None

    def accepts(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
        """Ask for the batch."""
        del weight, epsilon, variance_size
        with contextlib.suppress(Exception):
            return bool(x.shape[0] > 16)
        return True

    rms.register_impl("narrow", supports_args=accepts)(rms.declaration.native)
    compiled = compiler(donating, "narrow", dynamic=True)
    assert compiler.counts(compiled, SIZES) == [1] * 5
    compiler.check_selected("narrow")
