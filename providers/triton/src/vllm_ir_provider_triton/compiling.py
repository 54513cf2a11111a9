"""From a variant to a compiled kernel, by Triton, for the current device or for any target without one.

Where kernels are kept on disk is Triton's own business; who loads them is `loading`'s.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from vllm_ir_provider_triton.variants import ACCESS, ALIGNED, NUMBERS, POINTERS, SIZES, TYPES, Variant

# Contraction would round a * b + c once where native rounds twice, and subnormal numbers count.
OPTIONS: Final = {"num_stages": 1, "enable_fp_fusion": False, "enable_reflect_ftz": False}


def function(program: str) -> Any:
    """Return the function of a program; this imports Triton."""
    return getattr(import_module(f"vllm_ir_provider_triton.programs.{program}"), program)


def version() -> str:
    """Return the version of Triton."""
    found: str = import_module("triton").__version__
    return found


def source(variant: Variant) -> Any:
    """Return what Triton's compiler takes: the function, types, constants, and what is a multiple of what."""
    from triton.compiler import ASTSource

    jitted = function(variant.program)
    names = jitted.arg_names
    pointers = len(variant.dtypes)
    types = (*(f"*{TYPES[dtype]}" for dtype in variant.dtypes), *NUMBERS[variant.program])
    signature = dict(zip(names, (*types, *("constexpr",) * len(variant.constants)), strict=True))
    constants = {(len(types) + i,): value for i, value in enumerate(variant.constants)}
    multiples: dict[int, int] = {}
    if variant.wide:
        number = ACCESS // SIZES[variant.dtypes[0]]
        multiples = dict.fromkeys(range(POINTERS[variant.program]), ACCESS)
        multiples |= dict.fromkeys(range(pointers, pointers + ALIGNED[variant.program]), number)
    attributes = {(i,): [["tt.divisibility", value]] for i, value in multiples.items()}
    return ASTSource(jitted, signature, constants, attributes)


def compile_variant(variant: Variant, target: Any = None) -> Any:
    """Return a variant compiled for a target, Triton's `GPUTarget`; for the current device when None."""
    import triton

    return triton.compile(source(variant), target=target, options={**OPTIONS, "num_warps": variant.warps})
