"""What the quantising kernels and fused_qk_norm_rope refuse, in which words; tensors of a GPU are fakes here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm_ir_provider_triton import predicates, quant_predicates

if TYPE_CHECKING:
    from vllm_ir import Unsupported

X, ONE, WEIGHT = torch.ones(4, 64), torch.ones(1), torch.ones(64)
EPSILON = 1e-6
BY_TENSOR = False
TWO_DIMENSIONS = torch.ones(1, 1)


def heads(**changed: Any) -> tuple[Any, ...]:
    """Return the arguments of a good call of fused_qk_norm_rope with some changed."""
    arguments = {
        "positions": torch.zeros(4, dtype=torch.int64),
        "query": X,
        "key": X,
        "query_weight": torch.ones(16),
        "key_weight": None,
        "epsilon": EPSILON,
        "head_size": 16,
        "rotary_dim": 16,
        "cos_sin_cache": torch.ones(8, 16),
        "is_neox_style": True,
    }
    return tuple((arguments | changed).values())


LONG = torch.empty(1, 16385, device="meta")
REFUSED: list[tuple[str, tuple[Any, ...], Unsupported]] = [
    ("static_quant_fp8", (X.double(), ONE), predicates.NEEDS_DTYPE),
    ("static_quant_fp8", (torch.ones(()), ONE), predicates.NEEDS_DIMENSIONS),
    ("static_quant_fp8", (X.T, ONE), predicates.NEEDS_ADJACENT),
    ("static_quant_fp8", (X, ONE.double()), quant_predicates.NEEDS_SCALE),
    ("static_quant_fp8", (X, TWO_DIMENSIONS), quant_predicates.NEEDS_SCALE),
    ("static_quant_fp8", (X, torch.ones(128)[::2]), quant_predicates.NEEDS_SCALE),
    ("static_quant_fp8", (X, ONE, torch.float16), quant_predicates.NEEDS_FORMAT),
    ("fixed_dynamic_quant_fp8", (X, BY_TENSOR), quant_predicates.NEEDS_NO_BATCH),
    ("fixed_dynamic_quant_fp8", (X.T,), predicates.NEEDS_ADJACENT),
    ("dynamic_quant_fp8", (X[:, :0],), quant_predicates.NEEDS_ELEMENTS),
    ("dynamic_quant_fp8", (X, True, WEIGHT), quant_predicates.NEEDS_BOUND),
    ("dynamic_quant_fp8", (X, True, ONE.half()), quant_predicates.NEEDS_BOUND),
    ("dynamic_group_quant_fp8", (X, 48), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, 0), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, True), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, None), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, "8"), quant_predicates.NEEDS_GROUPS),
    ("rms_norm_static_quant_fp8", (X, WEIGHT[1:], ONE, EPSILON), predicates.NEEDS_WEIGHT),
    ("rms_norm_static_quant_fp8", (X, None, WEIGHT, EPSILON), quant_predicates.NEEDS_ONE_SCALE),
    ("rms_norm_static_quant_fp8", (LONG, None, ONE, EPSILON), quant_predicates.NEEDS_BLOCK),
    ("rms_norm_dynamic_quant_fp8", (LONG, None, EPSILON), quant_predicates.NEEDS_BLOCK),
    ("rms_norm_dynamic_quant_fp8", (X, WEIGHT.half(), EPSILON), predicates.NEEDS_WEIGHT_DTYPE),
    ("rms_norm_dynamic_quant_fp8", (X, None, EPSILON, BY_TENSOR), quant_predicates.NEEDS_TOKENS),
    ("fused_add_rms_norm_static_quant_fp8", (X, X.half(), None, ONE, EPSILON), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm_static_quant_fp8", (X, X, None, WEIGHT, EPSILON), quant_predicates.NEEDS_ONE_SCALE),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, X[0], None, EPSILON), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, torch.ones(64, 4).T, None, EPSILON), predicates.NEEDS_ADJACENT),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, X, None, EPSILON, BY_TENSOR), quant_predicates.NEEDS_TOKENS),
    ("silu_and_mul_static_quant_fp8", (X[:, :7], ONE), predicates.NEEDS_HALVES),
    ("silu_and_mul_static_quant_fp8", (X, torch.ones(32)), quant_predicates.NEEDS_ONE_SCALE),
    ("fixed_silu_and_mul_dynamic_quant_fp8", (X, BY_TENSOR), quant_predicates.NEEDS_NO_BATCH),
    ("fixed_silu_and_mul_dynamic_quant_fp8", (X, True, WEIGHT), quant_predicates.NEEDS_BOUND),
    ("silu_and_mul_group_quant_fp8", (X, 64), quant_predicates.NEEDS_GROUPS),
    ("fused_qk_norm_rope", heads(query=X.double()), predicates.NEEDS_DTYPE),
    ("fused_qk_norm_rope", heads(key_weight=torch.ones(64)), predicates.NEEDS_WEIGHT),
    ("fused_qk_norm_rope", heads(query_weight=torch.ones(16).half()), predicates.NEEDS_WEIGHT_DTYPE),
    ("fused_qk_norm_rope", heads(head_size=48), predicates.NEEDS_HEADS),
    (
        "fused_qk_norm_rope",
        heads(query_weight=None, head_size=64, is_neox_style=False),
        predicates.NEEDS_WIDE_ROTATION,
    ),
]
TAKEN: list[tuple[str, tuple[Any, ...]]] = [
    ("static_quant_fp8", (X, ONE)),
    ("static_quant_fp8", (X[0], ONE.reshape(()), torch.float8_e5m2)),
    ("static_quant_fp8", (X[:, :32].bfloat16(), WEIGHT[:32], torch.float8_e4m3fnuz)),
    ("dynamic_quant_fp8", (X[:, ::1].half(), True, ONE)),
    ("dynamic_quant_fp8", (LONG, True, None)),
    ("dynamic_quant_fp8", (X, BY_TENSOR, ONE)),
    ("fixed_dynamic_quant_fp8", (X,)),
    ("fixed_silu_and_mul_dynamic_quant_fp8", (X, True, ONE)),
    ("dynamic_group_quant_fp8", (X, 16, True, True)),
    ("rms_norm_static_quant_fp8", (X.bfloat16(), WEIGHT, ONE, EPSILON)),
    ("rms_norm_dynamic_quant_fp8", (X, None, EPSILON, True, ONE)),
    ("fused_add_rms_norm_static_quant_fp8", (X, torch.ones(4, 128)[:, 64:], WEIGHT, ONE, EPSILON)),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, X, None, EPSILON)),
    ("silu_and_mul_static_quant_fp8", (X, ONE)),
    ("silu_and_mul_dynamic_quant_fp8", (X,)),
    ("silu_and_mul_dynamic_quant_fp8", (X, BY_TENSOR)),
    ("silu_and_mul_group_quant_fp8", (X, 16)),
    ("fused_qk_norm_rope", heads()),
    ("fused_qk_norm_rope", heads(query_weight=None, is_neox_style=False)),
]


def predicate_of(op: str) -> Any:
    """Return what judges calls of an op."""
    return getattr(predicates if op == "fused_qk_norm_rope" else quant_predicates, op)


def faked(args: tuple[Any, ...], *devices: str) -> tuple[Any, ...]:
    """Return arguments with fake tensors, on the devices in turn; the last one serves the rest."""
    mode, places = FakeTensorMode(), list(devices)
    found = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            device = places.pop(0) if len(places) > 1 else places[0]
            with mode:
                found.append(torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=device))
        else:
            found.append(arg)
    return tuple(found)


@pytest.mark.parametrize(("op", "args", "reason"), REFUSED)
def test_what_is_not_quantised_is_refused_with_a_sentence(op: str, args: tuple[Any, ...], reason: Unsupported) -> None:
    """Each refusal is a constant whose sentence says what is needed."""
    verdict = predicate_of(op)(*faked(args, "cuda:0"))
    assert verdict is reason
    assert str(verdict).startswith("needs")


@pytest.mark.parametrize(("op", "args"), TAKEN)
def test_what_is_quantised_is_taken_on_a_gpu_alone(op: str, args: tuple[Any, ...]) -> None:
    """A tensor on the CPU is refused, and so are two devices in one call."""
    predicate = predicate_of(op)
    assert predicate(*faked(args, "cuda:0")) is True
    assert predicate(*args) is predicates.NEEDS_GPU
    if sum(isinstance(arg, torch.Tensor) for arg in args) > 1:
        assert predicate(*faked(args, "cuda:0", "cuda:1")) is predicates.NEEDS_ONE_DEVICE


NEGATED: list[tuple[str, tuple[Any, ...]]] = [
    ("static_quant_fp8", (torch._neg_view(X), ONE)),
    ("static_quant_fp8", (X, torch._neg_view(ONE))),
    ("dynamic_quant_fp8", (X, True, torch._neg_view(ONE))),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, torch._neg_view(X), None, EPSILON)),
    ("rms_norm_static_quant_fp8", (X, torch._neg_view(WEIGHT), ONE, EPSILON)),
    ("fused_qk_norm_rope", heads(query_weight=torch._neg_view(torch.ones(16)))),
]


@pytest.mark.parametrize(("op", "args"), NEGATED)
def test_a_negated_view_is_not_quantised(op: str, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch negates it when it reads it, a kernel would not; once it is resolved it is taken."""
    monkeypatch.setattr(predicates, "NEEDS_GPU", None)
    assert predicate_of(op)(*args) is predicates.NEEDS_VALUES
    resolved = tuple(each.resolve_neg() if isinstance(each, torch.Tensor) else each for each in args)
    assert predicate_of(op)(*resolved) is True
