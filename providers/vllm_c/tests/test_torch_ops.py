"""Under a tracer each kernel is one node with a true fake; eager calls pass the dispatcher by.

The ops are for CUDA tensors; here they get the same functions for the CPU, on which the kernels run as fibers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from vllm_ir_provider_vllm_c import kernels, norm_quant_kernels, quant_kernels, torch_ops

if TYPE_CHECKING:
    from collections.abc import Callable

FP8 = torch.float8_e4m3fn
PER_TOKEN = True
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
    **{
        op: getattr(quant_kernels, op).impl_fn
        for op in (
            "static_quant_fp8",
            "dynamic_quant_fp8",
            "dynamic_group_quant_fp8",
            "silu_and_mul_static_quant_fp8",
            "silu_and_mul_dynamic_quant_fp8",
            "silu_and_mul_group_quant_fp8",
        )
    },
    "rms_norm_static_quant_fp8": norm_quant_kernels.rms_norm_static_quant_fp8.impl_fn,
    "rms_norm_dynamic_quant_fp8": norm_quant_kernels.rms_norm_dynamic_quant_fp8.impl_fn,
    "functional_fused_add_rms_norm_static_quant_fp8": (
        norm_quant_kernels.functional_fused_add_rms_norm_static_quant_fp8
    ),
    "functional_fused_add_rms_norm_dynamic_quant_fp8": (
        norm_quant_kernels.functional_fused_add_rms_norm_dynamic_quant_fp8
    ),
    "fused_add_rms_norm_static_quant_fp8": norm_quant_kernels.fused_add_rms_norm_static_quant_fp8.impl_fn,
    "fused_add_rms_norm_dynamic_quant_fp8": norm_quant_kernels.fused_add_rms_norm_dynamic_quant_fp8.impl_fn,
}
OPS = [op for op in CASES if "functional" not in op]
OPS += [f"{op.removeprefix('functional_')}_" for op in CASES if "functional" in op]


def torch_op(op: str) -> Any:
    """Return torch's definition of an op, or of its form that writes if the name ends so."""
    made = getattr(torch_ops, op.removesuffix("_"))
    return made.inplace if op.endswith("_") else made.functional


@pytest.fixture(autouse=True, scope="module")
def _on_cpu() -> None:
    """Register the ops' functions for the CPU, too, for the rest of this process."""
    for op in OPS:
        defined = torch_op(op)
        defined.register_kernel("cpu")(defined._init_fn)


@pytest.fixture(autouse=True)
def _harness(cpu: Any) -> None:
    """Run every kernel on this CPU."""
    del cpu


