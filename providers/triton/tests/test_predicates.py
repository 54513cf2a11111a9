"""What is refused, in which words. Tensors of a GPU are fakes here: no predicate reads memory or a batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm_ir_provider_triton import predicates

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
    ("rotary_embedding", rotary(cos_sin_cache=CACHE.double()), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(cos_sin_cache=torch.ones(16, 8).T), predicates.NEEDS_CACHE),
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


NEGATED = [
    ("rms_norm", (torch._neg_view(X), None, 1e-6)),
    ("rms_norm", (X, torch._neg_view(X[0]), 1e-6)),
    ("fused_add_rms_norm", (X, torch._neg_view(X), None, 1e-6)),
    ("silu_and_mul", (torch._neg_view(X),)),
    ("gelu_and_mul", (torch._neg_view(X), "tanh")),
    *(
        ("rotary_embedding", rotary(**{name: torch._neg_view(value)}))
        for name, value in {"positions": POSITIONS, "query": X, "key": X, "cos_sin_cache": CACHE}.items()
    ),
]


@pytest.mark.parametrize(("op", "args"), NEGATED)
def test_a_negated_view_is_refused(op: str, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch negates it when it reads it, a kernel would not; once it is resolved it is taken."""
    monkeypatch.setattr(predicates, "NEEDS_GPU", None)
    predicate = getattr(predicates, op)
    assert predicate(*args) is predicates.NEEDS_VALUES
    assert predicate(*(each.resolve_neg() if isinstance(each, torch.Tensor) else each for each in args)) is True


def test_dynamo_takes_a_predicate_in_one_graph() -> None:
    """Which may ask for nothing that Dynamo cannot tell."""

    def told(x: torch.Tensor) -> torch.Tensor:
        """Return another tensor for a refusal."""
        return x + 1 if predicates.rms_norm(x, None, 1e-6) else x - 1

    torch.compiler.reset()
    assert not torch.compile(told, fullgraph=True, backend="eager")(X).any()


@pytest.mark.parametrize(("op", "args", "reason"), REFUSED)
def test_what_no_kernel_takes_is_refused_with_a_sentence(op: str, args: tuple[Any, ...], reason: Unsupported) -> None:
    """Each refusal is a constant whose sentence says what is needed."""
    verdict = getattr(predicates, op)(*faked(args, "cuda:0"))
    assert verdict is reason
    assert str(verdict).startswith(("needs", "knows"))


@pytest.mark.parametrize(("op", "args"), TAKEN)
def test_what_a_kernel_takes_is_taken_on_a_gpu_alone(op: str, args: tuple[Any, ...]) -> None:
    """A tensor on the CPU is refused, and so are two devices in one call."""
    predicate = getattr(predicates, op)
    assert predicate(*faked(args, "cuda:0")) is True
    assert predicate(*args) is predicates.NEEDS_GPU
    if sum(isinstance(arg, torch.Tensor) for arg in args) > 1:
        assert predicate(*faked(args, "cuda:0", "cuda:1")) is predicates.NEEDS_ONE_DEVICE
