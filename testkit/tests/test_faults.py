"""Deliberately wrong providers, one per fault: the check that owns the fault catches it, alone and among all others.

A right provider passes the same checks, so that no check is red for another reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from vllm_ir import Unsupported, implements, ops, register_op
from vllm_ir_testkit import checks
from vllm_ir_testkit.outcome import FAILED, PASSED

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir import IrOpImpl
    from vllm_ir_testkit import TestManager

Size = int | None


def norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: Size = None) -> Tensor:
    """Return the right result of rms_norm."""
    right: Tensor = ops.rms_norm.impls["native"].impl_fn(x, weight, epsilon, variance_size)
    return right


def fused(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: Size = None
) -> tuple[Tensor, Tensor]:
    """Return the right results of fused_add_rms_norm."""
    native = ops.fused_add_rms_norm.impls["native"].impl_fn
    right: tuple[Tensor, Tensor] = native(x, x_residual, weight, epsilon, variance_size)
    return right


@dataclass(frozen=True)
class Fault:
    """One wrong provider.

    Attributes:
        name: what is wrong.
        owner: the check that has to catch it.
        make: returns the implementation.
    """

    name: str
    owner: str
    make: Callable[[], IrOpImpl]


FAULTS: list[Fault] = []


def fault(name: str, owner: str) -> Callable[[Callable[[], IrOpImpl]], Callable[[], IrOpImpl]]:
    """Keep a fault in the table."""

    def keep(make: Callable[[], IrOpImpl]) -> Callable[[], IrOpImpl]:
        """Keep it and return it."""
        FAULTS.append(Fault(name, owner, make))
        return make

    return keep


def wrong_norm(body: Callable[..., Tensor], **flags: Any) -> IrOpImpl:
    """Return an rms_norm of provider `wrong` with a body of its own."""

    @implements("rms_norm", provider="wrong", **flags)
    def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        """Run the body."""
        return body(x, weight, epsilon, variance_size)

    return rms_norm


def asked_norm(predicate: Callable[[Tensor], Any]) -> IrOpImpl:
    """Return a right rms_norm of provider `wrong` with a predicate that looks at x."""

    def accepts(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
        """Ask the predicate."""
        del weight, epsilon, variance_size
        return predicate(x)

    return wrong_norm(norm, supports_args=accepts)


def wrong_fused(body: Callable[..., tuple[Tensor, Tensor]], **flags: Any) -> IrOpImpl:
    """Return a fused_add_rms_norm of provider `wrong` with a body of its own."""

    @implements("fused_add_rms_norm", provider="wrong", **flags)
    def fused_add_rms_norm(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the body."""
        return body(x, x_residual, weight, epsilon, variance_size)

    return fused_add_rms_norm


# Values.


@fault("normalised in bfloat16 at once", "values")
def _short_rounding() -> IrOpImpl:
    """Round once where native rounds twice."""

    def body(x: Tensor, weight: Tensor | None, epsilon: float, size: Size) -> Tensor:
        """Multiply by the weight before the first rounding."""
        if size is not None or weight is None:
            return norm(x, weight, epsilon, size)
        whole = norm(x.float(), None, epsilon) * weight.float()
        return whole.to(x.dtype).contiguous()

    return wrong_norm(body)


@fault("residual rounded before the variance", "values")
def _early_residual() -> IrOpImpl:
    """Take the variance of the rounded sum."""

    def body(x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, size: Size) -> tuple[Tensor, Tensor]:
        """Add in the narrow dtype."""
        total = (x + residual).contiguous()
        return norm(total, weight, epsilon, size), total

    return wrong_fused(body)


@fault("subnormal numbers flushed to zero", "values")
def _flush() -> IrOpImpl:
    """Lose what is smaller than the smallest normal number."""

    def body(x: Tensor, weight: Tensor | None, epsilon: float, size: Size) -> Tensor:
        """Flush the input."""
        tiny = x.abs() < torch.finfo(x.dtype).smallest_normal
        return norm(torch.where(tiny, torch.zeros_like(x), x), weight, epsilon, size)

    return wrong_norm(body)


@fault("the sign of zero is lost", "values")
def _unsigned_zero() -> IrOpImpl:
    """Add a zero, which makes -0.0 a +0.0."""
    return wrong_norm(lambda *args: norm(*args) + 0.0)


