"""What a legal name is, for ops and providers, and when two names of distributions are one."""

from __future__ import annotations

import keyword
import re
from typing import Final

from vllm_ir.errors import BadName, ReservedName

NATIVE: Final = "native"
"""The provider of every op's native function."""

UNFUSED: Final = "unfused"
"""The provider of every fused op's parts: it runs them, and each selects for itself."""

RESERVED: Final = (NATIVE, UNFUSED)
"""Provider names that no distribution may take."""

RESERVED_PREFIX: Final = "_ir_"
"""Begins every name that generated code uses of its own; no parameter may begin so."""

TAKEN_BY_TORCH: Final = ("name", "_dir")
"""What a namespace of torch.ops calls its own attributes; an op of that name would take them away from it."""

TORCH_NAMESPACES: Final = frozenset(
    (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_quantized", "_test", "aten"),
        *("c10d", "c10d_functional", "debug_mode_ops", "debugprims", "export", "fsdp", "inductor", "inductor_prims"),
        *("mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "prim", "prims", "profiler", "quantization"),
        *("quantized", "quantized_decomposed", "rngprims", "sparse", "static_runtime", "streams", "symm_mem", "torch"),
    )
)
"""Where torch has ops of its own, read out of torch 2.13, with some that it defines when they are imported."""

TAKEN_BY_TORCH_OPS: Final = frozenset(("_dir", "higher_order", "import_module", "load_library", "loaded_libraries"))
"""What torch.ops itself has for attributes that are no namespace for ops; those between underscores come to them."""

OUR_NAMESPACES: Final = frozenset(("vllm_ir", "vllm_ir_core", "vllm_ir_native"))
"""Where vllm-ir has its ops."""

TAKEN_BY_OPS: Final = (
    *("activation", "annotations", "checks", "fused_activation", "fused_quantization", "fused_rotary", "layernorm"),
    *("quantization", "rotary", "runtime"),
)
"""What `vllm_ir.ops` calls its own modules and imports; an op of that name could not be found there."""

_LEGAL: Final = re.compile(r"[a-z_][a-z0-9_]*")


def check_name(name: object, kind: str) -> str:
    """Return the name if it is legal.

    Args:
        name: the name to check.
        kind: what it names, for the sentence: "Op" or "Provider".

    Raises:
        BadName: it is no text of lower-case letters, digits and underscores that starts without a digit, or
            a keyword of Python.
    """
    if not isinstance(name, str) or not _LEGAL.fullmatch(name):
        raise BadName(kind=kind, name=str(name))
    if keyword.iskeyword(name):
        raise BadName(kind=kind, name=name, reason="it is a keyword of Python")
    return name


def check_torch_namespace(name: object) -> str:
    """Return the name if torch ops of a provider may have it for their namespace.

    Raises:
        BadName: it is not legal, or torch.ops, torch or vllm-ir uses it.
    """
    legal = check_name(name, "Torch namespace")
    reason = None
    if legal in TAKEN_BY_TORCH_OPS or legal.startswith("__"):
        reason = "torch.ops has an attribute of that name"
    elif legal in TORCH_NAMESPACES or legal in OUR_NAMESPACES:
        reason = f"{'vllm-ir' if legal in OUR_NAMESPACES else 'torch'} has ops of its own there; choose another"
    if reason is not None:
        raise BadName(kind="Torch namespace", name=legal, reason=reason)
    return legal


def normalise(name: str) -> str:
    """Return a distribution's name as installers compare it: lower case, one hyphen for any run of `-_.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_new_op_name(name: object) -> str:
    """Return the name if an op may be called so.

    Raises:
        BadName: it is not legal, or an attribute of `vllm_ir.ops` or of every torch namespace has it.
    """
    legal = check_name(name, "Op")
    if legal in TAKEN_BY_OPS:
        reason = "vllm_ir.ops has an attribute of that name, which would hide the op"
        raise BadName(kind="Op", name=legal, reason=reason)
    if legal in TAKEN_BY_TORCH or legal.startswith("__"):
        raise BadName(kind="Op", name=legal, reason="every namespace of torch.ops has an attribute of that name")
    return legal


def check_provider_name(name: object) -> str:
    """Return the name if a distribution may call a provider so.

    Raises:
        BadName: it is not legal.
        ReservedName: vllm-ir keeps it for itself.
    """
    legal = check_name(name, "Provider")
    if legal in RESERVED:
        raise ReservedName(name=legal, reserved=RESERVED)
    return legal
