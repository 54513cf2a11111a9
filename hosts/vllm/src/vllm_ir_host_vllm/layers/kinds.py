"""Which layers of vLLM there are to replace, where they are, and by which ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir_host_vllm.layers import forwards

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS: Final = ("forward_native", "forward_cuda", "forward_hip", "forward_xpu", "forward_cpu", "forward_oot")
"""The methods of a layer among which vLLM chooses by the platform and by `custom_ops`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A layer.

    Attributes:
        module: of vLLM, where the class is.
        name: of the class.
        ops: those that it runs on.
        make: returns what it runs in place of each of METHODS.
        static: whether that takes no layer.
        family: whether subclasses that compute as it does are replaced, too.
        otherwise: why answers may change when it is replaced, whoever runs the op; empty where they do not.
    """

    module: str
    name: str
    ops: tuple[str, ...]
    make: Callable[[forwards.Calls], Callable[..., Any]]
    static: bool = False
    family: bool = False
    otherwise: str = ""


NORMS: Final = "vllm.model_executor.layers.layernorm"
ACTIVATIONS: Final = "vllm.model_executor.layers.activation"
ROTARY: Final = "vllm.model_executor.layers.rotary_embedding"

KINDS: Final = (
    Kind(NORMS, "RMSNorm", ("rms_norm", "fused_add_rms_norm"), forwards.rms_norm),
    Kind(NORMS, "GemmaRMSNorm", ("rms_norm", "fused_add_rms_norm"), forwards.gemma_rms_norm),
    Kind(ACTIVATIONS, "SiluAndMul", ("silu_and_mul",), forwards.silu_and_mul, static=True),
    Kind(ACTIVATIONS, "GeluAndMul", ("gelu_and_mul",), forwards.gelu_and_mul),
    Kind(
        ROTARY,
        "RotaryEmbedding",
        ("rotary_embedding",),
        forwards.rotary_embedding,
        family=True,
        # On a CPU a sixth of the elements in bfloat16: it multiplies and adds without rounding in between.
        otherwise="vLLM's kernel rounds otherwise than its own native code",
    ),
)
"""In the order in which they are reported."""
