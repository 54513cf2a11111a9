"""Products of an activation in a syntax tree: what is taken, what is left, and what stands there afterwards."""

from __future__ import annotations

import ast

import pytest
from vllm_ir_host_transformers import products


def rewritten(body: str) -> str:
    """Return the body of a method after the rewrite."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    (tree,) = ast.parse(f"def forward(self, x):\n{indented}").body
    assert isinstance(tree, ast.FunctionDef)
    products.rewrite(tree, "act")
    return "\n".join(ast.unparse(statement) for statement in tree.body)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return self.act(g) * u", "return _ir_gated(self.act, g, u)"),
        ("return u * self.act(g)", "return _ir_gated_last(self.act, u, g)"),
        ("return f(self.act(self.a(x)) * self.b(x))", "return f(_ir_gated(self.act, self.a(x), self.b(x)))"),
        ("return self.act(g) * u * 2", "return _ir_gated(self.act, g, u) * 2"),
        ("a, b = p.chunk(2, dim=-1)\nb = b * self.act(a)\nreturn b", "b = _ir_gated_packed(self.act, p)\nreturn b"),
        (
            "a, b = f(x).chunk(2, dim=-1)\nc = self.act(a) * b\nreturn c",
            "c = _ir_gated_packed(self.act, f(x))\nreturn c",
        ),
    ],
)
def test_a_product_becomes_a_call(before: str, after: str) -> None:
    """The operands stay in their order."""
    assert rewritten(before) == after


@pytest.mark.parametrize(
    "body",
    [
        "return self.act(g) + u",
        "return self.act(g, 2) * u",
        "return self.act(g, dim=1) * u",
        "return other.act(g) * u",
        "return self.other(g) * u",
        "return self.act * u",
    ],
)
def test_anything_else_stays(body: str) -> None:
    """Another operator, other arguments, another object."""
    assert rewritten(body) == body


@pytest.mark.parametrize(
    "body",
    [
        "a, b = p.chunk(2, dim=-1)\nc = self.act(a) * b\nreturn c + a",
        "a, b = p.chunk(2, dim=-1)\nc = self.act(a) * b\nreturn c + b",
        "a, b = p.chunk(2, dim=1)\nc = self.act(a) * b\nreturn c",
        "a, b = p.chunk(2, dim=-1)\nc = self.act(b) * b\nreturn c",
        "a, b, d = p.chunk(2, dim=-1)\nc = self.act(a) * b\nreturn c",
        "a, b = p.chunk(2, dim=-1)\nx = 1\nc = self.act(a) * b\nreturn c",
    ],
)
def test_halves_that_live_on_are_still_cut(body: str) -> None:
    """The cut goes only when both halves are needed for nothing but the product."""
    assert ".chunk(" in rewritten(body)


def test_the_products_of_a_tree_are_found() -> None:
    """Each product of the activation once, no other."""
    tree = ast.parse("self.act(a) * b + c * self.act(d) + a * b")
    assert [ast.unparse(node) for node in products.products(tree, "act")] == ["self.act(a) * b", "c * self.act(d)"]
