"""What is refused, in which words. Tensors are fakes here too: no predicate reads memory or a batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm_ir_provider_aiter import predicates
from vllm_ir_provider_aiter.predicates import at_once

if TYPE_CHECKING:
    from vllm_ir import Unsupported

X = torch.ones(4, 64, dtype=torch.bfloat16)
W = torch.ones(64, dtype=torch.bfloat16)
POSITIONS = torch.zeros(4, dtype=torch.int64)
CACHE = torch.ones(8, 16)


def wide(*sizes: int) -> torch.Tensor:
    """Return a bfloat16 tensor of ones."""
    return torch.ones(*sizes, dtype=torch.bfloat16)


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
    ("rms_norm", (X.float(), W.float(), 1e-6), predicates.NEEDS_DTYPE),
    ("rms_norm", (X, W, 1e-6, 32), predicates.NEEDS_WHOLE_ROWS),
    ("rms_norm", (torch.ones((), dtype=torch.float16), W, 1e-6), predicates.NEEDS_ROWS),
    ("rms_norm", (wide(2, 8193), wide(8193), 1e-6), predicates.NEEDS_ROWS),
    ("rms_norm", (wide(2, 0), wide(0), 1e-6), predicates.NEEDS_ROWS),
    ("rms_norm", (X, None, 1e-6), predicates.NEEDS_WEIGHT),
    ("rms_norm", (X, W.float(), 1e-6), predicates.NEEDS_WEIGHT_DTYPE),
    ("rms_norm", (X, W.half(), 1e-6), predicates.NEEDS_WEIGHT_DTYPE),
    ("rms_norm", (X, wide(63), 1e-6), predicates.NEEDS_WEIGHT_SHAPE),
    ("rms_norm", (X, wide(128)[::2], 1e-6), predicates.NEEDS_WEIGHT_SHAPE),
    ("rms_norm", (wide(64, 4).T, W, 1e-6), predicates.NEEDS_FLAT),
    ("rms_norm", (wide(4, 128)[:, ::2], W, 1e-6), predicates.NEEDS_FLAT),
    ("rms_norm", (wide(2, 3, 128)[:, :, :64].transpose(0, 1), W, 1e-6), predicates.NEEDS_FLAT),
    ("rms_norm", (wide(2, 4, 64)[:, :3], W, 1e-6), predicates.NEEDS_FLAT),
    ("fused_add_rms_norm", (X, X.float(), W, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, X[0], W, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm", (X, wide(64, 4).T, W, 1e-6), predicates.NEEDS_FLAT),
    ("fused_add_rms_norm", (X, X, None, 1e-6), predicates.NEEDS_WEIGHT),
    ("silu_and_mul", (X.float(),), predicates.NEEDS_DTYPE),
    ("silu_and_mul", (wide(4, 7),), predicates.NEEDS_HALVES),
    ("silu_and_mul", (wide(4, 0),), predicates.NEEDS_HALVES),
    ("silu_and_mul", (wide(4, 128)[:, :64],), predicates.NEEDS_DENSE),
    ("silu_and_mul", (wide(64, 4).T,), predicates.NEEDS_DENSE),
    ("silu_and_mul", (wide(4, 2 * 129),), predicates.NEEDS_WHOLE_LOADS),
    ("silu_and_mul", (wide(4, 2 * 324),), predicates.NEEDS_WHOLE_LOADS),
    ("rotary_embedding", rotary(query=X.float()), predicates.NEEDS_DTYPE),
    ("rotary_embedding", rotary(key=X.half()), predicates.NEEDS_ONE_DTYPE),
    ("rotary_embedding", rotary(positions=POSITIONS.short()), predicates.NEEDS_POSITIONS),
    ("rotary_embedding", rotary(head_size=48), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=15), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=18), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(head_size=0, rotary_dim=0), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(cos_sin_cache=torch.ones(8, 8)), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(cos_sin_cache=torch.ones(8, 16, dtype=torch.int32)), predicates.NEEDS_CACHE),
    ("rotary_embedding", rotary(head_size=True), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(head_size="8"), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(head_size=None), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=True), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim="8"), predicates.NEEDS_HEADS),
    ("rotary_embedding", rotary(rotary_dim=None), predicates.NEEDS_HEADS),
]
TAKEN = [
    ("rms_norm", (X, W, 1e-6)),
    ("rms_norm", (X[0], W, 1e-6)),
    ("rms_norm", (wide(2, 3, 64), W, 1e-6)),
    ("rms_norm", (wide(0, 64), W, 1e-6)),
    ("rms_norm", (wide(4, 192)[:, 64:128], W, 1e-6)),
    ("rms_norm", (wide(2, 3, 192)[..., :64], W, 1e-6)),
    ("rms_norm", (wide(1, 64).expand(4, 64), W, 1e-6)),
    ("rms_norm", (wide(3, 7), wide(7), 1e-6)),
    ("rms_norm", (wide(2, 8192).half(), wide(8192).half(), 1e-6)),
    ("fused_add_rms_norm", (X, wide(4, 192)[:, 64:128], W, 1e-6)),
    ("silu_and_mul", (X,)),
    ("silu_and_mul", (wide(2, 3, 2 * 328),)),
    ("silu_and_mul", (wide(4, 2 * 127),)),
    ("rotary_embedding", rotary()),
    ("rotary_embedding", rotary(positions=POSITIONS.int(), query=X.view(4, 4, 16), key=wide(64, 4).T)),
]


def faked(args: tuple[Any, ...], *devices: str) -> tuple[Any, ...]:
    """Return arguments with fake tensors of the same layout, on the devices in turn; the last one serves the rest."""
    places = list(devices)
    with FakeTensorMode():
        return tuple(
            torch.empty_strided(
                each.shape, each.stride(), dtype=each.dtype, device=places.pop(0) if len(places) > 1 else places[0]
            )
            if isinstance(each, torch.Tensor)
            else each
            for each in args
        )


@pytest.mark.parametrize(("op", "args", "reason"), REFUSED)
def test_what_is_refused_and_why(op: str, args: tuple[Any, ...], reason: Unsupported) -> None:
    """Real tensors and fakes on a GPU get the same sentence."""
    assert getattr(predicates, op)(*args) is reason
    assert getattr(predicates, op)(*faked(args, "cuda")) is reason


@pytest.mark.parametrize(("op", "args"), TAKEN)
def test_what_is_taken(op: str, args: tuple[Any, ...]) -> None:
    """Real tensors and fakes on a GPU alike."""
    assert getattr(predicates, op)(*args) is True
    assert getattr(predicates, op)(*faked(args, "cuda")) is True


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("rms_norm", (X, W, 1e-6)),
        ("fused_add_rms_norm", (X, X, W, 1e-6)),
        ("rotary_embedding", rotary()),
    ],
)
def test_tensors_of_two_devices_are_refused(op: str, args: tuple[Any, ...]) -> None:
    """A kernel would read another GPU's address on its own."""
    assert getattr(predicates, op)(*faked(args, "cuda:0", "cuda:1")) is predicates.NEEDS_ONE_DEVICE