@fault("NaN is replaced", "values")
def _no_nan() -> IrOpImpl:
    """Hide what went wrong upstream."""
    return wrong_norm(lambda *args: norm(*args).nan_to_num(nan=0.0))


@fault("the last element of an odd row is dropped", "values")
def _odd_tail() -> IrOpImpl:
    """Forget what a vector of two does not cover."""

    def body(x: Tensor, weight: Tensor | None, epsilon: float, size: Size) -> Tensor:
        """Zero the tail."""
        out = norm(x, weight, epsilon, size)
        if x.shape[-1] % 2 and x.shape[-1] > 1:
            out[..., -1] = 0
        return out

    return wrong_norm(body)


@fault("a row stride is ignored", "values")
def _dense_rows() -> IrOpImpl:
    """Read the rows of a packed view as if they lay one behind the other."""

    def body(x: Tensor, weight: Tensor | None, epsilon: float, size: Size) -> Tensor:
        """Read dense rows."""
        if x.dim() > 1 and x.numel() and x.stride(-1) == 1:
            x = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())
        return norm(x, weight, epsilon, size)

    return wrong_norm(body)


@fault("a weight's stride is ignored", "values")
def _dense_weight() -> IrOpImpl:
    """Read a strided weight as if it were dense."""

    def body(x: Tensor, weight: Tensor | None, epsilon: float, size: Size) -> Tensor:
        """Read a dense weight."""
        if weight is not None:
            weight = torch.as_strided(weight, weight.shape, (1,))
        return norm(x, weight, epsilon, size)

    return wrong_norm(body)


@fault("a float32 result is off by 1e-4", "values")
def _inexact() -> IrOpImpl:
    """Scale the float32 result a little."""
    return wrong_norm(lambda x, *rest: norm(x, *rest) * (1.0001 if x.dtype == torch.float32 else 1))


# Refusal, verdict, predicate.


@fault("the predicate raises", "refusal")
def _raising_predicate() -> IrOpImpl:
    """Look for a key that is not there."""
    return asked_norm(lambda x: {torch.float32: True, torch.bfloat16: True}[x.dtype])


@fault("three dimensions are accepted, then raise", "refusal")
def _two_dimensions_only() -> IrOpImpl:
    """Accept what the kernel cannot do."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Take two dimensions."""
        if x.dim() == 3:
            message = "expected a matrix"
            raise RuntimeError(message)
        return norm(x, *rest)

    return wrong_norm(body)


@fault("weight=None is accepted, then raises", "refusal")
def _needs_weight() -> IrOpImpl:
    """Accept a call without a weight and use it all the same."""
    return wrong_norm(lambda x, weight, *rest: norm(x, weight * 1, *rest))


@fault("the predicate returns None", "verdict")
def _none_verdict() -> IrOpImpl:
    """Forget the last return."""
    return asked_norm(lambda x: True if x.dtype == torch.float32 else None)


@fault("the predicate returns a number", "verdict")
def _number_verdict() -> IrOpImpl:
    """Answer with a count."""
    return asked_norm(lambda x: x.dim())


@fault("a refusal says nothing", "verdict")
def _mute_refusal() -> IrOpImpl:
    """Refuse in one word."""
    return asked_norm(lambda x: x.dtype == torch.float32 or Unsupported("no"))


@fault("the predicate looks at the number of tokens", "predicate")
def _batch_predicate() -> IrOpImpl:
    """Accept large batches only."""
    return asked_norm(lambda x: x.shape[0] > 4 if x.dim() else True)


@fault("the predicate looks at numel", "predicate")
def _numel_predicate() -> IrOpImpl:
    """Refuse empty tensors, whose number of tokens is none of its business."""
    return asked_norm(lambda x: x.numel() > 0)


@fault("the predicate looks at a value", "predicate")
def _value_predicate() -> IrOpImpl:
    """Read the tensor."""
    return asked_norm(lambda x: bool(x.float().abs().sum() >= 0) if x.numel() else True)


@fault("the predicate looks at an address", "predicate")
def _address_predicate() -> IrOpImpl:
    """Ask for alignment, which a graph does not have."""
    return asked_norm(lambda x: x.data_ptr() % 2 == 0)


# Inputs, aliasing, layout.


