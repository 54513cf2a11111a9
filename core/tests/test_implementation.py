"""A declaration of an implementation: the functional form beside an in-place one, and who runs which."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import errors
from vllm_ir.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOpInplace

WHO = "implementation of op 'add_pair' by provider 'fast'"
NEEDLESS = "functional is add_pair, wanted None, since without inplace=True the implementation itself writes no input."
OTHER_NAMES = (
    "it takes (y, weight, x_residual), wanted (x, weight, x_residual). Use the parameters of the in-place function."
)


def add_pair(x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a scaled sum, and the sum."""
    total = x + x_residual
    return total * weight, total.contiguous()


def writing(x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same into both activations."""
    x_residual.add_(x)
    torch.mul(x_residual, weight, out=x)
    return x, x_residual


def renamed(y: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Call a parameter otherwise than the in-place form does."""
    return add_pair(y, weight, x_residual)


def other_type(x: torch.Tensor, weight: float, x_residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a number where the in-place form takes a tensor."""
    return (x + x_residual) * weight, x + x_residual


class Functional:
    """The functional form, remembering what it returned."""

    def __init__(self) -> None:
        self.returned: list[tuple[torch.Tensor, torch.Tensor]] = []

    def form(self) -> Callable[..., Any]:
        """Return it as a function with the op's schema."""

        def functional(
            x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """Run native's own body and remember the result."""
            self.returned.append(add_pair(x, weight, x_residual))
            return self.returned[-1]

        return functional


def make_op(functional: Callable[..., Any] | None, **declared: Any) -> IrOpInplace:
    """Register the op with one in-place implementation that has a functional form, and put it first."""
    op = vllm_ir.register_op(name="add_pair", allow_inplace=True)(add_pair)
    op.register_impl("fast", inplace=True, functional=functional, **declared)(writing)
    op.set_default(["fast"])
    return op


def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x, weight and residual."""
    return torch.randn(4, 8), torch.randn(8), torch.randn(4, 8)


def by_keyword(op: IrOpInplace, x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> Any:
    """Run the implementation's functional form with its arguments by keyword."""
    return op.impls["fast"].func_impl_fn(x, x_residual=x_residual, weight=weight)


WAYS: dict[str, Callable[..., Any]] = {
    "eager": lambda op, *args: op(*args),
    "torch": lambda op, *args: op.torch_op(*args),
    "func_impl_fn": lambda op, *args: op.impls["fast"].func_impl_fn(*args),
    "keywords": by_keyword,
}


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_donates_nothing_runs_the_functional_form(way: str) -> None:
    """Its results are handed on as they are, no argument is copied on the way, and none changes."""
    functional = Functional()
    op = make_op(functional.form())
    args = arguments()
    kept = tuple(arg.clone() for arg in args)
    results = WAYS[way](op, *args)
    (returned,) = functional.returned
    assert [result.data_ptr() for result in results] == [result.data_ptr() for result in returned]
    assert all(torch.equal(now, before) for now, before in zip(args, kept, strict=True))


@pytest.mark.usefixtures("state")
def test_the_functional_form_gets_the_arguments_themselves() -> None:
    """A copy that nobody needs is what it is there to save."""
    seen: list[torch.Tensor] = []

    def functional(
        x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Remember what came."""
        seen.extend((x, weight, x_residual))
        return add_pair(x, weight, x_residual)

    op = make_op(functional)
    args = arguments()
    op(*args)
    assert all(got is given for got, given in zip(seen, args, strict=True))


@pytest.mark.usefixtures("state")
def test_a_donating_call_runs_the_in_place_form() -> None:
    """The functional form is for calls whose inputs somebody still holds."""
    functional = Functional()
    op = make_op(functional.form())
    x, weight, residual = arguments()
    results = op.maybe_inplace(x, weight, residual)
    assert [result.data_ptr() for result in results] == [x.data_ptr(), residual.data_ptr()]
    assert functional.returned == []


@pytest.mark.usefixtures("state")
def test_tracers_are_led_into_the_functional_form() -> None:
    """Where the torch op is not wanted, a graph has the form's own operations and no copy."""
    op = make_op(Functional().form())
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        """Keep the graph and run it."""
        graphs.append(graph)
        return graph.forward

    def call(*args: torch.Tensor) -> Any:
        """Call the op."""
        return op(*args)

    torch.compiler.reset()
    with vllm_ir.enable_torch_wrap(enable=False):
        torch.compile(call, backend=keep, fullgraph=True)(*arguments())
    assert "clone" not in graphs[0].code


def test_both_forms_count_as_one_provider() -> None:
    """A report names who ran, not how."""
    with isolated({"VLLM_IR_COUNTERS": "1"}):
        op = make_op(add_pair)
        op(*arguments())
        op.maybe_inplace(*arguments())
        assert vllm_ir.report().ops["add_pair"].calls == {"fast": 2}


@pytest.mark.usefixtures("state")
def test_one_predicate_judges_both_forms() -> None:
    """What is refused reaches neither."""
    functional = Functional()

    def never(x: torch.Tensor, weight: torch.Tensor, x_residual: torch.Tensor) -> bool:
        """Refuse."""
        del x, weight, x_residual
        return False

    op = make_op(functional.form(), supports_args=never)
    args = arguments()
    expected = add_pair(*args)
    for results in (op(*args), op.maybe_inplace(*args)):
        assert all(torch.equal(got, wanted) for got, wanted in zip(results, expected, strict=True))
    assert functional.returned == []


@pytest.mark.usefixtures("state")
def test_a_declaration_keeps_the_functional_form() -> None:
    """`implements` and `register_impl` both carry it; it is None where none was given, and cannot be set later."""
    declared = vllm_ir.implements("add_pair", provider="fast", inplace=True, functional=add_pair)(writing)
    op = make_op(add_pair)
    assert declared.functional is op.impls["fast"].functional is add_pair
    assert op.impls["native"].functional is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        declared.functional = None  # type: ignore[misc]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("functional", "inplace", "sentence"),
    [
        (5, True, f"{WHO}: functional is 5, wanted a function or None."),
        (add_pair, False, f"{WHO}: {NEEDLESS}"),
        (renamed, True, f"functional of the {WHO}: {OTHER_NAMES}"),
    ],
)
def test_a_functional_form_that_cannot_be_one(functional: Any, inplace: bool, sentence: str) -> None:
    """It says so at the declaration, before anything is registered."""
    with pytest.raises(errors.DeclarationError) as caught:
        vllm_ir.implements("add_pair", provider="fast", inplace=inplace, functional=functional)(writing)
    assert str(caught.value) == sentence


@pytest.mark.usefixtures("state")
def test_a_functional_form_of_another_schema() -> None:
    """Registering compares its types with the op's, and says which of the two functions it is about."""
    with pytest.raises(errors.SchemaMismatch, match=r"^Functional of op 'add_pair' by provider 'fast' has the schema"):
        make_op(other_type)
    op = vllm_ir.runtime.current().registry.get("add_pair")
    assert list(op.impls) == ["native"]
