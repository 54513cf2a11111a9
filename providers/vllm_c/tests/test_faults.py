"""Faults put into the sources on purpose: each is caught, so that silence about the real sources means something.

Schedules tell by results, ThreadSanitizer and AddressSanitizer by reports. The unchanged sources pass everything here.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_vllm_c import calls, geometry, loading, quant_calls, quantization, rotation
from vllm_ir_provider_vllm_c.quantization import FOUND, GIVEN, MEASURED, Scaling
from vllm_ir_provider_vllm_c.variants import ARGUMENTS, Program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor
    from vllm_ir_provider_vllm_c.geometry import Launch

    Change = Callable[[str, str], str]

THREAD = ("-O1", "-fsanitize=thread")
ADDRESS = ("-O1", "-fsanitize=address,alignment", "-fno-sanitize-recover=alignment", "-fno-omit-frame-pointer")
SHARED = ("-O1", "-shared", "-fPIC")
NORM = (Program("norm", "float32"),)
QUANT = (Program("quant", "float32"),)
FP8 = torch.float8_e4m3fn
EPSILON = 1e-6


def changed(file: str, old: str, new: str) -> Change:
    """Return a change that replaces a text which must be in one file, once."""

    def change(name: str, text: str) -> str:
        """Change the one file."""
        if name != file:
            return text
        assert text.count(old) == 1, f"{file} has {text.count(old)} of {old!r}"
        return text.replace(old, new)

    return change


def two_sums(between: str) -> Change:
    """Return a change that sums twice through the same shared memory; right only with a barrier between."""
    return changed(
        "norm.cu",
        "const float total = row_sum(sum);",
        f"const float twice = row_sum(2.0f * sum);\n  {between}\n  const float total = twice - row_sum(sum);",
    )


FAULTS = {
    "missing barrier": changed("sum.h", "  __syncthreads();\n", ""),
    "write after read": two_sums(""),
    "divergent barrier": changed("sum.h", "  __syncthreads();\n", "  if (threadIdx.x < 40) __syncthreads();\n"),
    "overrun": changed("norm.cu", "if (pack >= packs) break;", "if (pack > packs) break;"),
    "misaligned": changed("norm.cu", "source.read(pack, kept[k])", "source.x++, source.read(pack, kept[k])"),
    "overrun of a group": changed(
        "quant.cu", "const int step = blockDim.x * N;", "const int step = blockDim.x * N - 1;"
    ),
}

WRONG_NUMBERS = {
    "a row divided by its scale": changed(
        "fp8.h", "__fmul_rn(Number<T>::widen(pack.at[i]), inverse)", "Number<T>::widen(pack.at[i]) / (1.0f / inverse)"
    ),
    "a group multiplied by the inverse of its scale": changed(
        "fp8.h", "__fdiv_rn(Number<T>::widen(pack.at[i]), scale)", "Number<T>::widen(pack.at[i]) * __frcp_rn(scale)"
    ),
    "a scale by the inverse of the limit": changed("fp8.h", "__fdiv_rn(most, s.limit)", "most * __frcp_rn(s.limit)"),
    "a maximum that drops NaN": changed(
        "fp8.h",
        "Most::both(most, i < left ? bits : 0u)",
        "Most::both(most, i < left && bits <= 0x7f800000u ? bits : 0u)",
    ),
    "a power of two that is doubled": changed("fp8.h", "+ 0x7fffffu)", "+ 0x800000u)"),
    "an infinity instead of the limit": changed("fp8.h", "__NV_SATFINITE", "__NV_NOSAT"),
    "neighbours left out of a group": changed("sum.h", "distance = lanes >> 1;", "distance = lanes >> 2;"),
    "a bound that is left out": changed("fp8.h", "if (bound < most ||", "if ("),
}
"""Faults that are no race and no wrong access: results alone tell."""


def job(launch: Launch, tensors: tuple[Tensor, ...]) -> bytes:
    """Return a launch with the memory of its tensors, as the harness reads it from a file."""
    stores = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    buffers = [(address, bytes(store.tolist())) for address, store in stores.items()]
    parts = [struct.pack("=Q", len(buffers))]
    parts += [struct.pack("=Q", len(content)) + content for _, content in buffers]
    name = launch.expression.encode()
    parts += [struct.pack("=Q", len(name)), name, struct.pack("=QQQ", launch.blocks, *launch.threads)]
    parts += [struct.pack("=Q", len(launch.arguments)), launch.arguments]
    found = []
    for at in range(0, len(launch.arguments) - 7, 8):
        (value,) = struct.unpack_from("=Q", launch.arguments, at)
        for i, (address, content) in enumerate(buffers):
            if address <= value < address + len(content):
                found.append(struct.pack("=QQQ", at, i, value - address))
    return b"".join([*parts, struct.pack("=Q", len(found)), *found])


def norms(size: int) -> list[tuple[Launch, tuple[Tensor, ...]]]:
    """Return launches of both norms over rows of a size, in place and into new tensors."""
    x, residual, weight, out = torch.randn(2, size), torch.randn(2, size), torch.randn(size), torch.empty(2, size)
    plain = geometry.norm("rms_norm", x, None, weight, EPSILON, None, out, None)
    fused = geometry.norm("fused_add_rms_norm", x, residual, weight, EPSILON, None, x, residual)
    return [(plain, (x, weight, out)), (fused, (x, residual, weight))]


def every_kernel(dtype: torch.dtype) -> list[tuple[Launch, tuple[Tensor, ...]]]:
    """Return launches that between them run every kernel of a dtype, one with each shape of block."""
    found: list[tuple[Launch, tuple[Tensor, ...]]] = []
    per_pack = 16 // dtype.itemsize
    for packs in (5, 60, 100, 300, 4100):
        for extra in (0, 1):
            size = packs * per_pack - extra
            x, residual, weight = (torch.randn(shape).to(dtype) for shape in ((1, size), (1, size), (size,)))
            wide, out = weight.float(), torch.empty_like(x)
            plain = geometry.norm("rms_norm", x, None, weight, EPSILON, size // 2, out, None)
            fused = geometry.norm("fused_add_rms_norm", x, residual, wide, EPSILON, None, x, residual)
            found += [(plain, (x, weight, out)), (fused, (x, residual, wide))]
            if packs < 300:
                gates, gated = torch.randn(1, 2 * size).to(dtype), torch.empty(1, size, dtype=dtype)
                found += [(geometry.gate(each, gates, gated), (gates, gated)) for each in ("SILU", "GELU", "GELU_TANH")]
    for neox in (True, False):
        for turned in (32, 20, 6):
            query, key, cache = (torch.randn(shape).to(dtype) for shape in ((3, 4 * 32), (3, 32), (9, turned)))
            positions, outs = torch.tensor([0, 8, 3]), (torch.empty_like(query), torch.empty_like(key))
            launch = rotation.plan(positions, query, key, 32, turned, cache, outs, neox=neox)
            found.append((launch, (positions, query, key, cache, *outs)))
            weights = torch.randn(32).to(dtype), torch.randn(32)
            norms = rotation.Norms(*weights, EPSILON)
            launch = rotation.plan(positions, query, key, 32, turned, cache, (query, key), neox=neox, norms=norms)
            found.append((launch, (positions, query, key, cache, *weights)))
    return found


def every_quantising_kernel(dtype: torch.dtype) -> list[tuple[Launch, tuple[Tensor, ...]]]:
    """Return launches that between them run every kernel that quantises a dtype, with each shape of block."""
    found: list[tuple[Launch, tuple[Tensor, ...]]] = []
    per_pack = 16 // dtype.itemsize
    given, bound = torch.tensor([0.02]), torch.tensor([1.5])
    for packs in (5, 60, 100, 300, 4100):
        # Rows out of line are never kept, whatever their size.
        for extra in (0, 1) if packs < 100 else (0,):
            size = packs * per_pack - extra
            x, residual, gates = (torch.randn(1, each).to(dtype) for each in (size, size, 2 * size))
            weight, channels = torch.randn(size).to(dtype), torch.rand(size) + 0.01
            out, scale = torch.empty(1, size, dtype=FP8), torch.empty(1, 1)
            for kind in (FOUND, MEASURED) if packs == 60 else (FOUND,):
                scaling = Scaling(FP8, scale, kind, bound)
                plain = quantization.norm(x, None, weight, EPSILON, scaling, out, None)
                fused = quantization.norm(x, residual, weight, EPSILON, scaling, out, residual)
                found += [(plain, (x, weight, scale, bound, out)), (fused, (x, residual, weight, scale, bound, out))]
            if packs in (60, 300):
                fused = quantization.norm(x, residual, None, EPSILON, Scaling(FP8, given, GIVEN), out, residual)
                found.append((fused, (x, residual, given, out)))
            for source, gated in ((x, False), (gates, True)):
                launch = quantization.rows(source, Scaling(FP8, scale, FOUND), out, gated=gated)
                found.append((launch, (source, scale, out)))
                if packs < 100:
                    scales = given if gated else channels
                    launch = quantization.static(source, Scaling(FP8, scales), out, gated=gated)
                    found.append((launch, (source, scales, out)))
                    for group_size in {size, *({size // 5} if size % 5 == 0 else ())}:
                        scales = torch.empty(1, size // group_size)
                        launch = quantization.groups(
                            source,
                            Scaling(FP8, scales, FOUND),
                            out,
                            group_size,
                            gated=gated,
                            power_of_two=True,
                            column_major=False,
                        )
                        found.append((launch, (source, scales, out)))
    magnitudes = torch.rand(2000)
    launch = quantization.tensor_scale(str(dtype)[6:], magnitudes, Scaling(FP8, given, FOUND, bound))
    return [*found, (launch, (magnitudes, bound, given))]


@pytest.fixture
def sanitized(tmp_path: Path) -> Callable[..., str]:
    """Give a function that runs launches under a sanitizer and returns what it reported, or an empty text."""

    def run(program: Path, launches: list[tuple[Launch, tuple[Tensor, ...]]]) -> str:
        """Run them in one process."""
        if shutil.which("setarch") is None:
            pytest.skip("setarch is not installed; ThreadSanitizer needs fixed addresses")
        file = tmp_path / "job"
        file.write_bytes(b"".join(job(*each) for each in launches))
        command = ["setarch", "-R", str(program), str(file), "0"]
        # The fibers' stacks live as long as the process.
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)
        return done.stderr if done.returncode else ""

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("flags", "name"), [(THREAD, "thread"), (ADDRESS, "address")])
def test_the_sources_are_clean(
    harness: Any, flags: tuple[str, ...], name: str, dtype: torch.dtype, sanitized: Callable[..., str]
) -> None:
    """No race, no access outside a buffer, none misaligned, in any kernel."""
    program = harness.build(name, flags)
    launches = every_kernel(dtype) + every_quantising_kernel(dtype)
    ran = {launch.expression for launch, _ in launches}
    missed = {each for source in ARGUMENTS for each in Program(source, str(dtype)[6:]).expressions} - ran
    assert missed == set()
    assert sanitized(program, launches) == ""


@pytest.mark.parametrize("fault", ["missing barrier", "write after read"])
def test_thread_sanitizer_reports_a_race(harness: Any, fault: str, sanitized: Callable[..., str]) -> None:
    """It names the line, under a single schedule."""
    program = harness.build(f"thread {fault}", THREAD, NORM, FAULTS[fault])
    for each in norms(4096):
        report = sanitized(program, [each])
        assert "data race" in report
        assert "sum.h:" in report


@pytest.mark.parametrize(
    ("fault", "words"), [("overrun", "heap-buffer-overflow"), ("misaligned", "misaligned address")]
)
def test_address_sanitizer_reports_a_wrong_access(
    harness: Any, fault: str, words: str, sanitized: Callable[..., str]
) -> None:
    """Past the end of a buffer, and 16 bytes at an address that is no multiple of 16."""
    change = FAULTS[fault]
    if fault == "misaligned":  # a const source cannot be moved

        def change(name: str, text: str) -> str:
            """Move the source's address by one element."""
            return FAULTS[fault](name, text).replace(
                "const Source<T, ALIGNED, FUSED> source", "Source<T, ALIGNED, FUSED> source"
            )

    program = harness.build(f"address {fault}", ADDRESS, NORM, change)
    for each in norms(1000):
        assert words in sanitized(program, [each])


