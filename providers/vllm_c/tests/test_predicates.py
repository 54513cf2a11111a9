"""What is refused, in which words. Tensors of a GPU are fakes here: no predicate reads memory or a batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from vllm_ir_provider_vllm_c import predicates, quant_predicates

if TYPE_CHECKING:
    from vllm_ir import Unsupported

X = torch.ones(4, 64)
CACHE = torch.ones(8, 16)
POSITIONS = torch.zeros(4, dtype=torch.int64)
ONE = torch.ones(1)
FNUZ = torch.float8_e4m3fnuz
PER_TOKEN = True
NORM_OP = "rms_norm_dynamic_quant_fp8"


def judge(op: str, *args: Any) -> bool | Unsupported:
    """Return what an op's predicate says."""
    room = predicates if hasattr(predicates, op) else quant_predicates
    verdict: bool | Unsupported = getattr(room, op)(*args)
    return verdict


def rotary(**changed: Any) -> tuple[Any, ...]:
    """Return the arguments of a good call of rotary_embedding with some changed."""
    arguments = {
        "positions": POSITIONS,
        "query": X,
        "key": X,
        "head_size": 16,
        "rotary_dim": 16,
        "cos_sin_cache": CACHE,
        "is_neox_style": True,
    }
    return tuple((arguments | changed).values())


def heads(**changed: Any) -> tuple[Any, ...]:
    """Return the arguments of a good call of fused_qk_norm_rope with some changed."""
    arguments = {
        "positions": POSITIONS,
        "query": X,
        "key": X,
        "query_weight": torch.ones(16),
        "key_weight": None,
        "epsilon": 1e-6,
        "head_size": 16,
        "rotary_dim": 16,
        "cos_sin_cache": CACHE,
        "is_neox_style": True,
    }
    return tuple((arguments | changed).values())


