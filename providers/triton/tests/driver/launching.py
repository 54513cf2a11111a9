"""Launches through Triton's own launcher on a driver that runs nothing: what arrives there, and what it costs the host.

Run by `test_launching.py` in a process of its own, whose only argument is the stub; prints one JSON object.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import struct
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_provider_triton.variants import Launch

STREAM = 4711
FORMATS = {"i32": "i", "i64": "q", "fp32": "f"}
CALLS = 20_000


def pretend() -> None:
    """Make torch say that one GPU of compute capability 9.0 is there."""
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device = contextlib.nullcontext  # type: ignore[assignment,misc]
    torch._C._cuda_getCurrentRawStream = lambda *_: STREAM


def activate() -> None:
    """Make Triton launch by its driver for CUDA."""
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver

    made = CudaDriver()
    made.get_current_device = lambda: 0
    made.get_current_stream = lambda *_: STREAM
    made.get_device_capability = lambda *_: (9, 0)
    driver.set_active(made)


def launches() -> dict[str, Launch]:
    """Return a launch of every op."""
    from vllm_ir_provider_triton import geometry, head_norms, quantization, rotation
    from vllm_ir_provider_triton.variants import SILU

    x, out, weight = (torch.ones(3, 4096).bfloat16() for _ in range(3))
    query, positions, cache = torch.ones(3, 4096), torch.arange(3), torch.ones(8, 128)
    eight, scales = torch.ones(3, 4096).to(torch.float8_e4m3fn), torch.ones(3, 32)
    one = torch.ones(1)
    heads = (positions, query, query.clone(), cache[0], None, 1e-6, 128, 128, cache, (query, query.clone()), "sm_90")
    return {
        "rms_norm": geometry.norm("rms_norm", x, None, weight[0], 1e-6, None, out, None, "sm_90", fixed=True),
        "fused_add_rms_norm": geometry.norm("fused_add_rms_norm", x, out, None, 1e-5, 7, x, out, "sm_90", fixed=False),
        "silu_and_mul": geometry.gate(SILU, x, torch.ones(3, 2048).bfloat16(), "sm_90", fixed=False),
        "rotary_embedding": rotation.plan(
            positions, query, query.clone(), 128, 128, cache, (query, query.clone()), "sm_90", neox=True
        ),
        "static_quant_fp8": quantization.scaled(x, eight, one, "sm_90", gated=False),
        "dynamic_quant_fp8": quantization.scaled(
            x, eight, torch.ones(1, dtype=torch.int32), "sm_90", gated=False, scale_out=one, bound=scales
        ),
        "peak": quantization.peak(x, torch.ones(1, dtype=torch.int32), "sm_90", gated=False),
        "dynamic_group_quant_fp8": quantization.grouped(x, eight, scales, None, 128, "sm_90", gated=False),
        "silu_and_mul_dynamic_quant_fp8": quantization.grouped(
            x, eight[:, :2048].contiguous(), scales, one, None, "sm_90", gated=True
        ),
        "fused_add_rms_norm_dynamic_quant_fp8": quantization.norm(
            x, out, None, 1e-5, eight, out, scales, one, "sm_90", dynamic=True
        ),
        "fused_qk_norm_rope": head_norms.plans(*heads, neox=True)[0],
    }


def arrives(stub: Any, launch: Launch) -> list[str]:
    """Return what is wrong with what the driver got for a launch."""
    from vllm_ir_provider_triton import loading
    from vllm_ir_provider_triton.variants import NUMBERS

    kinds = NUMBERS[launch.variant.program]
    formats = ["Q"] * len(launch.addresses) + [FORMATS[kind] for kind in kinds]
    sizes = [struct.calcsize(each) for each in formats]
    stub.stub_expect(len(sizes), (ctypes.c_int * len(sizes))(*sizes))
    before = stub.stub_launches()
    loading.run(launch, torch.device("cuda", 0))
    got = struct.unpack("=" + "".join(formats), ctypes.string_at(stub.stub_seen(), sum(sizes)))
    wanted = struct.unpack(
        "=" + "".join(formats), struct.pack("=" + "".join(formats), *launch.addresses, *launch.numbers)
    )
    found = [] if got == wanted else [f"arguments {got}, wanted {wanted}"]
    shape = tuple((ctypes.c_uint * 6).from_address(stub.stub_shape()))
    if shape != (launch.blocks, 1, 1, 32 * launch.variant.warps, 1, 1):
        found.append(f"shape {shape}")
    if stub.stub_stream() != STREAM:
        found.append(f"stream {stub.stub_stream()}")
    if stub.stub_launches() != before + 1:
        found.append(f"{stub.stub_launches() - before} launches")
    return found


def microseconds(call: Callable[[], Any]) -> float:
    """Return what a call takes, the least of five times."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(CALLS // 5):
            call()
        best = min(best, (time.perf_counter() - start) / (CALLS // 5))
    return round(best * 1e6, 2)


def costs(stub: Any) -> dict[str, float]:
    """Return what parts of a call take, in microseconds."""
    from vllm_ir_provider_triton import compiling, geometry, kernels, loading

    del stub
    x, weight = torch.ones(3, 4096).bfloat16(), torch.ones(4096).bfloat16()
    out, device = torch.empty_like(x), SimpleNamespace(index=0)
    launch = launches()["rms_norm"]
    jitted = compiling.function("norm")
    names = jitted.arg_names[len(launch.addresses) + len(launch.numbers) :]
    constants = dict(zip(names, launch.variant.constants, strict=True))
    arguments = (*launch.tensors, *launch.numbers)
    loading.architecture = lambda *_: "sm_90"
    real = loading.run
    found = {
        "plan": microseconds(
            lambda: geometry.norm("rms_norm", x, None, weight, 1e-6, None, out, None, "sm_90", fixed=False)
        ),
        "launch": microseconds(lambda: real(launch, device)),  # type: ignore[arg-type]
        "launch by Triton's own jit": microseconds(
            lambda: jitted[launch.blocks,](*arguments, **constants, num_warps=launch.variant.warps)
        ),
    }
    loading.run = lambda launch, _: real(launch, device)  # type: ignore[arg-type,assignment]
    return {**found, "rms_norm": microseconds(lambda: kernels.rms_norm.impl_fn(x, weight, 1e-6))}


def main() -> None:
    """Print what is wrong with each launch, and what launching costs."""
    stub = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    for name in ("stub_seen", "stub_shape", "stub_stream"):
        getattr(stub, name).restype = ctypes.c_void_p
    stub.stub_launches.restype = ctypes.c_long
    pretend()
    activate()
    wrong = {op: arrives(stub, launch) for op, launch in launches().items()}
    print(json.dumps({"wrong": wrong, "costs": costs(stub) if "--costs" in sys.argv else {}}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
