"""A module that holds an op can be copied, pickled and saved, and holds the same op afterwards."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from vllm_ir.runtime import Runtime


class Block(torch.nn.Module):
    """A module that holds an op and a `maybe_inplace`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.norm: Any = ops.rms_norm
        self.fused: Any = ops.fused_add_rms_norm.maybe_inplace

    def forward(self, x: Tensor) -> Tensor:
        """Run both."""
        out, total = self.fused(x.clone(), x.clone(), self.weight, 1e-5)
        return self.norm(out, self.weight, 1e-5) + total  # type: ignore[no-any-return]


def saved(module: Block) -> Block:
    """Return what torch.load makes of what torch.save wrote."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded: Block = torch.load(file, weights_only=False)
    return loaded


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301 - of our own making
    "save": saved,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module(state: Runtime, way: str) -> None:
    """The copy holds the very ops, and gives the same results, compiled as well."""
    assert state is not None
    block = Block()
    made = WAYS[way](block)
    assert made.norm is ops.rms_norm
    assert made.fused is ops.fused_add_rms_norm.maybe_inplace
    x = torch.randn(2, 4)
    assert torch.equal(made(x), block(x))
    compiled: Any = torch.compile(made, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x))


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", ops.__all__)
def test_an_op(state: Runtime, way: str, name: str) -> None:
    """There is one op of a name in a process, and one `maybe_inplace` of it."""
    assert state is not None
    op = getattr(ops, name)
    assert WAYS[way](op) is op
    if op.allow_inplace:
        assert WAYS[way](op.maybe_inplace) is op.maybe_inplace