@fault("an input is written", "inputs")
def _writes_x() -> IrOpImpl:
    """Normalise in place without saying so."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Write the result into x, too."""
        out = norm(x, *rest)
        x.copy_(out)
        return out

    return wrong_norm(body)


@fault("the weight is written", "inputs")
def _writes_weight() -> IrOpImpl:
    """Use the weight as scratch memory."""

    def body(x: Tensor, weight: Tensor | None, *rest: Any) -> Tensor:
        """Add one to the weight."""
        out = norm(x, weight, *rest)
        if weight is not None:
            weight.add_(1)
        return out

    return wrong_norm(body)


@fault("memory behind a view is written", "inputs")
def _writes_behind() -> IrOpImpl:
    """Write one element past the end of a row."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Overrun."""
        out = norm(x, *rest)
        end = x.storage_offset() + sum((s - 1) * t for s, t in zip(x.shape, x.stride(), strict=True)) + 1
        if x.numel() and end < x.untyped_storage().nbytes() // x.element_size():
            torch.as_strided(x, (1,), (1,), end).zero_()
        return out

    return wrong_norm(body)


@fault("in place, the weight is written too", "aliasing")
def _inplace_weight() -> IrOpImpl:
    """Write to what is no activation."""

    def body(x: Tensor, residual: Tensor, weight: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
        """Normalise, then spoil the weight."""
        out = fused(x, residual, weight, *rest)
        if weight is not None:
            weight.add_(1)
        return out

    return wrong_fused(body, inplace=True)


@fault("in place, results land in each other's activation", "aliasing")
def _swapped() -> IrOpImpl:
    """Return the output in the residual's memory and the other way round."""

    def body(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        """Swap."""
        out, total = fused(x, residual, *rest)
        if not (x.is_contiguous() and residual.is_contiguous()):
            return out, total
        return residual.copy_(out), x.copy_(total)

    return wrong_fused(body, inplace=True)


@fault("in place, memory around a view is written", "aliasing")
def _inplace_around() -> IrOpImpl:
    """Write whole rows of the tensor that a view is a part of."""

    def body(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        """Clear what lies around x."""
        out = fused(x, residual, *rest)
        whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        if whole.numel() > x.numel():
            whole.zero_()
        return out

    return wrong_fused(body, inplace=True)


@fault("in place, an input is read after it was overwritten", "aliasing")
def _read_after_write() -> IrOpImpl:
    """Write the sum into x's memory and normalise what was there before it."""

    def body(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        """Overwrite the residual where it is contiguous, then use it."""
        if not (x.is_contiguous() and residual.is_contiguous()):
            return fused(x, residual, *rest)
        total = fused(x, residual, *rest)[1]
        residual.copy_(total)
        return x.copy_(fused(x, residual, *rest)[0]), residual

    return wrong_fused(body, inplace=True)


def kept_in_place(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return the right results in the activations where they are contiguous."""
    out, total = fused(x, residual, *rest)
    if not (x.is_contiguous() and residual.is_contiguous()):
        return out, total
    return x.copy_(out), residual.copy_(total)


@fault("the functional form writes an input", "inputs")
def _functional_writes() -> IrOpImpl:
    """Take the residual's memory for the sum, although nobody has donated it."""

    def form(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Leave the sum in the residual, too."""
        out, total = fused(x, x_residual, weight, epsilon, variance_size)
        x_residual.copy_(total)
        return out, total

    return wrong_fused(kept_in_place, inplace=True, functional=form)


@fault("the functional form returns an input", "aliasing")
def _functional_returns_input() -> IrOpImpl:
    """Return the residual itself where the sum is the residual."""

    def form(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Save an allocation for an x of zeros."""
        out, total = fused(x, x_residual, weight, epsilon, variance_size)
        return out, x_residual if torch.equal(total, x_residual) and x_residual.is_contiguous() else total

    return wrong_fused(kept_in_place, inplace=True, functional=form)


@fault("the functional form rounds otherwise", "functional")
def _functional_differs() -> IrOpImpl:
    """Take the variance in float64: within native's tolerance, and not what the in-place form gives."""

    def form(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute float32 in float64."""
        if x.dtype != torch.float32:
            return fused(x, x_residual, weight, epsilon, variance_size)
        wide = None if weight is None else weight.double()
        out, total = fused(x.double(), x_residual.double(), wide, epsilon, variance_size)
        return out.float(), total.float()

    return wrong_fused(kept_in_place, inplace=True, functional=form)


@fault("a result is an input, undeclared", "aliasing")
def _returns_input() -> IrOpImpl:
    """Return the input where nothing has to be done."""

    @register_op(name="as_it_is")
    def as_it_is(x: Tensor) -> Tensor:
        """Return a copy of x."""
        return x.clone(memory_format=torch.contiguous_format)

    @as_it_is.register_input_generator
    def _inputs(num_tokens: int, dtype: torch.dtype = torch.float32, device: Any = None) -> tuple[Tensor]:
        """Return x [num_tokens, 64]."""
        return (torch.randn(num_tokens, 64, device=device).to(dtype),)

    @implements("as_it_is", provider="wrong")
    def wrong(x: Tensor) -> Tensor:
        """Return x itself."""
        return x.contiguous()

    return wrong


@fault("a result keeps the strides of its input", "layout")
def _strided_result() -> IrOpImpl:
    """Return a transposed result for a transposed input."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Preserve strides."""
        return torch.empty_like(x).copy_(norm(x, *rest))

    return wrong_norm(body)


@fault("a result has the dtype of the weight", "layout")
def _weight_dtype() -> IrOpImpl:
    """Return float32 for a float32 weight."""

    def body(x: Tensor, weight: Tensor | None, *rest: Any) -> Tensor:
        """Promote."""
        out = norm(x, weight, *rest)
        return out if weight is None else out.to(torch.promote_types(x.dtype, weight.dtype))

    return wrong_norm(body)


# Memory, zero tokens, batches.


@fault("fresh memory is taken for zeros", "poison")
def _accumulates() -> IrOpImpl:
    """Multiply fresh memory by zero, which NaN survives."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Accumulate into fresh memory."""
        fresh = torch.empty(x.shape, dtype=x.dtype)
        return fresh.nan_to_num(posinf=0.0, neginf=0.0) * 0 + norm(x, *rest) if _clean(fresh) else fresh

    return wrong_norm(body)


def _clean(fresh: Tensor) -> bool:
    """Tell whether fresh memory holds no NaN, as it happens to be on most days."""
    return not bool(fresh.isnan().any())


@fault("a result is left unwritten at its end", "poison")
def _unwritten() -> IrOpImpl:
    """Leave the last row of a result as fresh memory has it."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Write all rows but the last."""
        out = torch.empty(x.shape, dtype=x.dtype)
        right = norm(x, *rest)
        if not x.dim() or not x.shape[0]:
            return right
        out[:-1].copy_(right[:-1])
        return out

    return wrong_norm(body)


@fault("zero tokens raise", "zero_tokens")
def _no_empty() -> IrOpImpl:
    """Launch nothing."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Fail on an empty grid."""
        if not x.numel():
            message = "invalid configuration argument"
            raise RuntimeError(message)
        return norm(x, *rest)

    return wrong_norm(body)


@fault("zero tokens give another shape", "zero_tokens")
def _flat_empty() -> IrOpImpl:
    """Return an empty vector early."""
    return wrong_norm(lambda x, *rest: norm(x, *rest) if x.numel() else torch.empty(0, dtype=x.dtype))


@fault("declared batch-invariant, sums otherwise in large batches", "batch_invariance")
def _variant() -> IrOpImpl:
    """Take another order of summation from 16 rows on."""

    def body(x: Tensor, weight: Tensor | None, epsilon: float, size: Size) -> Tensor:
        """Sum in double for large batches."""
        if x.dim() < 2 or x.shape[0] < 16 or size is not None or x.dtype != torch.float32:
            return norm(x, weight, epsilon, size)
        out = functional.rms_norm(x.double(), x.shape[-1:], None, epsilon).float()
        return (out if weight is None else out.to(weight.dtype) * weight).to(x.dtype).contiguous()

    return wrong_norm(body, batch_invariant=True)


# Torch.


@fault("a custom op's fake has another shape", "opcheck")
def _wrong_fake() -> IrOpImpl:
    """Bring a custom op whose fake is one column short."""

    @torch.library.custom_op("vllm_ir_testkit_wrong::short", mutates_args=())
    def short(x: Tensor) -> Tensor:
        """Return a copy of x."""
        return x.clone(memory_format=torch.contiguous_format)

    @short.register_fake
    def _fake(x: Tensor) -> Tensor:
        """Return too little."""
        return x.new_empty((*x.shape[:-1], max(x.shape[-1] - 1, 0)))

    return wrong_norm(lambda x, *rest: short(norm(x, *rest)))


@fault("a custom op writes to an argument, undeclared", "opcheck")
def _undeclared_write() -> IrOpImpl:
    """Bring a custom op whose schema hides a write."""

    @torch.library.custom_op("vllm_ir_testkit_wrong::hidden_write", mutates_args=())
    def hidden_write(x: Tensor) -> Tensor:
        """Return twice x, and leave x spoilt."""
        out = x * 2
        x.add_(1)
        return out

    @hidden_write.register_fake
    def _fake(x: Tensor) -> Tensor:
        """Return the right shape."""
        return torch.empty_like(x)

    return wrong_norm(lambda x, *rest: hidden_write(norm(x, *rest)) / 2)


@fault("the implementation cannot be traced", "compile")
def _untraceable() -> IrOpImpl:
    """Leave torch for numpy and come back."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Go through memory that a tracer does not see."""
        out = norm(x, *rest)
        return torch.frombuffer(bytearray(bytes(out.view(torch.uint8).untyped_storage())), dtype=x.dtype).view(x.shape)

    return wrong_norm(body)


@fault("the implementation branches on a value", "compile")
def _branches() -> IrOpImpl:
    """Look at a value in the middle of the kernel."""

    def body(x: Tensor, *rest: Any) -> Tensor:
        """Skip what is all zero."""
        if bool((x != 0).any()):
            return norm(x, *rest)
        return torch.zeros_like(x, memory_format=torch.contiguous_format) + norm(x, *rest)

    return wrong_norm(body)


OWNERS = {name: {each.owner for each in FAULTS if each.name == name} for name in (each.name for each in FAULTS)}


@pytest.mark.parametrize("seeded", FAULTS, ids=lambda each: each.name.replace(" ", "_"))
def test_each_fault_is_caught_by_the_check_that_owns_it(
    seeded: Fault, manager: TestManager, caught: list[tuple[str, str, str]]
) -> None:
    """The owning check is red when nothing else runs."""
    impl = seeded.make()
    manager.add(impl)
    report = manager.conformance("wrong", checks=[seeded.owner])
    (outcome,) = report.outcomes
    assert outcome.state == FAILED, outcome
    assert report.exit_code == 1
    assert not any("the check itself" in each.case for each in outcome.findings), outcome.findings
    caught.append((seeded.name, seeded.owner, outcome.findings[0].what))


def test_no_green_check_hides_a_red_one(manager: TestManager) -> None:
    """With all checks, a single fault makes the whole red, however many are green."""
    manager.add(_unsigned_zero())
    report = manager.conformance("wrong")
    assert {each.check for each in report.failed} >= {"values"}
    assert report.count(PASSED) > report.count(FAILED)
    assert report.exit_code == 1


@pytest.mark.parametrize("name", sorted({each.owner for each in FAULTS}))
def test_a_right_provider_passes_what_catches_the_wrong_ones(name: str, manager: TestManager) -> None:
    """Every owning check is green on kernels that do what native does."""

    def accepts(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
        """Take the three usual dtypes."""
        del weight, epsilon, variance_size
        return x.dtype in {torch.float32, torch.bfloat16, torch.float16} or Unsupported(f"no kernel for {x.dtype}")

    def rowwise(x: Tensor, *rest: Any) -> Tensor:
        """Normalise row by row, so that no batch matters."""
        return norm(x, *rest)

    in_place = wrong_fused(kept_in_place, inplace=True, functional=fused)
    manager.add(wrong_norm(rowwise, supports_args=accepts, batch_invariant=True), in_place)
    report = manager.conformance("wrong", checks=[name])
    assert not report.failed, [each.findings for each in report.failed]
    assert report.count(PASSED) >= 1


def test_every_check_that_needs_no_gpu_owns_a_fault() -> None:
    """A check that was never seen red may be one that cannot be."""
    owners = {each.owner for each in FAULTS} | {"manifest"}  # that one is seeded in checks/test_manifest.py
    assert set(checks.NAMES) - owners == {"second_stream", "cuda_graph", "two_devices"}