REFUSED = [
    ("rms_norm", (X.double(), None, 1e-6), predicates.NEEDS_DTYPE),
    ("rms_norm", (X.int(), None, 1e-6), predicates.NEEDS_DTYPE),
    ("rms_norm", (torch.ones(()), None, 1e-6), predicates.NEEDS_DIMENSIONS),
    ("rms_norm", (torch.ones([1] * 4 + [64]), None, 1e-6), predicates.NEEDS_DIMENSIONS),
    ("rms_norm", (X.T, None, 1e-6), predicates.NEEDS_ADJACENT),
    ("rms_norm", (torch.ones(4, 128)[:, ::2], None, 1e-6), predicates.NEEDS_ADJACENT),
    ("rms_norm", (torch.empty(1, 2**30 + 1, device="meta"), None, 1e-6), predicates.NEEDS_SHORT_ROWS),
    ("rms_norm", (X.bfloat16(), torch.ones(64).half(), 1e-6), predicates.NEEDS_WEIGHT_DTYPE),
    ("rms_norm", (X, torch.ones(64).bfloat16(), 1e-6), predicates.NEEDS_WEIGHT_DTYPE),
    ("rms_norm", (X, torch.ones(128)[::2], 1e-6), predicates.NEEDS_WEIGHT),
    ("rms_norm", (X, torch.ones(63), 1e-6), predicates.NEEDS_WEIGHT),
    ("rms_norm", (X, None, 1e-6, 0), predicates.NEEDS_VARIANCE),
    ("rms_norm", (X, None, 1e-6, 65), predicates.NEEDS_VARIANCE),
    ("fused_add_rms_norm", (X, X.bfloat16(), None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, X[0], None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, X[:1], None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, X[:, :32], None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, torch.ones(64, 4).T, None, 1e-6), predicates.NEEDS_ADJACENT),
    ("silu_and_mul", (torch.ones(4, 7),), predicates.NEEDS_HALVES),
    ("gelu_and_mul", (X, "exact"), predicates.NEEDS_APPROXIMATION),
    ("gelu_and_mul", (X.double(), "none"), predicates.NEEDS_DTYPE),
    ("rotary_embedding", rotary(positions=POSITIONS.short()), predicates.NEEDS_POSITIONS),
    ("rotary_embedding", rotary(positions=POSITIONS.view(4, 1, 1, 1)), predicates.NEEDS_POSITIONS),
    ("rotary_embedding", rotary(head_size=48), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(head_size=0, rotary_dim=0), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=15), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=18), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(key=X.bfloat16()), predicates.NEEDS_ONE_DTYPE),
    ("rotary_embedding", rotary(cos_sin_cache=torch.ones(8, 8)), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(cos_sin_cache=CACHE.half()), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(cos_sin_cache=torch.ones(16, 8).T), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(query=torch.ones(64, 4).T), predicates.NEEDS_ADJACENT),
    ("fused_qk_norm_rope", heads(head_size=48), predicates.NEEDS_HEADS),
    ("fused_qk_norm_rope", heads(query_weight=torch.ones(64)), predicates.NEEDS_WEIGHT),
    ("fused_qk_norm_rope", heads(key_weight=torch.ones(16).half()), predicates.NEEDS_WEIGHT_DTYPE),
    ("static_quant_fp8", (X.double(), ONE), predicates.NEEDS_DTYPE),
    ("static_quant_fp8", (torch.ones(()), ONE), predicates.NEEDS_DIMENSIONS),
    ("static_quant_fp8", (X, ONE, FNUZ), quant_predicates.NEEDS_FP8),
    ("static_quant_fp8", (X, ONE, torch.int8), quant_predicates.NEEDS_FP8),
    ("static_quant_fp8", (X, ONE.half()), quant_predicates.NEEDS_SCALES),
    ("static_quant_fp8", (X, torch.ones(63)), quant_predicates.NEEDS_SCALES),
    ("static_quant_fp8", (X, torch.ones(4, 1)), quant_predicates.NEEDS_SCALES),
    ("static_quant_fp8", (X, torch.ones(128)[::2]), quant_predicates.NEEDS_SCALES),
    ("static_quant_fp8", (X, torch.ones(64).half()), quant_predicates.NEEDS_SCALES),
    ("static_quant_fp8", (X.T, ONE), predicates.NEEDS_ADJACENT),
    ("dynamic_quant_fp8", (torch.ones(4, 0),), quant_predicates.NEEDS_ELEMENTS),
    ("dynamic_quant_fp8", (X, True, torch.ones(64)), quant_predicates.NEEDS_BOUND),
    ("dynamic_quant_fp8", (X, True, ONE.double()), quant_predicates.NEEDS_BOUND),
    ("dynamic_quant_fp8", (X, True, None, FNUZ), quant_predicates.NEEDS_FP8),
    ("dynamic_group_quant_fp8", (X, 48), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, 0), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, True), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, None), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, "8"), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, 16, True, True, FNUZ), quant_predicates.NEEDS_FP8),
    ("rms_norm_static_quant_fp8", (X, torch.ones(63), ONE, 1e-6), predicates.NEEDS_WEIGHT),
    ("rms_norm_static_quant_fp8", (X, None, torch.ones(64), 1e-6), quant_predicates.NEEDS_SCALE),
    ("rms_norm_static_quant_fp8", (X, None, ONE, 1e-6, FNUZ), quant_predicates.NEEDS_FP8),
    ("rms_norm_dynamic_quant_fp8", (torch.ones(4, 0), None, 1e-6), quant_predicates.NEEDS_ELEMENTS),
    ("rms_norm_dynamic_quant_fp8", (X, None, 1e-6, True, torch.ones(2)), quant_predicates.NEEDS_BOUND),
    ("fused_add_rms_norm_static_quant_fp8", (X, X[:1], None, ONE, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm_static_quant_fp8", (X, X, None, torch.ones(64), 1e-6), quant_predicates.NEEDS_SCALE),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, X.half(), None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, X, None, 1e-6, True, None, FNUZ), quant_predicates.NEEDS_FP8),
    ("silu_and_mul_static_quant_fp8", (torch.ones(4, 7), ONE), predicates.NEEDS_HALVES),
    ("silu_and_mul_static_quant_fp8", (X, torch.ones(32)), quant_predicates.NEEDS_SCALE),
    ("silu_and_mul_dynamic_quant_fp8", (torch.ones(4, 0),), quant_predicates.NEEDS_ELEMENTS),
    ("silu_and_mul_group_quant_fp8", (X, 64), quant_predicates.NEEDS_GROUPS),
    ("silu_and_mul_group_quant_fp8", (X, 32, False, False, FNUZ), quant_predicates.NEEDS_FP8),
    ("rotary_embedding", rotary(head_size=True), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(head_size="8"), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(head_size=None), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=True), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim="8"), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=None), predicates.NEEDS_HEADS),
    ("rms_norm", (X, None, 1e-6, True), predicates.NEEDS_VARIANCE),
    ("rms_norm", (X, None, 1e-6, "8"), predicates.NEEDS_VARIANCE),
    ("rms_norm", (X, None, 1e-6, 8.0), predicates.NEEDS_VARIANCE),
]
TAKEN = [
    ("rms_norm", (X, None, 1e-6)),
    ("rms_norm", (torch.ones(64), torch.ones(64), 1e-6, 3)),
    ("rms_norm", (X.bfloat16(), torch.ones(64), 1e-6)),
    ("rms_norm", (torch.ones(0, 7).half(), torch.ones(7).half(), 1e-6)),
    ("fused_add_rms_norm", (X, torch.ones(4, 192)[:, 64:128], None, 1e-6)),
    ("silu_and_mul", (X,)),
    ("gelu_and_mul", (X, "tanh")),
    ("rotary_embedding", rotary()),
    ("rotary_embedding", rotary(positions=POSITIONS.int(), query=X.view(4, 4, 16).bfloat16(), key=X.bfloat16())),
    ("fused_qk_norm_rope", heads()),
    ("fused_qk_norm_rope", heads(query=X.half(), key=X.half(), key_weight=torch.ones(16).half())),
    ("static_quant_fp8", (X, ONE)),
    ("static_quant_fp8", (X.half(), torch.ones(()), torch.float8_e5m2)),
    ("static_quant_fp8", (X, torch.ones(64))),
    ("dynamic_quant_fp8", (X, False, ONE)),
    ("dynamic_group_quant_fp8", (torch.ones(4, 0), 16)),
    ("dynamic_group_quant_fp8", (X, 64, True, True, torch.float8_e5m2)),
    ("rms_norm_static_quant_fp8", (X, None, ONE, 1e-6)),
    ("rms_norm_dynamic_quant_fp8", (X, torch.ones(64), 1e-6, False)),
    ("fused_add_rms_norm_static_quant_fp8", (X, X, torch.ones(64), ONE, 1e-6)),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, X, None, 1e-6, True, torch.ones(()))),
    ("silu_and_mul_static_quant_fp8", (X, ONE)),
    ("silu_and_mul_dynamic_quant_fp8", (X,)),
    ("silu_and_mul_group_quant_fp8", (X, 32)),
]