def rows_and_groups(size: int) -> list[tuple[Launch, tuple[Tensor, ...]]]:
    """Return launches that quantise rows of a size, and groups of a row, of several packs for each thread."""
    x, out, scale = torch.randn(2, size), torch.empty(2, size, dtype=FP8), torch.empty(2, 1)
    scaling = Scaling(FP8, scale, FOUND)
    rows = quantization.rows(x, scaling, out, gated=False)
    groups = quantization.groups(x, scaling, out, size, gated=False, power_of_two=False, column_major=False)
    return [(rows, (x, scale, out)), (groups, (x, scale, out))]


def test_sanitizers_report_what_is_wrong_in_what_quantises(harness: Any, sanitized: Callable[..., str]) -> None:
    """A race for the largest magnitude, and numbers of a group that are read across two packs."""
    program = harness.build("thread missing barrier of quant", THREAD, QUANT, FAULTS["missing barrier"])
    rows, groups = rows_and_groups(4096)
    assert "data race" in sanitized(program, [rows])
    assert sanitized(program, [groups]) == ""
    program = harness.build("address overrun of a group", ADDRESS, QUANT, FAULTS["overrun of a group"])
    assert "misaligned address" in sanitized(program, [groups])


def quantised(native: Callable[..., Any] | None = None) -> list[Tensor]:
    """Return what quantising some rows comes to, by the kernels or by native; bits, with every NaN alike."""
    numbers = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    middles = torch.cat((numbers[1:] + numbers[:-1], 2.0 * numbers[-1:])).div(2.0)
    # Middles of two numbers once they are scaled: the last place of a quotient decides where they go.
    x = torch.cat((middles, -middles, middles.new_zeros(2))).expand(4, -1) * torch.tensor(
        [[0.37], [1.0], [0.013], [7.0]]
    )
    x[1, 7], x[2, 3], x[3, 5] = float("nan"), 900.0, 2.0**-20
    one, bound, flags = torch.tensor([0.37]), torch.tensor([1.7]), (False, True, torch.float8_e5m2)
    runs: tuple[tuple[str, Callable[..., Any], tuple[Any, ...]], ...] = (
        ("static_quant_fp8", quant_calls.static, (x, one, FP8)),
        ("dynamic_quant_fp8", quant_calls.dynamic, (x, True, None, FP8)),
        ("dynamic_quant_fp8", quant_calls.dynamic, (x, True, bound, FP8)),
        ("dynamic_quant_fp8", quant_calls.dynamic, (x[2:], False, None, torch.float8_e5m2)),
        ("dynamic_group_quant_fp8", quant_calls.groups, (x, 32, False, False, FP8)),
        ("dynamic_group_quant_fp8", quant_calls.groups, (x.sign(), 32, *flags)),
        ("dynamic_group_quant_fp8", quant_calls.groups, (448.0 * x.sign(), 32, False, True, FP8)),
    )
    found = []
    for op, run, args in runs:
        result = run(*args) if native is None else native(op, *args)
        found += [each.float().nan_to_num(nan=1e30) for each in (result if isinstance(result, tuple) else (result,))]
    return found


