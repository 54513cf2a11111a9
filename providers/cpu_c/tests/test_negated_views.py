"""A negated view's memory holds the negative of its values: it is refused, since a kernel reads memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_cpu_c import predicates, quant_predicates
from vllm_ir_provider_cpu_c.predicates import NEEDS_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Native = Callable[..., Any]
    Same = Callable[[Any, Any], None]

X, ONE, EPSILON = torch.tensor([[1.0], [2.0], [-3.0]]), torch.tensor([0.5]), 1e-6
FP8 = torch.float8_e4m3fn
CALLS: list[tuple[str, list[Any], tuple[int, ...]]] = [
    ("rms_norm", [X, ONE, EPSILON], (0, 1)),
    ("fused_add_rms_norm", [X, X + 1, ONE, EPSILON], (0, 1, 2)),
    ("static_quant_fp8", [X, ONE, FP8], (0, 1)),
    ("dynamic_quant_fp8", [X, True, ONE, FP8], (0, 2)),
    ("dynamic_group_quant_fp8", [X, 1, False, False, FP8], (0,)),
    ("rms_norm_static_quant_fp8", [X, ONE, ONE, EPSILON, FP8], (0, 1, 2)),
    ("rms_norm_dynamic_quant_fp8", [X, ONE, EPSILON, True, ONE, FP8], (0, 1, 4)),
    ("fused_add_rms_norm_static_quant_fp8", [X, X + 1, ONE, ONE, EPSILON, FP8], (0, 1, 2, 3)),
    ("silu_and_mul_static_quant_fp8", [torch.ones(3, 2), ONE, FP8], (1,)),
]


def negated(x: Tensor) -> Tensor:
    """Return the same values as a negated view: as the imaginary part of a conjugate."""
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg()
    assert torch.equal(view, x)
    return view


@pytest.mark.parametrize(("op", "args", "place"), [(op, args, i) for op, args, places in CALLS for i in places])
def test_a_negated_view_is_refused_and_native_runs(
    op: str, args: list[Any], place: int, native: Native, same_bits: Same
) -> None:
    """Each tensor of a call in its turn; a plain copy of it is taken."""
    judge = getattr(predicates if hasattr(predicates, op) else quant_predicates, op)
    assert judge(*args) is True
    changed = [negated(arg) if i == place else arg for i, arg in enumerate(args)]
    assert judge(*changed) is NEEDS_VALUES
    with getattr(ops, op).set_priority(["cpu_c"]):
        assert getattr(ops, op).dispatch(*changed).provider == "native"
        same_bits(getattr(ops, op)(*changed), native(op, *args))
