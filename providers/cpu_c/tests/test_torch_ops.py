"""Under a tracer each kernel is one node with a true fake; eager calls pass the dispatcher by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from vllm_ir_provider_cpu_c import kernels, torch_ops

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: dict[str, Callable[..., Any]] = {
    "rms_norm": kernels.rms_norm.impl_fn,
    "fused_add_rms_norm": kernels.fused_add_rms_norm.impl_fn,
    "functional_fused_add_rms_norm": kernels.functional_fused_add_rms_norm,
    "silu_and_mul": kernels.silu_and_mul.impl_fn,
    "gelu_and_mul": kernels.gelu_and_mul.impl_fn,
    "rotary_embedding": kernels.rotary_embedding.impl_fn,
    "functional_rotary_embedding": kernels.functional_rotary_embedding,
    "fused_qk_norm_rope": kernels.fused_qk_norm_rope.impl_fn,
    "functional_fused_qk_norm_rope": kernels.functional_fused_qk_norm_rope,
}
OPS = [
    *(op for op in CASES if "functional" not in op),
    "fused_add_rms_norm_",
    "rotary_embedding_",
    "fused_qk_norm_rope_",
]


def found(op: str) -> Any:
    """Return torch's definition of an op, or of its form that writes if the name ends so."""
    made = getattr(torch_ops, op.removesuffix("_"))
    return made.inplace if op.endswith("_") else made.functional


def arguments(op: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Return the arguments of a call."""
    x, residual, weight = (torch.randn(3, 64).to(dtype), torch.randn(3, 64).to(dtype), torch.randn(64).to(dtype))
    return {
        "rms_norm": (x, weight, 1e-6),
        "fused_add_rms_norm": (x, residual, weight, 1e-6),
        "silu_and_mul": (x,),
        "gelu_and_mul": (x, "tanh"),
        "fused_qk_norm_rope": (
            torch.tensor([0, 2, 7]),
            x,
            residual,
            torch.randn(16).to(dtype),
            None,
            1e-6,
            16,
            16,
            torch.randn(8, 16).to(dtype),
            True,
        ),
        "rotary_embedding": (torch.tensor([0, 2, 7]), x, residual, 16, 16, torch.randn(8, 16).to(dtype), True),
    }[op.removeprefix("functional_")]


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def clones(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


def nodes(graph: torch.fx.GraphModule) -> list[str]:
    """Return the names of the torch ops in a graph."""
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function" and "vllm" in str(node.target)]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_finds_no_fault_with_the_ops(op: str, dtype: torch.dtype) -> None:
    """Schema, fake, and use under AOTAutograd with changing sizes."""
    opcheck(found(op), clones(arguments(op.removesuffix("_"), dtype)))


@pytest.mark.parametrize("op", CASES)
def test_the_fake_has_the_strides_of_the_real_result(op: str) -> None:
    """Also for rows that do not lie side by side."""
    args = tuple(
        torch.randn(3, 2, 64)[:, 1] if isinstance(arg, torch.Tensor) and arg.shape == (3, 64) else arg
        for arg in arguments(op)
    )
    real = _tensors(CASES[op](*args))
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        fake = _tensors(CASES[op](*fakes))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_trace_has_one_node(
    op: str, mode: Literal["real", "fake", "symbolic"], same_bits: Callable[[Any, Any], None]
) -> None:
    """make_fx sees the torch op in the place of the kernel, and the graph computes the same."""
    args = arguments(op)
    where = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        """Run the implementation on the tensors given."""
        all_args = list(args)
        for i, tensor in zip(where, given, strict=True):
            all_args[i] = tensor
        return CASES[op](*all_args)

    given = [args[i] for i in where]
    graph = make_fx(call, tracing_mode=mode)(*clones(tuple(given)))
    assert len(nodes(graph)) == 1
    same_bits(graph(*clones(tuple(given))), call(*clones(tuple(given))))


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamo_takes_predicate_and_kernel_in_one_graph(
    op: str, dynamic: bool, same_bits: Callable[[Any, Any], None]
) -> None:
    """Fullgraph: nothing of the compiled module is looked into."""
    predicate = getattr(kernels, op.removeprefix("functional_")).predicate

    def call(*args: Any) -> Any:
        """Ask, then run."""
        return CASES[op](*args) if predicate(*args) else None

    torch.compiler.reset()
    args = arguments(op)
    got = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*clones(args))
    same_bits(got, call(*clones(args)))


class Recorder(TorchDispatchMode):
    """Remembers which torch ops ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Remember and run."""
        del types
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_kernel_as_one_op() -> None:
    """As it would see any torch op; without the mode no torch op of ours runs."""
    with Recorder() as recorder:
        kernels.rms_norm.impl_fn(*arguments("rms_norm"))
    assert [name for name in recorder.seen if "cpu_c" in name] == ["vllm_ir_cpu_c.rms_norm.default"]


def test_a_subclass_goes_through_its_own_dispatch(same_bits: Callable[[Any, Any], None]) -> None:
    """Only plain tensors and parameters reach the kernel directly."""

    class Marked(torch.Tensor):
        """A tensor that tells when it is dispatched."""

        seen = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Count and run."""
            cls.seen += 1
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # the same

    x, weight, epsilon = arguments("rms_norm")
    kernels.rms_norm.impl_fn(x.as_subclass(Marked), weight, epsilon)
    assert Marked.seen
    same_bits(
        kernels.rms_norm.impl_fn(torch.nn.Parameter(x, requires_grad=False), weight, epsilon),
        kernels.rms_norm.impl_fn(x, weight, epsilon),
    )


@pytest.mark.parametrize("op", ["fused_add_rms_norm", "rotary_embedding", "fused_qk_norm_rope"])
def test_the_mutating_op_writes_what_is_not_contiguous(op: str) -> None:
    """Called with views, it leaves in them what the functional op returns."""
    args = list(arguments(op))
    first = 0 if op == "fused_add_rms_norm" else 1
    wide = torch.randn(3, 192)
    args[first], args[first + 1] = wide[:, :64], wide[:, 64:128]
    expected = found(op)(*args)
    rest = wide[:, 128:].clone()
    assert found(f"{op}_")(*args) is None
    assert torch.equal(args[first], expected[0])
    assert torch.equal(args[first + 1], expected[1])
    assert torch.equal(wide[:, 128:], rest)
