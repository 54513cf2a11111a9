"""The quantising kernels and fused_qk_norm_rope under a tracer, as `test_torch_ops.py` has it for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from vllm_ir import ops
from vllm_ir_provider_triton import declared, norm_quant_kernels, quant_calls, quant_kernels, torch_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_provider_triton.variants import Launch

pytestmark = pytest.mark.usefixtures("launches")

FP8, EPSILON, TOKENS = torch.float8_e4m3fn, 1e-6, 3
QK = "fused_qk_norm_rope"
BY_TENSOR = ("dynamic_quant_fp8", "silu_and_mul_dynamic_quant_fp8")


def calls() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return every form of every op, with arguments."""
    found = {}
    for op, impl in declared.FREE.items():
        args = getattr(ops, op).generate_inputs(num_tokens=TOKENS, hidden_size=64)
        if "group" in op:
            args = (args[0], 16, True, True, FP8)
        if op == QK:
            args = (*args[:3], args[3].float(), *args[4:])
        found[op] = (impl.impl_fn, args)
        if op in BY_TENSOR:
            found[f"{op} by tensor"] = (impl.impl_fn, (args[0], False, torch.ones(1), FP8))
        if impl.functional is not None:
            found[f"functional {op}"] = (impl.functional, args)
    return found


def torch_calls() -> dict[str, tuple[Any, ...]]:
    """Return arguments of every torch op."""
    x, residual, weight, scale = torch.randn(3, 64), torch.randn(3, 64), torch.randn(64), torch.tensor([0.01])
    _, *heads = getattr(ops, QK).generate_inputs(num_tokens=TOKENS, hidden_size=64)
    positions = torch.arange(TOKENS)
    return {
        "static_quant_fp8": (x, scale, FP8),
        "silu_and_mul_static_quant_fp8": (x, scale, FP8),
        "dynamic_quant_fp8": (x, True, scale, FP8),
        "silu_and_mul_dynamic_quant_fp8": (x, False, scale, FP8),
        "dynamic_group_quant_fp8": (x, 16, True, True, FP8),
        "silu_and_mul_group_quant_fp8": (x, 16, False, True),
        "rms_norm_static_quant_fp8": (x, weight, scale, EPSILON, FP8),
        "rms_norm_dynamic_quant_fp8": (x, None, EPSILON),
        "fused_add_rms_norm_static_quant_fp8": (x, residual, weight, scale, EPSILON, FP8),
        "fused_add_rms_norm_static_quant_fp8_": (x, residual, weight, scale, EPSILON),
        "fused_add_rms_norm_dynamic_quant_fp8": (x, residual, weight, EPSILON),
        "fused_add_rms_norm_dynamic_quant_fp8_": (x, residual, None, EPSILON, True, scale, FP8),
        QK: (positions, *heads),
        f"{QK}_": (positions, *heads),
    }


def definition(op: str) -> Any:
    """Return torch's definition of an op, or of its form that writes if the name ends so."""
    made = getattr(torch_ops, op.removesuffix("_"))
    return made.inplace if op.endswith("_") else made.functional


@pytest.fixture(autouse=True, scope="module")
def _on_cpu() -> None:
    """Register the ops' functions for the CPU, too, for the rest of this process."""
    for op in torch_calls():
        defined = definition(op)
        defined.register_kernel("cpu")(defined._init_fn)


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def bits(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor that torch can compare."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


def same(got: Any, expected: Any) -> None:
    """Require equal results."""
    for one, other in zip(tensors(got), tensors(expected), strict=True):
        assert torch.equal(bits(one), bits(other))


def clones(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


@pytest.mark.parametrize("op", torch_calls())
def test_torch_finds_no_fault_with_a_quantising_op(op: str) -> None:
    """Schema, fake, and use under AOTAutograd with changing sizes."""
    opcheck(definition(op), clones(torch_calls()[op]))


@pytest.mark.parametrize("name", calls())
def test_the_fake_of_a_quantised_result_has_its_strides(name: str) -> None:
    """Also for rows that do not lie side by side, which are left alone when they are donated."""
    function, args = calls()[name]
    args = tuple(
        torch.randn(3, 2, 64)[:, 1] if isinstance(arg, torch.Tensor) and arg.shape == (3, 64) else arg for arg in args
    )
    before = clones(args)
    real = tensors(function(*args))
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        fake = tensors(function(*fakes))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    kept = [pair for pair in zip(args, before, strict=True) if isinstance(pair[0], torch.Tensor)]
    assert all(torch.equal(one, other) for one, other in kept)


@pytest.mark.parametrize("name", calls())
def test_a_trace_of_a_quantised_call_has_one_node(name: str) -> None:
    """make_fx sees the torch op in the place of the kernel, for any number of tokens, and computes the same."""
    function, args = calls()[name]
    where = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        """Run the implementation on the tensors given."""
        all_args = list(args)
        for i, tensor in zip(where, given, strict=True):
            all_args[i] = tensor
        return function(*all_args)

    given = tuple(args[i] for i in where)
    graph = make_fx(call, tracing_mode="symbolic")(*clones(given))
    nodes = [each for each in graph.graph.nodes if each.op == "call_function" and "vllm" in str(each.target)]
    assert len(nodes) == 1
    same(graph(*clones(given)), call(*clones(given)))


@pytest.mark.parametrize("name", calls())
def test_dynamo_takes_a_quantising_kernel_in_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fullgraph, with open sizes; and an eager call passes the torch op by."""
    torch.compiler.reset()
    function, args = calls()[name]
    got = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")(*clones(args))
    monkeypatch.setattr(quant_kernels, "torch_ops", None)
    monkeypatch.setattr(norm_quant_kernels, "torch_ops", None)
    same(got, function(*clones(args)))


def test_a_quantising_op_settles_what_its_kernel_could_not_write_in_place() -> None:
    """For a residual of any strides, and for one that is x, too."""
    x = torch.randn(3, 2, 64)
    for op, others in (
        ("fused_add_rms_norm_static_quant_fp8_", (torch.ones(1), EPSILON, FP8)),
        ("fused_add_rms_norm_dynamic_quant_fp8_", (EPSILON, True, None, FP8)),
    ):
        residual = torch.randn(3, 2, 64)[:, 0]
        wanted = x[:, 1] + residual
        definition(op)(x[:, 1], residual, None, *others)
        assert torch.equal(residual, wanted)
    query = torch.randn(3, 2, 64)[:, 0]
    args = (
        torch.arange(TOKENS),
        query,
        query.clone(),
        *getattr(ops, QK).generate_inputs(num_tokens=TOKENS, hidden_size=64)[3:],
    )
    turned = norm_quant_kernels.functional_fused_qk_norm_rope(*args)
    definition(f"{QK}_")(*args)
    same(args[1:3], turned)


@pytest.mark.parametrize("name", calls())
def test_quantisation_is_planned_without_the_batch(name: str, launches: list[Launch]) -> None:
    """One launch a call, or two, the same for one row and a thousand."""
    function, args = calls()[name]
    many = tuple(
        each.repeat(400, *[1] * (each.dim() - 1))
        if isinstance(each, torch.Tensor) and each.dim() and each.shape[0] == TOKENS
        else each
        for each in args
    )
    for given in (args, many):
        function(*clones(given))
    number = 1 + name.endswith("by tensor")
    assert len(launches) == 2 * number
    assert len({each.variant for each in launches}) == number
    assert quant_calls.sizes(torch.ones(2, 6), gated=True) == (2, 3)
