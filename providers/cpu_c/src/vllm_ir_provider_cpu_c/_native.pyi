from collections.abc import Callable
from typing import Any

from torch import Tensor

def connect(
    table: object,
    tensor: type,
    parameter: type,
    empty_like: Callable[..., Tensor],
    new_empty_strided: Callable[..., Tensor],
    modes: Callable[[], int],
    transforms: Callable[[], bool],
    num_threads: Callable[[], int],
    is_neg: Callable[[Tensor], bool],
    block_bytes: int,
    /,
) -> None: ...
def takes_norm(x: Tensor, x_residual: Tensor | None, weight: Tensor | None, variance_size: int | None, /) -> bool: ...
def takes_gate(x: Tensor, /) -> bool: ...
def takes_rotary(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, rotary_dim: int, cos_sin_cache: Tensor, /
) -> bool: ...
def takes_norm_rope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    /,
) -> bool: ...
def fused_qk_norm_rope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
    donated: bool,
    /,
) -> tuple[Tensor, Tensor]: ...
def try_fused_qk_norm_rope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
    donated: bool,
    /,
) -> tuple[Tensor, Tensor] | None: ...
def takes_quant(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    source: int,
    scaling: int,
    quantized: int,
    group_size: int,
    /,
) -> bool: ...
def quant(*arguments: object) -> Any: ...
def try_quant(*arguments: object) -> Any: ...
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None, /) -> Tensor: ...
def fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
    donated: bool,
    /,
) -> tuple[Tensor, Tensor]: ...
def gate(x: Tensor, activation: int, /) -> Tensor: ...
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
    donated: bool,
    /,
) -> tuple[Tensor, Tensor]: ...
def try_rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None, /) -> Tensor | None: ...
def try_fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
    donated: bool,
    /,
) -> tuple[Tensor, Tensor] | None: ...
def try_gate(x: Tensor, activation: int, /) -> Tensor | None: ...
def try_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
    donated: bool,
    /,
) -> tuple[Tensor, Tensor] | None: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def use_isa(name: str, /) -> None: ...
def openmp() -> bool: ...
