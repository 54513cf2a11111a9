"""Under a tracer each quantisation is one node with a true fake, and asks for nothing that a graph does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
import vllm_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from vllm_ir import ops
from vllm_ir_provider_cpu_c import quant_kernels, torch_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    Same = Callable[[Any, Any], None]

E4M3 = torch.float8_e4m3fn
OPS = tuple(name for name in ops.__all__ if "quant_fp8" in name)
FORMS: dict[str, Callable[..., Any]] = {
    **{name: getattr(quant_kernels, name).impl_fn for name in OPS},
    **{f"functional {name}": impl.functional for name in OPS if (impl := getattr(quant_kernels, name)).functional},
}


def arguments(form: str) -> tuple[Any, ...]:
    """Return the arguments of a call, column-major scales among them."""
    name = form.removeprefix("functional ")
    more = {"column_major_scales": True, "group_size": 16} if "group" in name else {}
    args: tuple[Any, ...] = getattr(ops, name).generate_inputs(num_tokens=3, hidden_size=64, **more)
    return args


def clones(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


X, RESIDUAL, ONE = torch.randn(3, 64), torch.randn(3, 64), torch.tensor([0.01])
CALLS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("static_quant_fp8", (X, ONE, E4M3)),
    ("dynamic_quant_fp8", (X, True, ONE, E4M3)),
    ("dynamic_quant_fp8", (X, False)),
    ("dynamic_group_quant_fp8", (X, 16, True, True, E4M3)),
    ("rms_norm_static_quant_fp8", (X, torch.ones(64), ONE, 1e-6, E4M3)),
    ("rms_norm_dynamic_quant_fp8", (X, None, 1e-6, False)),
    ("silu_and_mul_static_quant_fp8", (X, ONE)),
    ("silu_and_mul_dynamic_quant_fp8", (X, True, None, E4M3)),
    ("silu_and_mul_group_quant_fp8", (X, 8, False, True, E4M3)),
    ("fused_add_rms_norm_static_quant_fp8", (X, RESIDUAL, None, ONE, 1e-6, E4M3)),
    ("fused_add_rms_norm_static_quant_fp8_", (X, RESIDUAL, None, ONE, 1e-6, E4M3)),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, RESIDUAL, None, 1e-6, True, None, E4M3)),
    ("fused_add_rms_norm_dynamic_quant_fp8_", (X, RESIDUAL, None, 1e-6, False, None, E4M3)),
)


def found(op: str) -> Any:
    """Return torch's definition of an op, or of its form that writes if the name ends so."""
    made = getattr(torch_ops, op.removesuffix("_"))
    return made.inplace if op.endswith("_") else made.functional


@pytest.mark.parametrize(("op", "args"), CALLS, ids=[f"{op}-{i}" for i, (op, _) in enumerate(CALLS)])
def test_torch_finds_no_fault_with_the_quantised_ops(op: str, args: tuple[Any, ...]) -> None:
    """Schema, fake, and use under AOTAutograd with changing sizes."""
    opcheck(found(op), clones(args))


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64), (2, 2, 3, 64), (0, 64)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_the_fake_of_a_quantisation_has_real_strides(form: str, shape: tuple[int, ...]) -> None:
    """In every number of dimensions, column-major scales among them."""
    args = tuple(
        torch.randn(*shape[:-1], arg.shape[-1]) if isinstance(arg, torch.Tensor) and arg.dim() == 2 else arg
        for arg in arguments(form)
    )
    real = tensors(FORMS[form](*args))
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        fake = tensors(FORMS[form](*fakes))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert not one.numel() or one.stride() == other.stride()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_a_trace_of_a_quantisation_has_one_node(form: str, mode: Literal["real", "symbolic"], same_bits: Same) -> None:
    """make_fx sees the torch op in the place of the kernel, and the graph computes the same."""
    args = arguments(form)
    where = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        """Run the form on the tensors given."""
        whole = list(args)
        for i, tensor in zip(where, given, strict=True):
            whole[i] = tensor
        return FORMS[form](*whole)

    given = tuple(args[i] for i in where)
    graph = make_fx(call, tracing_mode=mode)(*clones(given))
    names = [str(node.target) for node in graph.graph.nodes if "cpu_c" in str(node.target)]
    assert len(names) == 1
    same_bits(graph(*clones(given)), call(*clones(given)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamo_takes_predicate_and_quantisation_in_one_graph(form: str, dynamic: bool, same_bits: Same) -> None:
    """Fullgraph: nothing of the compiled module is looked into."""
    predicate = getattr(quant_kernels, form.removeprefix("functional ")).predicate

    def call(*args: Any) -> Any:
        """Ask, then run."""
        return FORMS[form](*args) if predicate(*args) is True else None

    torch.compiler.reset()
    args = arguments(form)
    got = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*clones(args))
    same_bits(got, call(*clones(args)))


@pytest.mark.parametrize("name", OPS)
def test_a_compiled_function_lowers_to_the_quantised_kernel(name: str, same_bits: Same) -> None:
    """By vllm_ir.compile, with the op's `maybe_inplace` where it has one; the values are those of eager."""
    op = getattr(ops, name)
    call = getattr(op, "maybe_inplace", op)

    def run(x: torch.Tensor, *rest: Any) -> Any:
        """Call the op on a value of the graph's own, so that it can be given away."""
        rest = tuple(arg * 1.0 if i == 0 and "add" in name else arg for i, arg in enumerate(rest))
        return call(x * 1.0, *rest)

    torch.compiler.reset()
    args = arguments(name)
    with op.set_priority("cpu_c"):
        expected = run(*clones(args))
        got = vllm_ir.compile(run, fullgraph=True)(*clones(args))
    same_bits(got, expected)
    assert op.dispatch(*args).provider == "cpu_c"


@pytest.mark.parametrize("op", ["fused_add_rms_norm_static_quant_fp8_", "fused_add_rms_norm_dynamic_quant_fp8_"])
def test_the_quantised_op_that_writes_reaches_what_is_not_contiguous(op: str) -> None:
    """Called with views, it leaves in the residual what the functional op returns, and x as it was."""
    args = next(args for name, args in CALLS if name == op)
    wide = torch.randn(3, 192)
    x, residual = wide[:, :64], wide[:, 64:128]
    *expected, total = found(op.removesuffix("_"))(x, residual, *args[2:])
    kept = wide.clone()
    got = tensors(found(op)(x, residual, *args[2:]))
    assert all(torch.equal(one.float(), other.float()) for one, other in zip(got, expected, strict=True))
    assert torch.equal(residual, total)
    kept[:, 64:128] = total
    assert torch.equal(wide, kept)
