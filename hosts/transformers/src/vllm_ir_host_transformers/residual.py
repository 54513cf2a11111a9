"""The residual add and the norm behind it: decoder layers that have the two in a row run `fused_add_rms_norm`.

The shape is looked for in the layer's source, not in its name:

    h = residual + <anything>
    residual = h
    h = self.<norm>(h)
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules.module import _has_any_global_hook
from vllm_ir import Unsupported, ops

from vllm_ir_host_transformers import donation, norms
from vllm_ir_host_transformers.edits import Edit, reading_of
from vllm_ir_host_transformers.instance import hooked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from vllm_ir_host_transformers.norms import Flavour

EXACT: Final = frozenset({torch.float32})
"""Where the sum is not rounded, the variance of the rounded and of the unrounded sum are the same."""

FUSED: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""What the op may be given when its own rounding is wanted; it adds in float32, so float64 is not among them."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """One add and norm in the forward of a layer.

    Attributes:
        at: the position of the first of its three statements.
        hidden: the name of the hidden states.
        residual: the name of the residual.
        norm: the attribute that holds the norm.
    """

    at: int
    hidden: str
    residual: str
    norm: str


def is_layer(module: nn.Module) -> bool:
    """Tell whether a module looks like a decoder layer: norms beside something that attends or mixes."""
    name = type(module).__name__
    return "Layer" in name or "Block" in name


def rounds(layer: nn.Module, *, always: bool) -> Unsupported | None:
    """Return why the adds of a layer must not be fused: the dtype in which the op would round otherwise, or none."""
    dtypes = FUSED if always else EXACT
    odd = {str(p.dtype) for p in layer.parameters() if p.is_floating_point() and p.dtype not in dtypes}
    if not odd:
        return None
    hint = "" if always else '; fuse_residual="always" fuses nevertheless'
    return Unsupported(
        f"in {min(odd).removeprefix('torch.')} the fused op takes the variance of the sum before it is rounded, and the"
        f" model after, which may change an answer{hint}"
    )


def fusions(module: nn.Module) -> tuple[Fusion, ...] | Unsupported:
    """Return the adds and norms of a layer's forward, in order."""
    reading = reading_of(type(module).forward)
    if isinstance(reading, Unsupported):
        return reading
    body = reading.tree.body
    found = (_fusion(body, at) for at in range(len(body) - 2))
    return tuple(fusion for fusion in found if fusion is not None)


def edit(module: nn.Module, flavours: Mapping[str, Flavour], *, always: bool) -> Edit:
    """Return the edit that fuses the adds of a layer with these norms.

    Args:
        module: the layer.
        flavours: the flavour of each norm to fuse, by the attribute that holds it.
        always: fuse below float32 too, where the op rounds otherwise than the layer does.
    """
    key = tuple(sorted(flavours.items(), key=lambda item: item[0]))
    return _edit(type(module).forward, key, always)


@lru_cache(maxsize=256)
def _edit(forward: Any, flavours: tuple[tuple[str, Flavour], ...], always: bool) -> Edit:
    """Return the edit for one forward; modules of one class share it."""
    names: dict[str, Any] = {"_ir_returns": donation.returns}
    for norm, flavour in flavours:
        names[f"_ir_add_{norm}"] = _add_norm(flavour, FUSED if always else EXACT, may_donate=donates(forward))
    wanted = {norm for norm, _ in flavours}
    return Edit(("residual", flavours, always), names, lambda tree: _rewrite(tree, wanted))