def on(mode: FakeTensorMode, device: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake of a tensor on a device, with the same sizes and strides."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def faked(args: tuple[Any, ...], *devices: str) -> tuple[Any, ...]:
    """Return arguments with fake tensors, on the devices in turn; the last one serves the rest."""
    mode, places = FakeTensorMode(), list(devices)
    return tuple(
        on(mode, places.pop(0) if len(places) > 1 else places[0], arg) if isinstance(arg, torch.Tensor) else arg
        for arg in args
    )


@pytest.mark.parametrize(("op", "args", "reason"), REFUSED)
def test_what_no_kernel_takes_is_refused_with_a_sentence(op: str, args: tuple[Any, ...], reason: Unsupported) -> None:
    """Each refusal is a constant whose sentence says what is needed."""
    verdict = judge(op, *faked(args, "cuda:0"))
    assert verdict is reason
    assert str(verdict).startswith(("needs", "knows"))


@pytest.mark.parametrize(("op", "args"), TAKEN)
def test_what_a_kernel_takes_is_taken_on_a_gpu_alone(op: str, args: tuple[Any, ...]) -> None:
    """A tensor on the CPU is refused, and so are two devices in one call."""
    assert judge(op, *faked(args, "cuda:0")) is True
    assert judge(op, *args) is predicates.NEEDS_CUDA
    if sum(isinstance(arg, torch.Tensor) for arg in args) > 1:
        assert judge(op, *faked(args, "cuda:0", "cuda:1")) is predicates.NEEDS_ONE_DEVICE


NEGATED = [
    ("rms_norm", (0,)),
    ("rms_norm", (1,)),
    ("fused_add_rms_norm", (1,)),
    ("fused_add_rms_norm", (2,)),
    ("silu_and_mul", (0,)),
    ("rotary_embedding", (0, 1, 2, 5)),
    ("fused_qk_norm_rope", (0, 1, 2, 3, 8)),
    ("static_quant_fp8", (0, 1)),
    ("dynamic_quant_fp8", (0, 2)),
    ("rms_norm_static_quant_fp8", (0, 2)),
    ("fused_add_rms_norm_dynamic_quant_fp8", (0, 1, 2)),
]


@pytest.mark.parametrize(("op", "numbers"), NEGATED)
def test_a_pending_negation_is_refused(op: str, numbers: tuple[int, ...]) -> None:
    """The memory holds the negative of the values, and a launch reads memory."""
    arguments: dict[str, tuple[Any, ...]] = {
        "rms_norm": (X, torch.ones(64), 1e-6),
        "fused_add_rms_norm": (X, X, torch.ones(64), 1e-6),
        "silu_and_mul": (X,),
        "rotary_embedding": rotary(),
        "fused_qk_norm_rope": heads(),
        "static_quant_fp8": (X, torch.ones(64)),
        "dynamic_quant_fp8": (X, True, ONE),
        "rms_norm_static_quant_fp8": (X, None, ONE, 1e-6),
        "fused_add_rms_norm_dynamic_quant_fp8": (X, X, torch.ones(64), 1e-6),
    }
    args = faked(arguments[op], "cuda:0")
    assert judge(op, *args) is True
    for number in numbers:
        changed = [torch._neg_view(arg) if i == number else arg for i, arg in enumerate(args)]
        assert judge(op, *changed) is predicates.NEEDS_PLAIN


def test_one_scale_for_all_rows_is_refused_where_bits_must_not_depend_on_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That scale is of the whole batch by its meaning, so only the others are served then."""
    (x,) = faked((X,), "cuda:0")
    monkeypatch.setattr(quant_predicates, "INVARIANT", True)
    for op, rest in (("dynamic_quant_fp8", ()), ("silu_and_mul_dynamic_quant_fp8", ()), (NORM_OP, (None, 1e-6))):
        assert judge(op, x, *rest, not PER_TOKEN) is quant_predicates.NEEDS_TOKENS
        assert judge(op, x, *rest, PER_TOKEN) is True


def test_a_leading_size_that_may_change_is_not_asked() -> None:
    """A residual of another open size is left to the call: no guard comes of the question."""
    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes):
        one, other = (torch.empty(shapes.create_unbacked_symint(), 64, device="cuda:0") for _ in range(2))
        assert predicates.fused_add_rms_norm(one, other, None, 1e-6) is True
    assert shapes.guards == []