@pytest.mark.parametrize("fault", WRONG_NUMBERS)
def test_a_wrong_rounding_is_seen(
    harness: Any, cpu: Any, fault: str, native: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values or scales are no longer native's; those of the sources as they are, are."""
    expected = quantised(native)
    assert all(torch.equal(one, other) for one, other in zip(quantised(), expected, strict=True))
    library = harness.build(f"plain {fault}", SHARED, QUANT, WRONG_NUMBERS[fault])
    monkeypatch.setattr(loading, "run", type(cpu)(library))
    assert not all(torch.equal(one, other) for one, other in zip(quantised(), expected, strict=True))


def outcome(cpu: Any, x: Tensor) -> Tensor | str:
    """Return what a schedule makes of a call: a result, or why it stopped."""
    try:
        return calls.rms_norm(x, None, EPSILON, None)
    except RuntimeError as error:
        return f"schedule {cpu.order}: {error}"


def outcomes(library: Path, cpu_class: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor | str], Tensor]:
    """Return what each of the five schedules makes of one call, and last what native does."""
    cpu = cpu_class(library)
    monkeypatch.setattr(loading, "run", cpu)
    x = torch.randn(2, 4096)
    found: list[Tensor | str] = []
    for cpu.order in range(5):
        found.append(outcome(cpu, x))
    return found, torch.nn.functional.rms_norm(x, (4096,), eps=EPSILON)


