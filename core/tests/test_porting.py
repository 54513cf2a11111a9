"""Code written for `vllm.ir` of vLLM 0.33 runs here with another import; everything below uses only what is there.

Where the answer is not the same, the sentence of the test says so.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir as ir

if TYPE_CHECKING:
    from vllm_ir.op import IrOpInplace

pytestmark = pytest.mark.usefixtures("state")


def add_norm(
    x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None = None, epsilon: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a residual and normalise.

    The rest of the docstring is no part of what is shown.
    """
    total = x + x_residual
    normalised = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + epsilon)
    return normalised if weight is None else normalised * weight, total


def writing_add_norm(
    x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None = None, epsilon: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same into the activations."""
    normalised, total = add_norm(x, x_residual, weight, epsilon)
    x.copy_(normalised)
    x_residual.copy_(total)
    return x, x_residual


def only_bfloat16(
    x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None = None, epsilon: float = 1e-5
) -> bool:
    """Take one dtype."""
    del x_residual, weight, epsilon
    return x.dtype == torch.bfloat16


def make_op() -> IrOpInplace:
    """Register an op with three providers, as a model's code would."""
    op = ir.register_op(name="add_norm", activations=["x", "x_residual"], allow_inplace=True)(add_norm)
    op.register_impl("writer", inplace=True)(writing_add_norm)
    op.register_impl("picky", supports_args=only_bfloat16)(add_norm)
    op.register_impl("absent", supported=False)(add_norm)
    return op


def arguments(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Return the arguments of a call."""
    return torch.randn(2, 8).to(dtype), torch.randn(2, 8).to(dtype), torch.ones(8, dtype=dtype), 1e-5


def test_register_op_in_its_forms() -> None:
    """Bare, with arguments, and with a name."""

    @ir.register_op
    def my_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Add."""
        return x + y

    @ir.register_op(name="custom_mul")
    def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return x * y

    assert (my_add.name, multiply.name) == ("my_add", "custom_mul")
    assert (my_add.allow_inplace, my_add.activations, my_add.activation_indices) == (False, ["x"], [0])
    assert my_add(torch.ones(1), torch.ones(1)).item() == multiply(torch.ones(1), torch.full((1,), 2.0)).item() == 2.0


def test_the_attributes_of_an_op() -> None:
    """Name, activations and overloads."""
    op = make_op()
    assert (op.name, op.allow_inplace) == ("add_norm", True)
    assert (op.activations, op.activation_indices) == (["x", "x_residual"], [0, 1])
    assert op.torch_op is torch.ops.vllm_ir.add_norm.default
    assert op.maybe_inplace.torch_op is torch.ops.vllm_ir.add_norm.maybe_inplace
    assert op.maybe_inplace.name == "add_norm.maybe_inplace"
    assert op.maybe_inplace.op is op
    assert "Add a residual and normalise." in repr(op)
    assert str(op) == repr(op)
    assert inspect.getdoc(op) == inspect.getdoc(add_norm)


def test_the_attributes_of_an_implementation() -> None:
    """`op.impls` by provider, native first, with the same names."""
    op = make_op()
    assert list(op.impls) == ["native", "writer", "picky", "absent"]
    assert op.supported_providers() == ["native", "writer", "picky"]
    writer, picky, native = op.impls["writer"], op.impls["picky"], op.impls["native"]
    assert (writer.provider, writer.impl_fn, writer.supported, writer.inplace) == (
        "writer",
        writing_add_norm,
        True,
        True,
    )
    assert (native.impl_fn, native.supports_all_args, native.supports_args(*arguments())) == (add_norm, True, True)
    assert picky.supports_all_args is False
    assert picky.supports_args(*arguments()) is False
    assert picky.supports_args(*arguments(torch.bfloat16)) is True
    assert op.impls["absent"].supported is False


def test_func_impl_fn_is_functional() -> None:
    """An in-place implementation run by it leaves its inputs alone; run by `impl_fn` it does not."""
    op = make_op()
    x, residual, weight, epsilon = arguments()
    kept = x.clone()
    op.impls["writer"].func_impl_fn(x, residual, weight, epsilon)
    assert torch.equal(x, kept)
    results = op.impls["writer"].impl_fn(x, residual, weight, epsilon)
    assert results[0] is x
    assert not torch.equal(x, kept)


def test_priorities_are_lists_of_names() -> None:
    """`get_priority` stops at the first that takes every call; what stands behind it is not reached."""
    op = make_op()
    with op.set_priority(["picky", "writer", "native"]):
        assert op.get_priority() == ["picky", "writer"]
        assert op.dispatch(*arguments()).provider == "writer"
        assert op.dispatch(*arguments(torch.bfloat16)).provider == "picky"
        with op.set_priority(["native"]):
            assert op.get_priority() == ["native"]
    op.set_default(["picky"])
    assert op.get_priority() == ["picky", "native"]
    assert op.dispatch(*arguments()) is op.impls["native"]


def test_without_a_priority_native_runs() -> None:
    """The list of vLLM is then empty; here it names who runs."""
    op = make_op()
    assert op.get_priority() == ["native"]
    assert op.dispatch(*arguments()).provider == "native"


def test_an_unsupported_provider_is_an_error() -> None:
    """What vLLM leaves out without a word, the user who named it is told here, as a ValueError."""
    op = make_op()
    with pytest.raises(ValueError, match="absent"):
        op.set_default(["absent", "native"])
    with pytest.raises(ValueError, match="nobody"), op.set_priority(["nobody"]):
        pytest.fail("the scope opened")


def test_calls_and_donating_calls() -> None:
    """`op(...)` leaves inputs as they are, `op.maybe_inplace(...)` may use them up."""
    op = make_op()
    x, residual, weight, epsilon = arguments()
    expected = add_norm(x, residual, weight, epsilon)
    with op.set_priority(["writer"]):
        results = op(x, residual, weight)
        assert results[0].data_ptr() != x.data_ptr()
        torch.testing.assert_close(results, expected)
        donated = op.maybe_inplace(x, residual, weight=weight, epsilon=epsilon)
    assert donated[0].data_ptr() == x.data_ptr()
    torch.testing.assert_close(donated, expected)


def test_apply_arg_defaults() -> None:
    """Defaults fill up what a graph left out, by position."""
    op = make_op()
    x, residual, weight, _ = arguments()
    assert op.apply_arg_defaults((x, residual)) == (x, residual, None, 1e-5)
    assert op.apply_arg_defaults((x, residual, weight, 1.0)) == (x, residual, weight, 1.0)
    with pytest.raises(TypeError):
        op.apply_arg_defaults((x,))


def test_input_generators() -> None:
    """A generator is registered once and called by keyword; every generator here takes `num_tokens`."""
    op = make_op()
    before = op.has_input_generator
    with pytest.raises(ValueError, match="register_input_generator"):
        op.generate_inputs(num_tokens=1)

    @op.register_input_generator
    def inputs(num_tokens: int, hidden_size: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return arguments."""
        return torch.ones(num_tokens, hidden_size, dtype=dtype), torch.ones(num_tokens, hidden_size, dtype=dtype)

    assert (before, op.has_input_generator) == (False, True)
    assert inputs(1, 2, torch.float32)[0].shape == (1, 2)
    made = op.generate_inputs(num_tokens=3, hidden_size=8, dtype=torch.float16)
    assert (made[0].shape, made[0].dtype) == ((3, 8), torch.float16)
    assert op(*made)[0].shape == (3, 8)


def test_tolerances_are_keywords_of_assert_close() -> None:
    """With an override, by default, and for a dtype that has none."""
    op = make_op()
    assert set(op.get_tolerance(torch.float32)) == {"atol", "rtol"}
    op.override_tolerance(torch.bfloat16, atol=1e-2, rtol=1e-1)
    assert op.get_tolerance(torch.bfloat16) == {"atol": 1e-2, "rtol": 1e-1}
    torch.testing.assert_close(torch.ones(1), torch.ones(1), **op.get_tolerance(torch.float16))
    with pytest.raises(ValueError, match="override_tolerance"):
        op.get_tolerance(torch.complex64)


def test_register_fake() -> None:
    """The fake runs for tensors without values."""
    op = make_op()

    @op.register_fake
    def fake(
        x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None = None, epsilon: float = 1e-5
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return empty tensors."""
        del weight, epsilon
        return torch.empty_like(x), torch.empty_like(x_residual)

    results = op(torch.ones(2, 8, device="meta"), torch.ones(2, 8, device="meta"))
    assert [tuple(result.shape) for result in results] == [(2, 8), (2, 8)]
    assert fake(torch.ones(1), torch.ones(2))[1].shape == (2,)


def test_the_torch_wrap() -> None:
    """Scoped and for the process; eager results are the same."""
    op = make_op()
    args = arguments()
    expected = op(*args)
    with ir.enable_torch_wrap(False):  # noqa: FBT003 - as ported code has it
        torch.testing.assert_close(op(*args), expected)
        with ir.enable_torch_wrap():
            torch.testing.assert_close(op(*args), expected)
    ir.set_default_torch_wrap(False)
    try:
        torch.testing.assert_close(op(*args), expected)
    finally:
        ir.set_default_torch_wrap(True)


def test_core_ops_by_name() -> None:
    """`ops.rms_norm` and its neighbours are called as in models."""
    x, weight = torch.randn(2, 8), torch.ones(8)
    assert ir.ops.rms_norm(x, weight, 1e-5).shape == (2, 8)
    assert ir.ops.rms_norm(x, None, 1e-5, variance_size=4).shape == (2, 8)
    assert len(ir.ops.fused_add_rms_norm(x, x.clone(), weight, 1e-5)) == 2
    assert len(ir.ops.fused_add_rms_norm.maybe_inplace(x.clone(), x.clone(), weight, 1e-5)) == 2
    assert ir.ops.silu_and_mul(x).shape == (2, 4)


def test_a_mistake_is_a_value_error() -> None:
    """What is an assert or a ValueError in vLLM; ported `except ValueError` still catches."""
    op = make_op()
    mistakes: list[tuple[str, dict[str, Any]]] = [
        ("native", {}),
        ("Bad", {}),
        ("writer", {}),
        ("p", {"supports_args": 5}),
    ]
    for provider, declared in mistakes:
        with pytest.raises(ValueError, match=provider):
            op.register_impl(provider, **declared)(add_norm)
    with pytest.raises(ValueError, match="keyword-only"):

        @ir.register_op
        def keyword(x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            """Take a parameter by keyword only."""
            return x + y
