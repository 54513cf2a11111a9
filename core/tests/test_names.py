"""Legal names: what no op may be called, because it could not be found under that name."""

from __future__ import annotations

import pkgutil

import pytest

pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import names, ops
from vllm_ir.errors import BadName
from vllm_ir.op import IrOp


def test_whatever_would_hide_an_op_in_its_room_is_refused_as_a_name() -> None:
    """Each module of `vllm_ir.ops`, and whatever else it holds that is no op, is on the list, and nothing else is."""
    held = {*vars(ops), *(module.name for module in pkgutil.iter_modules(ops.__path__))}
    legal = {name for name in held if name == name.lower() and not name.startswith("__")}
    assert {name for name in legal if not isinstance(vars(ops).get(name), IrOp)} == set(names.TAKEN_BY_OPS)


@pytest.mark.parametrize("name", names.TAKEN_BY_OPS)
def test_the_reason_is_said(name: str) -> None:
    """Otherwise `ops.rotary` would be a module, and its author would look for a fault in the kernel."""
    with pytest.raises(BadName, match=f"Op name '{name}' is not legal: vllm_ir.ops has an attribute of that name"):
        names.check_new_op_name(name)