@pytest.mark.parametrize("fault", ["missing barrier", "write after read", "divergent barrier"])
def test_some_schedule_shows_a_wrong_barrier(
    harness: Any, cpu: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least one of the five gives another result than native, or stops and says why."""
    library = harness.build(f"plain {fault}", SHARED, NORM, FAULTS[fault])
    found, expected = outcomes(library, type(cpu), monkeypatch)
    bad = [each for each in found if isinstance(each, str) or not torch.allclose(each, expected, rtol=1e-5)]
    assert bad
    if fault == "divergent barrier":
        assert len(bad) == 5
        assert all("not reached by every thread" in str(each) or "divergent barrier" in str(each) for each in bad)


def test_the_same_change_with_its_barrier_is_right(
    harness: Any, cpu: Any, monkeypatch: pytest.MonkeyPatch, sanitized: Callable[..., str]
) -> None:
    """What catches the fault is the missing barrier, not the change around it."""
    library = harness.build("plain two sums", SHARED, NORM, two_sums("__syncthreads();"))
    found, expected = outcomes(library, type(cpu), monkeypatch)
    assert not [each for each in found if isinstance(each, str) or not torch.allclose(each, expected, rtol=1e-5)]
    program = harness.build("thread two sums", THREAD, NORM, two_sums("__syncthreads();"))
    assert sanitized(program, norms(4096)) == ""
