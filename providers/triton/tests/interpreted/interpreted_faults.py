"""The comparison sees what is wrong: faults put into the kernels' sources, and an interpreter left as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from comparing import complaint, tensors
from faults import changed, roomy
from launches import EPSILON, NEOX, order_depends
from vllm_ir import ops
from vllm_ir_provider_triton import invariant, kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from interpreter import Interpreter


def rms_norm() -> tuple[str, tuple[Any, ...]]:
    """Return a call of rms_norm with rows that lie apart and do not fill a block."""
    return "rms_norm", (roomy(9, 1000), torch.randn(1000).bfloat16(), EPSILON)


def part() -> tuple[str, tuple[Any, ...]]:
    """Return a call of rms_norm whose variance is of half a row."""
    return "rms_norm", (roomy(9, 1000), torch.randn(1000).bfloat16(), EPSILON, 500)


def fused() -> tuple[str, tuple[Any, ...]]:
    """Return a call of fused_add_rms_norm whose residual is less than half a unit everywhere."""
    x = torch.tensor([1.0, 1.5, 2.5, 3.0, 5.0, 7.0, 11.0, 13.0]).repeat(9, 128).bfloat16()
    return "fused_add_rms_norm", (x, torch.full_like(x, 1 / 300), torch.randn(1024).bfloat16(), EPSILON)


def silu() -> tuple[str, tuple[Any, ...]]:
    """Return a call of silu_and_mul."""
    return "silu_and_mul", (roomy(9, 2000),)


def rotary() -> tuple[str, tuple[Any, ...]]:
    """Return a call of rotary_embedding with a head size that fills no block."""
    positions, cache = torch.arange(9) % 7, torch.randn(7, 40).bfloat16()
    return "rotary_embedding", (positions, roomy(9, 320), roomy(9, 80), 80, 40, cache, NEOX)


SUM = "v += tl.load(residual, mask=there, other=0.0).to(tl.float32)"
ACTIVE = "activated(gates.to(tl.float32), ACTIVATION)"
PLACE = "x_row = (x + offsets(row, x_size1, x_size2, x_stride0"
MEAN = "tl.div_rn(total, measured.to(tl.float32))"

FAULTS: dict[str, tuple[Callable[[], tuple[str, tuple[Any, ...]]], str, str, str]] = {
    "a mask dropped": (part, "norm.py", "tl.where((column < measured)[None, :], v * v, 0.0)", "v * v"),
    "a mask that ends too early": (silu, "gate.py", "(column < size)[None, :]", "(column < size - 1)[None, :]"),
    "a rounding left out before the weight": (rms_norm, "norm.py", "rounded(rounded(v, w.dtype) *", "rounded(v *"),
    "a rounding left out before the gate": (silu, "gate.py", f"rounded({ACTIVE}, gates.dtype)", ACTIVE),
    "a sum rounded before the variance": (
        fused,
        "norm.py",
        SUM,
        f"{SUM}\n        v = rounded(v, x.dtype.element_ty)",
    ),
    "a wrong stride": (rms_norm, "norm.py", f"{PLACE},", f"{PLACE} // 2,"),
    "a product not rounded": (rotary, "rotary.py", "rounded(second * sine, dtype)", "second * sine"),
    "an element not copied": (rotary, "rotary.py", "range(2 * half, head_size", "range(2 * half + 1, head_size"),
    "a mean of too many": (rms_norm, "norm.py", MEAN, "tl.div_rn(total, (measured + 1).to(tl.float32))"),
}


def wrong(call: tuple[str, tuple[Any, ...]]) -> str | None:
    """Return what is wrong with a kernel's results, or None."""
    op, args = call
    got = tensors(getattr(kernels, op).func_impl_fn(*args))
    wanted = tensors(getattr(ops, op).impls["native"].impl_fn(*args))
    return next(
        (what for one, other in zip(got, wanted, strict=True) if (what := complaint(getattr(ops, op), one, other))),
        None,
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_seen(name: str, interpreter: Interpreter, tmp_path: Path) -> None:
    """The call is right with the kernel as it is, and wrong with the fault in it."""
    make, file, old, new = FAULTS[name]
    call = make()
    assert wrong(call) is None
    program = interpreter.launches[-1].variant.program
    interpreter.change[program] = changed(name, file, old, new, tmp_path)(program)
    assert wrong(call) is not None


def test_an_order_that_goes_by_the_block_is_seen(
    interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch invariance rests on the order of the sum; a sum that the block orders is caught."""
    load = changed("order", "numbers.py", "if HALVINGS == 0:", "if HALVINGS >= 0:", tmp_path)
    interpreter.change["norm"] = load("norm")
    x = torch.randn(3, 1000)
    assert order_depends(lambda: invariant.rms_norm.impl_fn(x, None, EPSILON), 1000, monkeypatch)


@pytest.mark.parametrize("make", [rms_norm, silu, rotary])
@pytest.mark.usefixtures("inexact")
def test_without_our_rounding_the_interpreter_is_wrong(make: Callable[[], tuple[str, tuple[Any, ...]]]) -> None:
    """So a comparison in bfloat16 without it is worthless: good kernels fail."""
    assert wrong(make()) is not None
