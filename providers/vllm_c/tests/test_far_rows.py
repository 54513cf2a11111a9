"""Rows 2**31 elements and more apart: every offset is of 64 bits, of what is read and of what is written.

The memory is a sparse map, of which only the rows that are touched exist. It goes on before the rows, too, so that an
offset cut to 32 bits reads and writes elsewhere in it: a wrong result, no crash. Of a grid with that many rows the last
block alone is run.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_vllm_c import calls, geometry, loading, quant_calls, quantization, rotation
from vllm_ir_provider_vllm_c.quantization import FOUND, Scaling
from vllm_ir_provider_vllm_c.variants import ARGUMENTS, Program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    Native = Callable[..., Any]

FAR = 2**31 + 64
SIZE = 64
ROWS = FAR // SIZE + 4
"""So many rows of that size that the last ones begin beyond 2**31 elements."""

BEFORE, ALL = 4 * FAR, 10 * FAR
EPSILON = 1e-6
NEOX = True
PER_TOKEN, COLUMN_MAJOR, UE8M0 = True, True, True
DTYPE = torch.bfloat16
PROGRAMS = tuple(Program(source, "bfloat16") for source in ARGUMENTS)
FAULTS = {
    "norm.cu": (
        ("(a.out) + row * a.size", "(a.out) + static_cast<int>(row) * a.size"),
        ("(a.residual_out) + row * a.size", "(a.residual_out) + static_cast<int>(row) * a.size"),
    ),
    "gate.cu": (("(a.out) + row * a.size", "(a.out) + static_cast<int>(row) * a.size"),),
    "rows.h": (
        ("return row * stride0;", "return static_cast<int>(row * stride0);"),
        ("outer / size1 * stride0", "static_cast<int>(outer / size1 * stride0)"),
        ("outer % size1 * stride1", "static_cast<int>(outer % size1 * stride1)"),
        ("row % size2 * stride2", "static_cast<int>(row % size2 * stride2)"),
    ),
    "rotary.cu": (
        ("offset = position * a.cache_stride", "offset = static_cast<int>(position * a.cache_stride)"),
        (
            "from + head * h.from_stride, to + head",
            "from + static_cast<int>(head * h.from_stride), to + head",
        ),
    ),
    "quant.cu": (
        ("(a.out) + row * a.size", "(a.out) + static_cast<int>(row) * a.size"),
        ("a.scaling.scale[row]", "a.scaling.scale[static_cast<int>(row)]"),
        ("row * a.row_step + group * a.group_step", "static_cast<int>(row * a.row_step + group * a.group_step)"),
    ),
    "norm_quant.cu": (
        ("(a.out) + row * a.size", "(a.out) + static_cast<int>(row) * a.size"),
        ("(a.residual_out) + row * a.size", "(a.residual_out) + static_cast<int>(row) * a.size"),
        ("s.scale[row]", "s.scale[static_cast<int>(row)]"),
    ),
    "qk_norm_rope.cu": (
        ("(token) + head * h.from_stride", "(token) + static_cast<int>(head * h.from_stride)"),
        ("position * a.cache_stride)", "static_cast<int>(position * a.cache_stride))"),
    ),
}


@pytest.fixture
def memory() -> Tensor:
    """Give a map of bfloat16 zeros, most of which never exist."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python 3.10 does not name
    return torch.frombuffer(mmap.mmap(-1, ALL * DTYPE.itemsize, flags=flags), dtype=DTYPE)


def rows(memory: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], values: Tensor | None = None) -> Tensor:
    """Return a tensor in the map, filled with random numbers or given ones."""
    made = memory.as_strided(sizes, strides, BEFORE)
    made.copy_(torch.randn(sizes) if values is None else values)
    return made


