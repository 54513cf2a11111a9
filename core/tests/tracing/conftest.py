"""Programs with one op in them, and the situations in which a tracer may meet them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.op import IrOp
    from vllm_ir.runtime import Runtime

EPSILON = 1e-5
ARITHMETIC = ("pow", "rsqrt", "mean")


@dataclass(frozen=True, slots=True)
class Program:
    """A call of one overload of one op, with the same arguments for all.

    Attributes:
        op: the op.
        overload: "default" or "maybe_inplace".
    """

    op: IrOp
    overload: str

    @property
    def target(self) -> Any:
        """The torch op that a tracer must see."""
        return self.op.torch_op if self.overload == "default" else self.op.maybe_inplace.torch_op  # type: ignore[attr-defined]

    @property
    def call(self) -> Any:
        """What a program calls."""
        return self.op if self.overload == "default" else self.op.maybe_inplace  # type: ignore[attr-defined]

    @property
    def fused(self) -> bool:
        """Whether the op takes a residual and returns it too."""
        return self.op is ops.fused_add_rms_norm

    def function(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return the program as a function of x, a residual and a weight, which changes none of them."""
        call, donates = self.call, self.overload == "maybe_inplace"

        def normalize(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
            """Call an op of one result."""
            return call(x, w, EPSILON) + r  # type: ignore[no-any-return]

        def add_normalize(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
            """Call an op of two results; what is donated is a copy."""
            out, total = call(x.clone(), r.clone(), w, EPSILON) if donates else call(x, r, w, EPSILON)
            return out + total  # type: ignore[no-any-return]

        return add_normalize if self.fused else normalize

    def keywords(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return the same program with arguments given by name, in another order and with the default written out."""
        call = self.call

        def normalize(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
            """Call an op of one result."""
            return call(epsilon=EPSILON, x=x, weight=w, variance_size=None) + r  # type: ignore[no-any-return]

        def add_normalize(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
            """Call an op of two results."""
            out, total = call(x.clone(), epsilon=EPSILON, weight=w, x_residual=r.clone())
            return out + total  # type: ignore[no-any-return]

        return add_normalize if self.fused else normalize

    def module(self) -> torch.nn.Module:
        """Return the same program as a module that holds the weight."""
        return Net(self.function())

    def expected(self, x: Tensor, r: Tensor, w: Tensor, factor: float = 1.0) -> Tensor:
        """Return what the program means when a provider multiplies by a factor."""
        if self.fused:
            out, total = self.op.declaration.native(x, r, w, EPSILON)
            return out * factor + total * factor  # type: ignore[no-any-return]
        return self.op.declaration.native(x, w, EPSILON) * factor + r  # type: ignore[no-any-return]

    def nodes(self, graph: torch.fx.Graph) -> list[Any]:
        """Return the nodes that stand for the op; a functional wrapper of a mutating op counts for it."""
        accepted = (self.target, getattr(torch.ops, self.target.namespace), self.target.overloadpacket)
        found = [n for n in graph.nodes if n.op == "call_function" and accepted_by(n, accepted)]
        told = " ".join(str(n.target) for n in graph.nodes if n.op == "call_function")
        assert not any(word in told for word in ARITHMETIC), told
        return found


def accepted_by(node: Any, accepted: tuple[Any, ...]) -> bool:
    """Tell whether a node calls one of these, itself or through `auto_functionalized`."""
    if node.target in accepted:
        return True
    return "auto_functionalized" in str(node.target) and node.args[0] in accepted


class Net(torch.nn.Module):
    """A module with the weight as a parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 64))

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        """Run the program."""
        return self.function(x, r, self.weight)


@dataclass(slots=True)
class Situation:
    """What has happened before a tracer comes.

    Attributes:
        name: in one word.
        program: what is traced.
        factor: what the provider that must run multiplies by.
        kernels: the calls of every provider by name.
        runs: the provider that must run.
    """

    name: str
    program: Program
    factor: float
    kernels: dict[str, list[tuple[Any, ...]]]
    runs: str

    def check_runs(self) -> None:
        """Fail unless the provider that must run, and no other, was called."""
        for name, calls in self.kernels.items():
            assert bool(calls) is (name == self.runs), name

    def check_idle(self) -> None:
        """Fail if any provider's kernel was called."""
        assert not any(self.kernels.values())


PROGRAMS = ("rms_norm.default", "fused_add_rms_norm.default", "fused_add_rms_norm.maybe_inplace")
SITUATIONS = ("cold", "warm", "provider", "provider_warm", "inplace_provider", "two", "scope")


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest, state: Runtime) -> Program:
    """Give every overload once."""
    assert state is not None
    name, _, overload = request.param.partition(".")
    return Program(getattr(ops, name), overload)


@pytest.fixture(params=SITUATIONS)
def situation(
    request: pytest.FixtureRequest, program: Program, add_provider: Callable[..., list[tuple[Any, ...]]]
) -> Iterator[Situation]:
    """Bring the op into each situation: before and after the first call, with providers, and inside a scope."""
    name: str = request.param
    op = program.op
    kernels: dict[str, list[tuple[Any, ...]]] = {}
    factor, runs = 1.0, "native"
    with ExitStack() as stack:
        if name in ("provider", "provider_warm", "inplace_provider", "scope"):
            inplace = name == "inplace_provider" and program.fused
            kernels["a"] = add_provider(op, "a", 2.0, inplace=inplace)
            factor, runs = 2.0, "a"
        if name == "two":
            kernels["a"] = add_provider(op, "a", 2.0, supports_args=refuses(op))
            kernels["b"] = add_provider(op, "b", 3.0)
            op.set_default(["a", "b"])
            factor, runs = 3.0, "b"
        elif name == "scope":
            stack.enter_context(op.set_priority("a"))
        elif kernels:
            op.set_default("a")
        if name in ("warm", "provider_warm"):
            program.function()(torch.ones(2, 64), torch.ones(2, 64), torch.ones(64))
            for calls in kernels.values():
                calls.clear()
        yield Situation(name, program, factor, kernels, runs)


def refuses(op: IrOp) -> Callable[..., Any]:
    """Return a predicate of an op that wants float16."""
    import functools

    @functools.wraps(op.declaration.native)
    def supports(x: Tensor, *_rest: Any, **_named: Any) -> bool:
        """Want float16."""
        return x.dtype is torch.float16

    return supports


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Give x and a residual [4, 64] and a weight [64]."""
    generator = torch.Generator().manual_seed(0)
    x, r = (torch.randn(4, 64, generator=generator) for _ in range(2))
    return x, r, torch.linspace(0.5, 1.5, 64)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Forget what Dynamo compiled for another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
