"""What is refused, in which words, and that the compiled check and the written one agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm_ir_provider_cpu_c import predicates

if TYPE_CHECKING:
    from vllm_ir import Unsupported

X = torch.ones(4, 64)
CACHE = torch.ones(8, 16)
POSITIONS = torch.zeros(4, dtype=torch.int64)


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


def norm_rope(*weights: torch.Tensor | None, **changed: Any) -> tuple[Any, ...]:
    """Return the arguments of a call of fused_qk_norm_rope with these weights and some arguments changed."""
    positions, query, key, *rest = rotary(**changed)
    return (positions, query, key, *weights, 1e-6, *rest)


REFUSED = [
    ("fused_qk_norm_rope", norm_rope(torch.ones(15), None), predicates.NEEDS_WEIGHT),
    ("fused_qk_norm_rope", norm_rope(None, torch.ones(32)[::2]), predicates.NEEDS_WEIGHT),
    ("fused_qk_norm_rope", norm_rope(None, torch.ones(16).half()), predicates.NEEDS_WEIGHT_DTYPE),
    ("fused_qk_norm_rope", norm_rope(torch.ones(16).to("meta"), None), predicates.NEEDS_CPU),
    ("fused_qk_norm_rope", norm_rope(None, None, head_size=48), predicates.NEEDS_HEADS),
    ("rms_norm", (X.to("meta"), None, 1e-6), predicates.NEEDS_CPU),
    ("rms_norm", (X.double(), None, 1e-6), predicates.NEEDS_DTYPE),
    ("rms_norm", (X.int(), None, 1e-6), predicates.NEEDS_DTYPE),
    ("rms_norm", (torch.ones(()), None, 1e-6), predicates.NEEDS_DIMENSIONS),
    ("rms_norm", (torch.ones([1] * 8 + [64]), None, 1e-6), predicates.NEEDS_DIMENSIONS),
    ("rms_norm", (X.T, None, 1e-6), predicates.NEEDS_ADJACENT),
    ("rms_norm", (torch.ones(4, 128)[:, ::2], None, 1e-6), predicates.NEEDS_ADJACENT),
    ("rms_norm", (X.bfloat16(), torch.ones(64).half(), 1e-6), predicates.NEEDS_WEIGHT_DTYPE),
    ("rms_norm", (X, torch.ones(64).bfloat16(), 1e-6), predicates.NEEDS_WEIGHT_DTYPE),
    ("rms_norm", (X, torch.ones(128)[::2], 1e-6), predicates.NEEDS_WEIGHT),
    ("rms_norm", (X, torch.ones(63), 1e-6), predicates.NEEDS_WEIGHT),
    ("rms_norm", (X, torch.ones(64).to("meta"), 1e-6), predicates.NEEDS_CPU),
    ("rms_norm", (X, None, 1e-6, 0), predicates.NEEDS_VARIANCE),
    ("rms_norm", (X, None, 1e-6, 65), predicates.NEEDS_VARIANCE),
    ("fused_add_rms_norm", (X, X.bfloat16(), None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, X[:1], None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, torch.ones(64, 4).T, None, 1e-6), predicates.NEEDS_ADJACENT),
    ("silu_and_mul", (torch.ones(4, 7),), predicates.NEEDS_HALVES),
    ("gelu_and_mul", (X, "exact"), predicates.NEEDS_APPROXIMATION),
    ("gelu_and_mul", (X.double(), "none"), predicates.NEEDS_DTYPE),
    ("rotary_embedding", rotary(positions=POSITIONS.short()), predicates.NEEDS_POSITIONS),
    ("rotary_embedding", rotary(head_size=48), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=15), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=18), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(key=X.bfloat16()), predicates.NEEDS_ONE_DTYPE),
    ("rotary_embedding", rotary(cos_sin_cache=torch.ones(8, 8)), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(cos_sin_cache=CACHE.half()), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(cos_sin_cache=torch.ones(16, 8).T), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(cos_sin_cache=CACHE.to("meta")), predicates.NEEDS_CPU),
    ("rotary_embedding", rotary(query=torch.ones(64, 4).T), predicates.NEEDS_ADJACENT),
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


@pytest.mark.parametrize(("op", "args", "reason"), REFUSED)
def test_what_no_kernel_takes_is_refused_with_a_sentence(op: str, args: tuple[Any, ...], reason: Unsupported) -> None:
    """Each refusal is a constant whose sentence says what is needed."""
    verdict = getattr(predicates, op)(*args)
    assert verdict is reason
    assert str(verdict).startswith(("needs", "knows"))


def faked(mode: FakeTensorMode, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with fake tensors in place of real ones."""
    return tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)


@pytest.mark.parametrize(("op", "args", "reason"), REFUSED)
def test_a_fake_tensor_gets_the_same_verdict(op: str, args: tuple[Any, ...], reason: Unsupported) -> None:
    """Save where only the batch is wrong: in a graph nobody looks at it, and the kernel would say so."""
    with FakeTensorMode() as mode:
        verdict = getattr(predicates, op)(*faked(mode, args))
    only_the_batch = op == "fused_add_rms_norm" and args[0].shape[0] != args[1].shape[0]
    assert verdict is (True if only_the_batch and args[1].stride(-1) == 1 else reason)


SHAPES = st.sampled_from([(), (8,), (3, 8), (2, 3, 8), (0, 8), (3, 7), (3, 1)])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64])


@settings(max_examples=200, deadline=None)
@given(
    shape=SHAPES,
    dtype=DTYPES,
    weight_dtype=DTYPES,
    weight_size=st.sampled_from([None, 1, 7, 8]),
    transposed=st.booleans(),
    variance_size=st.sampled_from([None, 0, 1, 8, 9]),
)
def test_the_compiled_check_and_the_written_one_agree(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    weight_size: int | None,
    transposed: bool,
    variance_size: int | None,
) -> None:
    """A plain tensor is judged in C++, a fake one in Python; a call is taken by both or by neither."""
    x = torch.ones(shape).to(dtype)
    x = x.transpose(0, -1) if transposed and x.dim() > 1 else x
    weight = None if weight_size is None else torch.ones(weight_size).to(weight_dtype)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("rms_norm", (x, weight, 1e-6, variance_size)),
        ("fused_add_rms_norm", (x, x, weight, 1e-6, variance_size)),
        ("silu_and_mul", (x,)),
        ("rotary_embedding", (POSITIONS[:3], x, x, 8, 8, torch.ones(4, 8).to(weight_dtype), True)),
    ]
    with FakeTensorMode() as mode:
        fakes = [faked(mode, args) for _, args in calls]
    for (op, args), fake in zip(calls, fakes, strict=True):
        predicate = getattr(predicates, op)
        with FakeTensorMode():
            written = predicate(*fake)
        assert predicate(*args) is written


def test_a_zero_head_size_is_refused_and_not_divided_by() -> None:
    """Sizes that make no sense reach no arithmetic."""
    assert predicates.rotary_embedding(*rotary(head_size=0, rotary_dim=0)) is predicates.NEEDS_HEADS