def read(memory: Tensor, native: Native) -> dict[str, bool]:
    """Return for each way of reading far rows whether the result is native's."""
    near = torch.randn(2, SIZE).to(DTYPE)
    found = {}

    def compare(name: str, op: str, got: Any, *args: Any) -> None:
        """Compare one call with native's."""
        expected = native(op, *args)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else ((got, expected),)
        found[name] = all(torch.allclose(one.float(), other.float(), rtol=0.01) for one, other in pairs)

    x = rows(memory, (2, SIZE), (FAR, 1))
    norm, rotated = (None, EPSILON, None), (SIZE // 2, SIZE // 2)
    compare("norm", "rms_norm", calls.rms_norm(x, *norm), x, *norm)
    compare("residual", "fused_add_rms_norm", calls.fused_add_rms_norm(near, x, *norm, calls.KEPT), near, x, *norm)
    compare("gate", "silu_and_mul", calls.gate(x, calls.SILU), x)
    angles, tokens = torch.randn(4, SIZE // 2).to(DTYPE), torch.tensor([1, 3])
    turned = (tokens, x, near, *rotated, angles, True)
    compare("query", "rotary_embedding", calls.rotary_embedding(*turned, calls.KEPT), *turned)
    turned = (tokens, near, x.view(2, 2, SIZE // 2)[:, :1], *rotated, angles, True)
    compare("key", "rotary_embedding", calls.rotary_embedding(*turned, calls.KEPT), *turned)
    heads = rows(memory, (2, 2, SIZE // 2), (SIZE, FAR, 1))
    turned = (tokens, heads, near, *rotated, angles, True)
    compare("heads", "rotary_embedding", calls.rotary_embedding(*turned, calls.KEPT), *turned)
    cache = rows(memory, (2, SIZE // 2), (FAR, 1))
    turned = (torch.tensor([1, 0]), near, near.clone(), *rotated, cache, True)
    compare("angles", "rotary_embedding", calls.rotary_embedding(*turned, calls.KEPT), *turned)
    for number in range(3):
        strides = [SIZE * 3, SIZE * 7, SIZE * 17]
        strides[number] = FAR
        apart = rows(memory, (2, 2, 2, SIZE), (*strides, 1))
        compare(f"dimension {number}", "rms_norm", calls.rms_norm(apart, *norm), apart, *norm)
    return found


def written(memory: Tensor, native: Native, cpu: Any) -> dict[str, bool]:
    """Return for each output with far rows whether the last of them is native's, after the last block alone."""
    cpu.last, found, device = True, {}, torch.device("cpu")
    out = memory[BEFORE : BEFORE + ROWS * SIZE].view(ROWS, SIZE)
    near, residual, angles = torch.randn(1, SIZE), torch.randn(1, SIZE), torch.randn(4, SIZE // 2).to(DTYPE)
    x, y, g = (each.to(DTYPE).expand(ROWS, each.shape[-1]) for each in (near, residual, torch.randn(1, 2 * SIZE)))

    def compare(name: str, expected: Tensor) -> None:
        """Compare the last row and wipe it."""
        found[name] = torch.allclose(out[-1].float(), expected[-1].float(), rtol=0.01)
        out[-1] = 0

    loading.run(geometry.norm("rms_norm", x, None, None, EPSILON, None, out, None), device)
    compare("norm", native("rms_norm", x[-1:], None, EPSILON))
    normed, total = native("fused_add_rms_norm", x[-1:], y[-1:], None, EPSILON)
    second = memory[BEFORE + ROWS * SIZE :][: ROWS * SIZE].view(ROWS, SIZE)
    loading.run(geometry.norm("fused_add_rms_norm", x, y, None, EPSILON, None, out, second), device)
    compare("fused norm", normed)
    loading.run(geometry.norm("fused_add_rms_norm", x, y, None, EPSILON, None, second, out), device)
    compare("residual", total)
    loading.run(geometry.gate("SILU", g, out), device)
    compare("gate", native("silu_and_mul", g[-1:]))
    tokens = torch.tensor([3]).expand(ROWS)
    query, key = native("rotary_embedding", tokens[-1:], x[-1:], y[-1:], SIZE // 2, SIZE // 2, angles, NEOX)
    for name, outs, expected in (("query", (out, second), query), ("key", (second, out), key)):
        launch = rotation.plan(tokens, x, y, SIZE // 2, SIZE // 2, angles, outs, neox=True)
        loading.run(launch, device)
        compare(name, expected)
    return found


def quant_read(memory: Tensor, native: Native) -> dict[str, bool]:
    """Return for each way of quantising far rows, or of normalising far heads, whether the result is native's."""
    near, scale, dtype = torch.randn(2, SIZE).to(DTYPE), torch.tensor([0.02]), torch.float8_e4m3fn
    found = {}

    def compare(name: str, op: str, got: Any, *args: Any) -> None:
        """Compare one call with native's."""
        expected = native(op, *args)
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else ((got, expected),)
        found[name] = all(torch.allclose(one.float(), other.float(), rtol=0.13) for one, other in pairs)

    x = rows(memory, (2, SIZE), (FAR, 1))
    compare("static", "static_quant_fp8", quant_calls.static(x, scale, dtype), x, scale, dtype)
    compare("rows", "dynamic_quant_fp8", quant_calls.dynamic(x, PER_TOKEN, None, dtype), x, PER_TOKEN, None, dtype)
    flags = (not COLUMN_MAJOR, not UE8M0, dtype)
    compare("groups", "dynamic_group_quant_fp8", quant_calls.groups(x, 16, *flags), x, 16, *flags)
    rest = (None, EPSILON, PER_TOKEN, None, dtype)
    got = quant_calls.fused_norm_dynamic(near, x, *rest, donated=False)
    compare("norm", "fused_add_rms_norm_dynamic_quant_fp8", got, near, x, *rest)
    heads = rows(memory, (2, 2, SIZE // 2), (SIZE, FAR, 1))
    cache = torch.randn(4, SIZE // 2).to(DTYPE)
    turned = (torch.tensor([1, 3]), heads, near, None, None, EPSILON, SIZE // 2, SIZE // 2, cache, NEOX)
    compare("heads", "fused_qk_norm_rope", calls.fused_qk_norm_rope(*turned, donated=False), *turned)
    cache = rows(memory, (2, SIZE // 2), (FAR, 1))
    turned = (torch.tensor([1, 0]), near, near.clone(), None, None, EPSILON, SIZE // 2, SIZE // 2, cache, NEOX)
    compare("angles", "fused_qk_norm_rope", calls.fused_qk_norm_rope(*turned, donated=False), *turned)
    return found


def quant_written(memory: Tensor, native: Native, cpu: Any) -> dict[str, bool]:
    """Return for each output of what quantises, and its scales, whether the last row is native's."""
    cpu.last, found, device, dtype = True, {}, torch.device("cpu"), torch.float8_e4m3fn
    floats = memory.view(torch.float32)[2 * FAR :]
    out = memory.view(torch.uint8)[4 * FAR :].view(dtype)
    row, given = torch.randn(1, SIZE).to(DTYPE), torch.tensor([0.02])
    x, many, one = row.expand(ROWS, SIZE), 2 * FAR // SIZE, row[:, :1].expand(FAR, 1)
    y = row.expand(many, SIZE)

    def compare(name: str, tensor: Tensor, expected: Tensor) -> None:
        """Compare the last row and wipe it."""
        found[name] = torch.allclose(tensor[-1].float(), expected[-1].float(), rtol=0.13)
        tensor[-1] = 0

    values, scales = out[: many * SIZE].view(many, SIZE), floats[:FAR].view(FAR, 1)
    loading.run(quantization.static(y, Scaling(dtype, given), values, gated=False), device)
    compare("static", values, native("static_quant_fp8", row, given, dtype))
    loading.run(quantization.rows(y, Scaling(dtype, scales, FOUND), values, gated=False), device)
    compare("rows", values, native("dynamic_quant_fp8", row, PER_TOKEN, None, dtype)[0])
    loading.run(quantization.rows(one, Scaling(dtype, scales, FOUND), out[:FAR].view(FAR, 1), gated=False), device)
    compare("scales of rows", scales, native("dynamic_quant_fp8", row[:, :1])[1])
    grouped = floats[: ROWS * SIZE].view(ROWS, SIZE)
    launch = quantization.groups(
        x,
        Scaling(dtype, grouped, FOUND),
        out[: ROWS * SIZE].view(ROWS, SIZE),
        1,
        gated=False,
        power_of_two=False,
        column_major=False,
    )
    loading.run(launch, device)
    compare("scales of groups", grouped, native("dynamic_group_quant_fp8", row, 1)[1])
    compare("groups", out[: ROWS * SIZE].view(ROWS, SIZE), native("dynamic_group_quant_fp8", row, 1)[0])
    normed, _ = native("rms_norm_dynamic_quant_fp8", row, None, EPSILON)
    loading.run(quantization.norm(y, None, None, EPSILON, Scaling(dtype, scales, FOUND), values, None), device)
    compare("norm", values, normed)
    launch = quantization.norm(one, None, None, EPSILON, Scaling(dtype, scales, FOUND), out[:FAR].view(FAR, 1), None)
    loading.run(launch, device)
    compare("scales of norms", scales, native("rms_norm_dynamic_quant_fp8", row[:, :1], None, EPSILON)[1])
    total = memory[BEFORE : BEFORE + ROWS * SIZE].view(ROWS, SIZE)
    eight = memory.view(torch.uint8)[2 * (BEFORE + ROWS * SIZE) :][: ROWS * SIZE].view(dtype).view(ROWS, SIZE)
    loading.run(quantization.norm(x, x, None, EPSILON, Scaling(dtype, given), eight, total), device)
    compare("sum", total, row + row)
    return found


def test_rows_far_apart_are_read_where_they_are(memory: Tensor, native: Native, cpu: Any) -> None:
    """Activations, residuals, heads and angles; each of the three leading dimensions."""
    del cpu
    found = read(memory, native)
    assert len(found) == 10
    assert [name for name, right in found.items() if not right] == []


def test_rows_far_from_the_first_are_written_where_they_belong(memory: Tensor, native: Native, cpu: Any) -> None:
    """Every output of every kernel."""
    found = written(memory, native, cpu)
    assert len(found) == 6
    assert [name for name, right in found.items() if not right] == []


def test_far_rows_are_quantised_where_they_are(memory: Tensor, native: Native, cpu: Any) -> None:
    """Every input of what quantises and of what normalises heads; then every output and every scale."""
    for found, count in ((quant_read(memory, native), 6), (quant_written(memory, native, cpu), 8)):
        assert len(found) == count
        assert [name for name, right in found.items() if not right] == []


def test_an_offset_of_32_bits_is_seen_in_each_of_them(
    harness: Any, cpu: Any, memory: Tensor, native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut where it is made, in the sources: none of the comparisons above passes then."""

    def change(name: str, text: str) -> str:
        """Cut every offset of one source."""
        for whole, cut in FAULTS.get(name, ()):
            assert whole in text, f"{name} has no {whole!r}"
            text = text.replace(whole, cut)
        return text

    library: Path = harness.build("plain 32-bit offsets", ("-O1", "-shared", "-fPIC"), PROGRAMS, change)
    faulty = type(cpu)(library)
    monkeypatch.setattr(loading, "run", faulty)
    assert [name for name, right in read(memory, native).items() if right] == []
    assert [name for name, right in written(memory, native, faulty).items() if right] == []
    faulty.last = False
    assert [name for name, right in quant_read(memory, native).items() if right] == []
    assert [name for name, right in quant_written(memory, native, faulty).items() if right] == []
