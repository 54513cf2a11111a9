"""What one child does: which inputs an op is run on, and what is said of what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

import torch
from vllm_ir import Unsupported, ops, register_op
from vllm_ir.diagnosis import probe
from vllm_ir.implementation import IrOpImpl
from vllm_ir.platforms import Platform
from vllm_ir.plugins.records import ProviderRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOp

CPU = Platform(name="cpu", device_type="cpu")

pytestmark = pytest.mark.usefixtures("state")


def outcomes(op: IrOp, dtypes: tuple[str, ...] | None = None, provider: str = "mine") -> list[tuple[Any, ...]]:
    """Return dtype, outcome and reason of everything that running an op told, steps left out."""
    told: list[dict[str, Any]] = []
    record = ProviderRecord(provider, "dist", "1", "loaded", (op.name,), dtypes=dtypes)
    probe._run_op(op.name, record, CPU, told.append)
    parts = [fact["result"] for fact in told if "result" in fact]
    assert [fact["step"] for fact in told if "step" in fact] == [
        f"running {op.name}, {part['dtype']}" for part in parts if part["dtype"]
    ]
    return [(part["dtype"], part["outcome"], part["reason"]) for part in parts]


def test_native_agrees_with_itself_on_every_op() -> None:
    """Each op of the core has example inputs of each dtype."""
    for op in (getattr(ops, name) for name in ops.__all__):
        assert outcomes(op, provider="native") == [(dtype, "agrees", None) for dtype in probe.DTYPES]


def test_only_the_dtypes_of_the_provider_are_run() -> None:
    """What it has none of is told, and nothing is run."""
    native = ops.silu_and_mul.declaration.native
    ops.silu_and_mul.register_impl("mine")(native)
    assert outcomes(ops.silu_and_mul, ("bfloat16", "float64")) == [("bfloat16", "agrees", None)]
    assert outcomes(ops.silu_and_mul, ("int8",)) == [
        (None, "not tried", "it is for none of float32, bfloat16, float16")
    ]


@pytest.mark.parametrize(
    ("body", "outcome", "reason"),
    [
        (lambda x: x[..., ::2] + 1, "differs", "Mismatched elements: "),
        (lambda x: x[..., :1], "differs", "The values for attribute 'shape' do not match: "),
        (lambda x: x[..., ::2].double(), "differs", "The values for attribute 'dtype' do not match: "),
        (lambda _: None, "differs", "it returned NoneType, wanted a tensor"),
        (lambda _: 1 / 0, "raises", "ZeroDivisionError: division by zero"),
        (lambda _: exit(3), "raises", "SystemExit: 3"),  # noqa: PLR1722 - what a provider may do
    ],
)
def test_what_comes_back_is_judged(body: Callable[[Any], Any], outcome: str, reason: str) -> None:
    """Values, shapes, dtypes, nothing at all, an exception, and an exit."""

    @ops.silu_and_mul.register_impl("mine")
    def mine(x: torch.Tensor) -> torch.Tensor:
        """Return what the case says."""
        result: torch.Tensor = body(x)
        return result

    ((dtype, got, why),) = outcomes(ops.silu_and_mul, ("float32",))
    assert (dtype, got) == ("float32", outcome)
    assert why.startswith(reason)
    assert isinstance(mine, IrOpImpl)


def test_both_forms_of_an_in_place_kernel_are_run() -> None:
    """The one that writes to its inputs gets copies of its own, and is told apart."""

    def functional(
        x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Be right."""
        done: tuple[torch.Tensor, torch.Tensor] = ops.fused_add_rms_norm.declaration.native(
            x, x_residual, weight, epsilon, variance_size
        )
        return done

    @ops.fused_add_rms_norm.register_impl("mine", inplace=True, functional=functional)
    def writing(
        x: torch.Tensor, x_residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Be wrong by one where it writes."""
        done = ops.fused_add_rms_norm.declaration.native(x, x_residual, weight, epsilon, variance_size)
        return x.copy_(done[0] + 1), x_residual.copy_(done[1])

    ((_, outcome, reason),) = outcomes(ops.fused_add_rms_norm, ("float32",))
    assert outcome == "differs"
    assert reason.startswith("writing to its inputs: Mismatched elements: ")
    assert writing.inplace


def test_a_refusal_and_a_predicate_that_raises() -> None:
    """The first is an answer, the second a fault."""
    native = ops.silu_and_mul.declaration.native

    def needs_half(x: torch.Tensor) -> bool | Unsupported:
        """Take float16, refuse float32, break on bfloat16."""
        if x.dtype == torch.bfloat16:
            raise OSError("no table")
        return x.dtype == torch.float16 or Unsupported("needs float16")

    ops.silu_and_mul.register_impl("mine", supports_args=needs_half)(native)
    assert outcomes(ops.silu_and_mul) == [
        ("float32", "refuses", "needs float16"),
        ("bfloat16", "raises", "OSError: no table"),
        ("float16", "agrees", None),
    ]


def test_an_op_of_somebody_else_may_have_any_generator_or_none() -> None:
    """One that knows no dtype gives what it gives; without one, nothing is tried."""

    @register_op(name="bare")
    def bare(x: torch.Tensor) -> torch.Tensor:
        """Return a copy."""
        return x.clone()

    bare.register_impl("mine")(bare.declaration.native)
    assert outcomes(bare) == [(None, "not tried", "the op has no example inputs")]
    bare.register_input_generator(lambda num_tokens: (torch.ones(num_tokens, dtype=torch.int32),))
    assert outcomes(bare, ("float32",)) == [("float32", "agrees", None)]


def test_inputs_lie_where_the_kernel_takes_them() -> None:
    """On the platform's device, or on the first that it is for."""
    native = ops.silu_and_mul.impls["native"]
    machine = Platform(name="npu", device_type="npu")
    assert probe._place(native, machine) == "npu"
    limited = IrOpImpl("silu_and_mul", "mine", native.impl_fn, devices=frozenset({"cpu"}))
    assert probe._place(limited, machine) == "cpu"