def test_a_residual_on_another_device_is_refused() -> None:
    """Also where x and the weight are on one."""
    x, residual, weight, epsilon = faked((X, X, W, 1e-6), "cuda:0", "cuda:1", "cuda:0")
    assert predicates.fused_add_rms_norm(x, residual, weight, epsilon) is predicates.NEEDS_ONE_DEVICE


@pytest.mark.parametrize("where", ["query", "key"])
def test_a_negated_head_is_refused(where: str) -> None:
    """Torch negates such a tensor when it reads it; AITER would not."""
    assert predicates.rotary_embedding(*rotary(**{where: torch._neg_view(X)})) is predicates.NEEDS_VALUES


def test_a_negated_row_or_weight_is_refused() -> None:
    """Of every op, and what is not negated is taken as before."""
    x, weight = torch._neg_view(X), torch._neg_view(W)
    assert predicates.rms_norm(x, W, 1e-6) is predicates.NEEDS_VALUES
    assert predicates.rms_norm(X, weight, 1e-6) is predicates.NEEDS_VALUES
    assert predicates.fused_add_rms_norm(X, x, W, 1e-6) is predicates.NEEDS_VALUES
    assert predicates.silu_and_mul(x) is predicates.NEEDS_VALUES
    assert predicates.silu_and_mul(x.resolve_neg()) is True


def test_every_refusal_is_reached() -> None:
    """A sentence that nothing leads to would be one that nobody has read."""
    sentences = {value for name, value in vars(predicates).items() if name.startswith("NEEDS_")}
    reached = {reason for *_, reason in REFUSED} | {predicates.NEEDS_ONE_DEVICE, predicates.NEEDS_VALUES}
    assert sentences == reached


@pytest.mark.parametrize(
    ("size", "loaded"),
    [(1, 1), (64, 1), (127, 1), (128, 2), (191, 2), (192, 4), (319, 4), (320, 8), (4096, 8), (14336, 8)],
)
def test_how_many_elements_are_loaded_at_once(size: int, loaded: int) -> None:
    """As AITER chooses it from the size of a half."""
    assert at_once(size) == loaded