@lru_cache(maxsize=256)
def donates(forward: Any) -> bool:
    """Tell whether nothing in a layer's forward can use its residual or hidden states under another name."""
    reading = reading_of(forward)
    if isinstance(reading, Unsupported):
        return False
    body = reading.tree.body
    at = next((at for at in range(len(body) - 2) if _fusion(body, at)), None)
    if at is None:
        return False
    fusion = _fusion(body, at)
    kept = set()
    for statement in body[:at]:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not isinstance(statement, ast.Assign) or fusion is None:
            return False
        bound = {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        if ast.unparse(statement) != f"{fusion.residual} = {fusion.hidden}":
            kept |= bound - {fusion.hidden}
    read = {
        node.id
        for statement in body[at:]
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return not kept & read


def _add_norm(flavour: Flavour, dtypes: frozenset[torch.dtype], *, may_donate: bool) -> Callable[..., Any]:
    """Return what a rewritten layer calls for an add and the norm behind it."""
    own = norms.forward_of(flavour)

    def add_norm(layer: nn.Module, norm: nn.Module, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norm of the sum, and the sum; both [..., hidden_size]."""
        weight = norms.weight_of(norm)
        if (
            hidden_states.dtype in dtypes
            and hidden_states.dtype == residual.dtype
            and hidden_states.shape == residual.shape
            and flavour.takes(hidden_states.dtype, weight)
            and _unseen(norm, own)
        ):
            give = may_donate and donation.allowed(layer, residual)
            op = ops.fused_add_rms_norm.maybe_inplace if give else ops.fused_add_rms_norm
            result: tuple[Tensor, Tensor] = op(
                hidden_states, residual, flavour.scaled(weight), getattr(norm, flavour.epsilon)
            )
            return result
        total = residual + hidden_states
        return norm(total), total

    return add_norm


def _unseen(norm: nn.Module, own: object) -> bool:
    """Tell whether nobody would notice that a norm is not called."""
    if hooked(norm):
        return False
    if torch.compiler.is_compiling():
        return True
    return getattr(norm.forward, "__func__", None) is own and not _has_any_global_hook()


def _fusion(body: list[ast.stmt], at: int) -> Fusion | None:
    """Return the add and norm that start at a statement."""
    add, keep, norm = body[at : at + 3]
    if not (isinstance(add, ast.Assign) and isinstance(add.targets[0], ast.Name) and isinstance(keep, ast.Assign)):
        return None
    hidden = add.targets[0].id
    residual = keep.targets[0].id if isinstance(keep.targets[0], ast.Name) else ""
    if ast.unparse(keep) != f"{residual} = {hidden}" or _other_side(add.value, residual) is None:
        return None
    call = norm.value if isinstance(norm, ast.Assign) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return None
    attribute = call.func.attr
    if ast.unparse(norm) != f"{hidden} = self.{attribute}({hidden})":
        return None
    return Fusion(at, hidden, residual, attribute)


def _other_side(node: ast.expr, name: str) -> ast.expr | None:
    """Return what a name is added to, or None for another expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Name) and one.id == name:
                return other
    return None


def _rewrite(tree: ast.FunctionDef, wanted: set[str]) -> None:
    """Put calls in the place of the wanted adds and norms, and mark the tensor that the layer returns."""
    body = tree.body
    for at in reversed(range(len(body) - 2)):
        fusion = _fusion(body, at)
        if fusion is None or fusion.norm not in wanted:
            continue
        add = body[at]
        value = _other_side(add.value, fusion.residual) if isinstance(add, ast.Assign) else None
        operands = f"self, self.{fusion.norm}, _, {fusion.residual}"
        call = ast.parse(f"{fusion.hidden}, {fusion.residual} = _ir_add_{fusion.norm}({operands})").body[0]
        if isinstance(call, ast.Assign) and isinstance(call.value, ast.Call) and value is not None:
            call.value.args[2] = value
        for node in ast.walk(call):
            ast.copy_location(node, add)
        body[at : at + 3] = [call]
    _mark_return(body)


def _mark_return(body: list[ast.stmt]) -> None:
    """Note the returned tensor where a layer ends in `h = residual + <anything>; return h`."""
    add, back = body[-2:]
    if isinstance(add, ast.Assign) and isinstance(back, ast.Return) and isinstance(back.value, ast.Name):
        fresh = isinstance(add.value, ast.BinOp) and isinstance(add.value.op, ast.Add)
        if fresh and ast.unparse(add.targets[0]) == back.value.id:
            call = ast.Call(ast.Name("_ir_returns", ast.Load()), [ast.Name("self", ast.Load()), back.value], [])
            back.value = ast.copy_location(call, back.value)
