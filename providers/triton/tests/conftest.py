"""What these tests need of a machine, decided in one place: `gpu` a GPU and Triton, `triton` Triton alone.

And launches that are carried out on a CPU, where native does what a kernel is asked.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_triton import configuration, loading, tuned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir_provider_triton.variants import Launch

sys.path.insert(0, str(Path(__file__).parent / "compiled"))

ACTIVATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.nn.functional.silu,
    torch.nn.functional.gelu,
    partial(torch.nn.functional.gelu, approximate="tanh"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "gpu: needs a GPU and what its provider launches with")
    config.addinivalue_line("markers", "triton: needs Triton, and no GPU")


def missing(marker: str) -> str | None:
    """Return why what a marker needs is not here, or None."""
    if find_spec("triton") is None:
        return "needs Triton: pip install 'vllm-ir-provider-triton[test]'"
    if marker == "gpu" and not torch.cuda.is_available():
        return f"needs a GPU; torch {torch.__version__} sees none"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say so."""
    here = Path(__file__).parent
    reasons = {marker: missing(marker) for marker in ("gpu", "triton")}
    for each in items:
        if here in each.path.parents:
            for marker, reason in reasons.items():
                if reason is not None and each.get_closest_marker(marker):
                    each.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Start every test from one seed."""
    torch.manual_seed(7)


def forget_tables() -> None:
    """Forget what tables said, and the shapes that were chosen by them."""
    tuned.tables.cache_clear()
    configuration.forget()


@pytest.fixture(autouse=True)
def tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give every test a folder of tuned launches of its own, and forget what it found there.

    Shapes are chosen once a process: what one test tuned would be compiled by the next.
    """
    folder = tmp_path_factory.mktemp("tables")
    monkeypatch.setenv("VLLM_IR_CACHE", str(folder))
    forget_tables()
    yield folder
    # What a test has put in a chooser's place has nothing to forget.
    monkeypatch.undo()
    forget_tables()


BY_TOKEN = True


def run_native(op: str, *args: Any) -> Any:
    """Return what an op's native function gives."""
    return getattr(ops, op).impls["native"].impl_fn(*args)


def peak(launch: Launch) -> None:
    """Find the largest magnitude of a tensor."""
    x, largest = launch.tensors
    rows = run_native("silu_and_mul", x) if launch.variant.constants[0] else x
    largest.copy_(rows.float().abs().max().view(torch.int32))


def scaled(launch: Launch) -> None:
    """Quantise rows by a given scale, or by that of their largest magnitude."""
    x, out, scale, scale_out, bound = launch.tensors
    if launch.variant.constants[4]:
        op = "silu_and_mul_dynamic_quant_fp8" if launch.variant.constants[2] else "dynamic_quant_fp8"
        bounding = bound if launch.variant.constants[5] else None
        for room, result in zip((out, scale_out), run_native(op, x, not BY_TOKEN, bounding, out.dtype), strict=True):
            room.copy_(result)
        return
    op = "silu_and_mul_static_quant_fp8" if launch.variant.constants[2] else "static_quant_fp8"
    out.copy_(run_native(op, x, scale, out.dtype))


def grouped(launch: Launch) -> None:
    """Quantise rows or groups by their largest."""
    x, out, scales, bound = launch.tensors
    _, _, gated, whole, bounded, power, *_ = launch.variant.constants
    before = "silu_and_mul_" if gated else ""
    if whole:
        quantised = run_native(f"{before}dynamic_quant_fp8", x, BY_TOKEN, bound if bounded else None, out.dtype)
    else:
        op = f"{before}group_quant_fp8" if gated else "dynamic_group_quant_fp8"
        quantised = run_native(op, x, launch.numbers[1], not BY_TOKEN, bool(power), out.dtype)
    out.copy_(quantised[0])
    scales.copy_(quantised[1])


def norm_quant(launch: Launch) -> None:
    """Normalise and quantise rows."""
    x, out, residual_out, residual, weight, scales, bound = launch.tensors
    _, _, fused, weighted, dynamic, bounded, *_ = launch.variant.constants
    activations = (x, residual) if fused else (x,)
    epsilon, given = launch.numbers[-1], weight if weighted else None
    before = "fused_add_rms_norm" if fused else "rms_norm"
    if dynamic:
        args = (*activations, given, epsilon, True, bound if bounded else None, out.dtype)
        results = run_native(f"{before}_dynamic_quant_fp8", *args)
        scales.copy_(results[1])
    else:
        results = run_native(f"{before}_static_quant_fp8", *activations, given, scales, epsilon, out.dtype)
    if fused:
        residual_out.copy_(results[-1])
    out.copy_(results[0] if fused or dynamic else results)


def qk_norm_rope(launch: Launch) -> None:
    """Normalise and turn heads."""
    query_out, key_out, query, key, cache, *weights, positions = launch.tensors
    neox, _, *weighted, _, _, _, _ = launch.variant.constants
    given = [weight if there else None for weight, there in zip(weights, weighted, strict=True)]
    sizes = (launch.numbers[5], 2 * launch.numbers[6])
    results = run_native(
        "fused_qk_norm_rope", positions, query, key, *given, launch.numbers[-1], *sizes, cache, bool(neox)
    )
    query_out.copy_(results[0])
    key_out.copy_(results[1])


QUANTISING: dict[str, Callable[[Launch], None]] = {
    "peak": peak,
    "scaled": scaled,
    "grouped": grouped,
    "norm_quant": norm_quant,
    "qk_norm_rope": qk_norm_rope,
}


def carried_out(launch: Launch, device: torch.device) -> None:
    """Do what a launch would, by the ops' own functions, from its tensors and numbers."""
    assert device.type == "cpu"
    outs, native = launch.tensors, ops
    if launch.variant.program in QUANTISING:
        QUANTISING[launch.variant.program](launch)
    elif launch.variant.program == "gate":
        gates, ups = outs[1].chunk(2, dim=-1)
        outs[0].copy_(ACTIVATIONS[launch.variant.constants[0]](gates) * ups)
    elif launch.variant.program == "norm":
        out, residual_out, x, residual, weight = (each.clone() for each in launch.tensors)
        fused, weighted, *_ = launch.variant.constants
        given = (weight if weighted else None, launch.numbers[-1], launch.numbers[3])
        if fused:
            out, residual_out = native.fused_add_rms_norm.impls["native"].impl_fn(x, residual, *given)
            outs[1].copy_(residual_out)
        else:
            out = native.rms_norm.impls["native"].impl_fn(x, *given)
        outs[0].copy_(out)
    else:
        query, key, cache, positions = (each.clone() for each in outs[2:])
        sizes = (launch.numbers[5], 2 * launch.numbers[6])
        turned = native.rotary_embedding.impls["native"].impl_fn(
            positions, query, key, *sizes, cache, launch.variant.constants[0]
        )
        for out, result in zip(outs[:2], turned, strict=True):
            out.copy_(result)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Carry launches out on this CPU, and remember them."""
    seen: list[Launch] = []

    def run(launch: Launch, device: torch.device) -> None:
        """Remember a launch and carry it out."""
        seen.append(launch)
        carried_out(launch, device)

    monkeypatch.setattr(loading, "run", run)
    monkeypatch.setattr(loading, "architecture", lambda device: f"sm_9{device.index or 0}")
    return seen