def arguments(op: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Return the arguments of a call."""
    x, residual, weight = (torch.randn(3, 64).to(dtype), torch.randn(3, 64).to(dtype), torch.randn(64).to(dtype))
    positions, cache, scale = torch.tensor([0, 2, 7]), torch.randn(8, 16).to(dtype), torch.tensor([0.02])
    return {
        "rms_norm": (x, weight, 1e-6),
        "fused_add_rms_norm": (x, residual, weight, 1e-6),
        "silu_and_mul": (x,),
        "gelu_and_mul": (x, "tanh"),
        "rotary_embedding": (positions, x, residual, 16, 16, cache, True),
        "fused_qk_norm_rope": (positions, x, residual, None, weight[:16].clone(), 1e-6, 16, 16, cache, True),
        "static_quant_fp8": (x, scale, FP8),
        "dynamic_quant_fp8": (x, True, None, FP8),
        "dynamic_group_quant_fp8": (x, 16, True, False, FP8),
        "silu_and_mul_static_quant_fp8": (x, scale, FP8),
        "silu_and_mul_dynamic_quant_fp8": (x, False, torch.tensor([0.5]), FP8),
        "silu_and_mul_group_quant_fp8": (x, 8, False, True, FP8),
        "rms_norm_static_quant_fp8": (x, weight, scale, 1e-6, FP8),
        "rms_norm_dynamic_quant_fp8": (x, weight, 1e-6, False, None, FP8),
        "fused_add_rms_norm_static_quant_fp8": (x, residual, None, scale, 1e-6, FP8),
        "fused_add_rms_norm_dynamic_quant_fp8": (x, residual, weight, 1e-6, True, None, FP8),
    }[op.removeprefix("functional_")]


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def same(got: Any, expected: Any) -> None:
    """Require equal results."""
    for one, other in zip(tensors(got), tensors(expected), strict=True):
        assert torch.equal(one.float(), other.float())


def clones(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_finds_no_fault_with_the_ops(op: str, dtype: torch.dtype) -> None:
    """Schema, fake, and use under AOTAutograd with changing sizes."""
    opcheck(torch_op(op), clones(arguments(op.removesuffix("_"), dtype)))


@pytest.mark.parametrize("op", CASES)
def test_the_fake_has_the_strides_of_the_real_result(op: str) -> None:
    """Also for rows that do not lie side by side, which are left alone when they are donated."""
    args = tuple(
        torch.randn(3, 2, 64)[:, 1] if isinstance(arg, torch.Tensor) and arg.shape == (3, 64) else arg
        for arg in arguments(op)
    )
    before = clones(args)
    real = tensors(CASES[op](*args))
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        fake = tensors(CASES[op](*fakes))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    assert all(
        torch.equal(one, other) for one, other in zip(args, before, strict=True) if isinstance(one, torch.Tensor)
    )


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_trace_has_one_node(op: str, mode: Literal["real", "fake", "symbolic"]) -> None:
    """make_fx sees the torch op in the place of the kernel, and the graph computes the same."""
    args = arguments(op)
    where = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        """Run the implementation on the tensors given."""
        all_args = list(args)
        for i, tensor in zip(where, given, strict=True):
            all_args[i] = tensor
        return CASES[op](*all_args)

    given = tuple(args[i] for i in where)
    graph = make_fx(call, tracing_mode=mode)(*clones(given))
    nodes = [each for each in graph.graph.nodes if each.op == "call_function" and "vllm" in str(each.target)]
    assert len(nodes) == 1
    same(graph(*clones(given)), call(*clones(given)))


@pytest.mark.parametrize("op", CASES)
def test_dynamo_takes_a_kernel_in_one_graph(op: str) -> None:
    """Fullgraph, with open sizes: nothing of the launch is looked into."""
    torch.compiler.reset()
    args = arguments(op)
    got = torch.compile(CASES[op], fullgraph=True, dynamic=True, backend="aot_eager")(*clones(args))
    same(got, CASES[op](*clones(args)))


class Recorder(TorchDispatchMode):
    """Remembers which torch ops ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Remember the op and run it."""
        del types
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", CASES)
def test_a_mode_sees_the_op_and_an_eager_call_passes_it_by(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches sees one op; who does not pays for none."""
    with Recorder() as recorder:
        CASES[op](*clones(arguments(op)))
    assert sum("vllm_ir_vllm_c" in each for each in recorder.ops) == 1
    monkeypatch.setattr(kernels, "torch_ops", None)
    for module in (quant_kernels, norm_quant_kernels):
        monkeypatch.setattr(module, "torch_ops", None)
    CASES[op](*clones(arguments(op)))


def test_an_op_settles_what_its_kernel_could_not_write_in_place() -> None:
    """The ops that write promise it to whoever traces, for any strides and for one tensor donated twice."""
    x, residual = torch.randn(3, 2, 64)[:, 0], torch.randn(3, 64)
    expected = kernels.functional_fused_add_rms_norm(x, residual, None, 1e-6)
    torch_op("fused_add_rms_norm_")(x, residual, None, 1e-6)
    same((x, residual), expected)
    wide = torch.randn(3, 2, 64)[:, 0]
    before = norm_quant_kernels.functional_fused_add_rms_norm_dynamic_quant_fp8(x, wide, None, 1e-6)
    out, scale = torch_op("fused_add_rms_norm_dynamic_quant_fp8_")(x, wide, None, 1e-6, PER_TOKEN, None, FP8)
    same((out, scale, wide), before)
