"""Declaring ops and implementations: what is accepted, how it is read, and that declaring alone has no effect."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import errors, ops, runtime
from vllm_ir.op import IrOpInplace

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

pytestmark = pytest.mark.usefixtures("state")


def two(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Return x times a scale."""
    return x * scale


def pair(x_a: torch.Tensor, b: torch.Tensor, x_c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two sums for the two activations."""
    return x_a + b, x_c + b


class Kernel:
    """Functions of every kind that a class may have."""

    def method(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """Return three times what two returns."""
        return x * scale * 3

    @staticmethod
    def static(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """Return three times what two returns."""
        return x * scale * 3

    @classmethod
    def of_class(cls, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """Return three times what two returns."""
        return x * scale * 3

    def __call__(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """Return three times what two returns."""
        return x * scale * 3


def factored(factor: int, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Return x times a scale times a factor that is given beforehand."""
    return x * scale * factor


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that hides another one behind *args."""

    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return function(*args, **kwargs)

    return outer


def test_string_annotations_are_read() -> None:
    """This file defers its annotations, so torch gets them as text; the schema is the same."""
    assert inspect.signature(two).parameters["x"].annotation == "torch.Tensor"
    op = vllm_ir.register_op(two)
    assert op.declaration.schema == "(Tensor x, float scale=2.0) -> Tensor"


def test_an_op_is_named_after_its_function_or_by_name() -> None:
    """Both forms of the decorator work, with and without a call."""
    assert vllm_ir.register_op(two).name == "two"
    assert vllm_ir.register_op(name="three")(two).name == "three"
    assert vllm_ir.register_op()(pair).name == "pair"


def test_activations_are_the_parameters_that_begin_with_x() -> None:
    """Their positions follow the parameters, since outputs stand for them one by one."""
    op = vllm_ir.register_op(pair)
    assert op.activations == ["x_a", "x_c"]
    assert op.activation_indices == [0, 2]


def test_named_activations_come_in_the_order_of_the_parameters() -> None:
    """However they are listed, and each once."""
    op = vllm_ir.register_op(name="ordered", activations=["x_c", "b", "b"])(pair)
    assert op.activations == ["b", "x_c"]
    assert op.activation_indices == [1, 2]


def test_an_op_without_in_place_has_no_maybe_inplace() -> None:
    """The attribute exists only where it means something."""
    op = vllm_ir.register_op(two)
    assert not op.allow_inplace
    assert not isinstance(op, IrOpInplace)
    assert not hasattr(op, "maybe_inplace")
    assert torch.ops.vllm_ir.two.overloads() == ["default"]


def test_an_in_place_op_has_both_overloads() -> None:
    """The second overload's schema says what it writes to."""
    op = vllm_ir.register_op(name="pair_inplace", allow_inplace=True)(pair)
    assert isinstance(op, IrOpInplace)
    assert op.torch_op is torch.ops.vllm_ir.pair_inplace.default
    assert op.maybe_inplace.torch_op is torch.ops.vllm_ir.pair_inplace.maybe_inplace
    assert str(op.maybe_inplace.torch_op._schema) == (
        "vllm_ir::pair_inplace.maybe_inplace(Tensor(a0!) x_a, Tensor b, Tensor(a2!) x_c) -> (Tensor, Tensor)"
    )


def test_a_declaration_remembers_where_it_stands() -> None:
    """File and line of the decorator, for the error about a duplicate."""
    op = vllm_ir.register_op(two)
    assert op.declaration.where.startswith(__file__ + ":")
    assert vllm_ir.implements("two", provider="fast")(two).where.startswith(__file__ + ":")
    assert op.register_impl("fast")(two).where.startswith(__file__ + ":")


@pytest.mark.parametrize(
    "function",
    [
        Kernel().method,
        Kernel.static,
        Kernel.of_class,
        Kernel(),
        functools.partial(factored, 3),
        functools.partial(functools.partial(factored), 3),
        wrapped(Kernel.static),
        lambda x, scale=2.0: x * scale * 3,
    ],
    ids=["method", "static", "class", "object", "partial", "partials", "wrapped", "lambda"],
)
def test_implementations_of_every_kind(function: Callable[..., Any]) -> None:
    """Methods, callable objects and partials run like functions; what has no annotations is refused."""
    op = vllm_ir.register_op(two)
    if getattr(function, "__name__", "") == "<lambda>":
        with pytest.raises(errors.BadSignature, match="Parameter x must have a type annotation"):
            op.register_impl("kernel")(function)
        return
    op.register_impl("kernel")(function)
    with op.set_priority(["kernel"]):
        assert op(torch.ones(1)).item() == 6.0
        assert op.torch_op(torch.ones(1)).item() == 6.0


@pytest.mark.parametrize(
    "predicate",
    [
        lambda x, scale=2.0: scale == 1.0 and x.dim() == 1,
        functools.partial(lambda wanted, x, scale=2.0: scale == wanted and x.dim() == 1, 1.0),
    ],
    ids=["lambda", "partial"],
)
def test_predicates_need_no_annotations(predicate: Callable[..., Any]) -> None:
    """A lambda with the same names and defaults is a predicate."""
    op = vllm_ir.register_op(two)
    op.register_impl("kernel", supports_args=predicate)(Kernel.static)
    with op.set_priority(["kernel"]):
        assert op(torch.ones(1), 1.0).item() == 3.0
        assert op(torch.ones(1)).item() == 2.0


def test_implements_touches_nothing() -> None:
    """A declaration of an op that nobody has registered is a value; no registry and no op knows of it."""
    before = {op.name: dict(op.impls) for op in runtime.current().registry}
    declared = vllm_ir.implements("nobody_has_this", provider="fast")(two)
    known = vllm_ir.implements("silu_and_mul", provider="fast")(two)
    assert (declared.op_name, declared.provider, declared.impl_fn) == ("nobody_has_this", "fast", two)
    assert {op.name: dict(op.impls) for op in runtime.current().registry} == before
    assert known.provider not in ops.silu_and_mul.impls


def test_a_declaration_is_frozen() -> None:
    """Nobody flips `supported` after the order was made."""
    declared = vllm_ir.implements("two", provider="fast")(two)
    with pytest.raises(dataclasses.FrozenInstanceError):
        declared.supported = False  # type: ignore[misc]
    op = vllm_ir.register_op(two)
    with pytest.raises(TypeError, match="does not support item assignment"):
        op.impls["fast"] = declared  # type: ignore[index]


def test_the_flags_of_a_declaration_are_kept() -> None:
    """All that `implements` takes is on the value, with the defaults that promise least."""
    refusal = vllm_ir.Unsupported("no library here")

    def predicate(x: torch.Tensor, scale: float = 2.0) -> bool:
        """Take vectors."""
        return x.dim() == scale

    full = vllm_ir.implements(
        "two", provider="fast", supported=refusal, supports_args=predicate, inplace=True, batch_invariant=True
    )(two)
    plain = vllm_ir.implements("two", provider="fast")(two)
    assert (full.supported, full.predicate, full.inplace, full.batch_invariant) == (refusal, predicate, True, True)
    assert (plain.supported, plain.predicate, plain.inplace, plain.batch_invariant) == (True, None, False, False)
    assert (full.supports_all_args, plain.supports_all_args) == (False, True)
    assert plain.supports_args(torch.ones(1)) is True
    assert repr(plain) == "IrOpImpl('two', 'fast')"


def test_wrong_calls_name_op_and_parameter() -> None:
    """A missing argument, an unknown one and a wrong type each say which."""
    op = vllm_ir.register_op(two)
    with pytest.raises(errors.WrongCall) as missing:
        op.dispatch()
    assert str(missing.value) == "two(): missing a required argument: 'x'. Its signature is two(x, scale=2.0)."
    with pytest.raises(errors.WrongCall, match="got an unexpected keyword argument 'scal'"):
        op.dispatch(torch.ones(1), scal=1.0)
    with pytest.raises(errors.WrongArgument) as wrong:
        op([1.0])
    assert str(wrong.value) == "two(): argument 'x' is list [1.0], wanted a Tensor."
    with pytest.raises(TypeError, match=r"two\(\) missing 1 required positional argument: 'x'"):
        op()


def test_a_generator_gives_arguments_and_refuses_strange_keywords() -> None:
    """`generate_inputs` calls it by keyword; what it does not take is a wrong call."""
    op = vllm_ir.register_op(two)
    before = op.has_input_generator

    @op.register_input_generator
    def inputs(num_tokens: int, size: int = 4) -> tuple[torch.Tensor, float]:
        """Return ones and a scale."""
        return torch.ones(num_tokens, size), 3.0

    assert (before, op.has_input_generator) == (False, True)
    x, scale = op.generate_inputs(num_tokens=2, size=3)
    assert (tuple(x.shape), scale) == ((2, 3), 3.0)
    assert inputs(1)[0].shape == (1, 4)
    with pytest.raises(errors.WrongCall) as wrong:
        op.generate_inputs(num_token=2)
    assert str(wrong.value).startswith("two.generate_inputs(): missing a required argument: 'num_tokens'.")


def test_an_override_of_a_tolerance_is_of_one_op(state: Runtime) -> None:
    """Another op keeps the default, and the process its own after the test."""
    op = vllm_ir.register_op(two)
    other = state.registry.get("silu_and_mul")
    before = other.get_tolerance(torch.bfloat16)
    op.override_tolerance(torch.bfloat16, atol=1.0, rtol=0.5)
    assert op.get_tolerance(torch.bfloat16) == {"atol": 1.0, "rtol": 0.5}
    assert other.get_tolerance(torch.bfloat16) == before


def test_a_fake_of_its_own_is_used_for_fake_tensors() -> None:
    """`register_fake` replaces native for tensors without values, and only there."""
    op = vllm_ir.register_op(two)
    seen: list[tuple[int, ...]] = []

    @op.register_fake
    def fake(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """Return an empty tensor of x's shape."""
        seen.append(tuple(x.shape))
        del scale
        return torch.empty_like(x)

    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    assert seen == []
    assert op(torch.ones(2, 3, device="meta")).shape == (2, 3)
    assert seen == [(2, 3)]
    assert fake(torch.ones(1)).shape == (1,)


def test_an_op_returns_tensors(state: Runtime) -> None:
    """Nothing else can be traced or differentiated, and torch would say so in words about autograd formulas."""

    def returns_nothing(x: torch.Tensor) -> None:
        """Do nothing."""

    with pytest.raises(errors.BadSignature, match="Return one tensor or a tuple of tensors"):
        vllm_ir.register_op(returns_nothing)
    assert "returns_nothing" not in state.registry
