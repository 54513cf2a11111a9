"""Launches that `vllm-ir bench --tune` may try for a call, and where the fastest are kept. Nothing else tries anything.

Blocks are not tried: they go by the size of a row, so that the order of a sum stays what it is.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm_ir_provider_triton import configuration, geometry, loading, tuned
from vllm_ir_provider_triton.configuration import Shape
from vllm_ir_provider_triton.variants import SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

POWERS: Final = (1, 2, 4, 8, 16, 32)
LEAST_A_LANE, MOST_A_LANE = 2, 64
"""Elements of a block that a lane has: with fewer it idles, with more its registers spill."""

KINDS: Final = {
    "rms_norm": "norm",
    "fused_add_rms_norm": "fused",
    "silu_and_mul": "gate",
    "gelu_and_mul": "gate",
    "rotary_embedding": "rotary",
    "fused_qk_norm_rope": "rotary",
    "static_quant_fp8": "scaled",
    "silu_and_mul_static_quant_fp8": "scaled",
    "dynamic_quant_fp8": "grouped",
    "dynamic_group_quant_fp8": "grouped",
    "silu_and_mul_dynamic_quant_fp8": "grouped",
    "silu_and_mul_group_quant_fp8": "grouped",
    "rms_norm_static_quant_fp8": "norm_quant",
    "rms_norm_dynamic_quant_fp8": "norm_quant",
    "fused_add_rms_norm_static_quant_fp8": "fused_quant",
    "fused_add_rms_norm_dynamic_quant_fp8": "fused_quant",
}
BY_FEW: Final = ("norm", "fused", "gate")
"""Kinds whose launch, where it is not fixed, depends on whether there are few rows."""


class Candidate(NamedTuple):
    """A launch that may be tried.

    Attributes:
        arch: the architecture that it is for.
        key: the entry of the table that it would be.
        rows: of a program.
        warps: of a program.
    """

    arch: str
    key: str
    rows: int
    warps: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.rows} {'row' if self.rows == 1 else 'rows'}, {self.warps} warps"


class Tuner:
    """What a provider offers to be tuned by, through the entry-point group `vllm_ir.tuners`.

    Args:
        fixed: whether launches go by the size of a row alone.
    """

    def __init__(self, *, fixed: bool) -> None:
        self.fixed = fixed

    def candidates(self, op: str, args: Sequence[Any]) -> tuple[Candidate, ...]:
        """Return the launches that may be tried for a call, first the one that it has now; none for other ops.

        Args:
            op: its name.
            args: of the call, by position, on a GPU.
        """
        kind = KINDS.get(op)
        if kind is None:
            return ()
        x = args[1] if kind == "rotary" else args[0]
        arch, number = loading.architecture(x.device), SIZES[geometry.dtype_name(x.dtype)]
        if kind == "rotary":
            head_size, rotary_dim = args[6:8] if op == "fused_qk_norm_rope" else args[3:5]
            pairs, heads = rotary_dim // 2, max(1, *(each.shape[-1] // head_size for each in args[1:3]))
            now = configuration.choose_heads(arch, pairs, heads, number)
            key, size = tuned.key(kind, now.block, number, few=False), now.block
        else:
            size = args[1] if "group_quant" in op else x.shape[-1] // (2 if "_and_mul" in op else 1)
            few = kind in BY_FEW and not self.fixed and x.numel() // max(x.shape[-1], 1) <= configuration.FEW
            now = configuration.choose(kind, arch, size, number, few=few)
            key = tuned.key(kind, configuration.size_class(size), number, few=few)
        lanes = configuration.machine(arch).lanes
        shapes = [
            shape
            for rows in POWERS
            for warps in POWERS
            if configuration.fits(shape := Shape(rows, now.block, warps), arch, size)
            and LEAST_A_LANE <= rows * now.block // (warps * lanes) <= MOST_A_LANE
        ]
        ordered = dict.fromkeys([now, *shapes])
        return tuple(Candidate(arch, key, shape.rows, shape.warps) for shape in ordered)

    @contextlib.contextmanager
    def using(self, candidate: Candidate) -> Iterator[None]:
        """Launch so while the context is open, in this process; for no concurrent use."""
        entries = tuned.tables().setdefault(candidate.arch, {})
        before = entries.get(candidate.key)
        entries[candidate.key] = (candidate.rows, candidate.warps)
        configuration.forget()
        try:
            yield
        finally:
            del entries[candidate.key]
            if before is not None:
                entries[candidate.key] = before
            configuration.forget()

    def keep(self, chosen: Sequence[Candidate], path: Path | None = None) -> Path:
        """Write launches to this machine's table, or to a file that may become one elsewhere, and return where.

        Raises:
            OSError: it cannot be written.
            ValueError: what is there is no table, and is left alone.
        """
        place = tuned.file() if path is None else path
        for arch in dict.fromkeys(each.arch for each in chosen):
            entries = {each.key: (each.rows, each.warps) for each in chosen if each.arch == arch}
            tuned.write(place, arch, entries)
        configuration.forget()
        return place


FREE: Final = Tuner(fixed=False)
FIXED: Final = Tuner(fixed=True)
