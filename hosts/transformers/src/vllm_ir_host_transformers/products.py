"""Gated products in a forward's source: where `self.act(a) * b` stands, and calls of a helper in its place.

Whether a helper may stand in for a product is known in `activations`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def rewrite(tree: ast.FunctionDef, attribute: str) -> None:
    """Put a call in the place of every gated product."""
    _rewrite_packed(tree, attribute)
    _Products(attribute).visit(tree)


def products(tree: ast.AST, attribute: str) -> Iterator[ast.BinOp]:
    """Return every product of an activation and something else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (_activated(side, attribute) for side in (node.left, node.right))
            if any(side is not None for side in sides):
                yield node


def _activated(node: ast.expr, attribute: str) -> ast.expr | None:
    """Return what `self.<attribute>(...)` is applied to, or None for another expression."""
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == f"self.{attribute}"
        and len(node.args) == 1
        and not node.keywords
    ):
        return node.args[0]
    return None


class _Products(ast.NodeTransformer):
    """Turns `self.act(a) * b` and `b * self.act(a)` into calls that evaluate a and b in the same order."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Return the call for a gated product, and any other operation as it is."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        gate = _activated(node.left, self._attribute)
        if gate is not None:
            return ast.copy_location(_call("_ir_gated", self._attribute, gate, node.right), node)
        gate = _activated(node.right, self._attribute)
        if gate is not None:
            return ast.copy_location(_call("_ir_gated_last", self._attribute, node.left, gate), node)
        return node


def _rewrite_packed(tree: ast.FunctionDef, attribute: str) -> None:
    """Spare the copy where a forward cuts a packed projection in two only to multiply the halves again."""
    for at, pair in enumerate(zip(tree.body, tree.body[1:], strict=False)):
        cut, use = pair
        halves = _halves(cut)
        if halves is None or not isinstance(use, ast.Assign) or not isinstance(use.value, ast.BinOp):
            continue
        gate, up, packed = halves
        wanted = (f"self.{attribute}({gate}) * {up}", f"{up} * self.{attribute}({gate})")
        if ast.unparse(use.value) not in wanted or _loaded(tree.body[at + 2 :], {gate, up} - _targets(use)):
            continue
        use.value = ast.copy_location(_call("_ir_gated_packed", attribute, packed), use.value)
        del tree.body[at]
        return


def _halves(statement: ast.stmt) -> tuple[str, str, ast.expr] | None:
    """Return the names and the source of `a, b = packed.chunk(2, dim=-1)`."""
    if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)):
        return None
    names, call = [ast.unparse(name) for name in statement.targets[0].elts], statement.value
    if len(names) != len(("gate", "up")) or not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return None
    packed = call.func.value
    return (names[0], names[1], packed) if ast.unparse(call) == f"{ast.unparse(packed)}.chunk(2, dim=-1)" else None


def _targets(statement: ast.Assign) -> set[str]:
    """Return the names that a statement binds."""
    return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _loaded(body: list[ast.stmt], names: set[str]) -> bool:
    """Tell whether statements read one of these names."""
    return any(
        isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        for statement in body
        for node in ast.walk(statement)
    )


def _call(helper: str, attribute: str, *arguments: ast.expr) -> ast.Call:
    """Return a call of a helper with the activation and its operands."""
    activation = ast.Attribute(ast.Name("self", ast.Load()), attribute, ast.Load())
    return ast.Call(ast.Name(helper, ast.Load()), [activation, *arguments], [])
