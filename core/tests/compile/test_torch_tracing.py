"""What torch is tracing, under every version: where a version keeps it elsewhere, it is put there."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir.compile import torch_tracing  # noqa: E402 - after the check for torch

TABLE: dict[Any, Any] = {torch.ops.aten.addmm.default: print}


class OldMode:
    """A mode that records a graph and has no table."""


@pytest.mark.parametrize("era", ["2.11", "2.12"])
def test_the_table_of_an_old_mode(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds for the process or for the context."""
    from torch.fx.experimental import proxy_tensor

    holder: Any = ContextVar("table")
    kept: Any = TABLE if era == "2.11" else holder
    monkeypatch.setattr(proxy_tensor, "CURRENT_DECOMPOSITION_TABLE", kept, raising=False)
    if era == "2.12":
        assert torch_tracing.table_of(OldMode()) == {}
        holder.set(TABLE)
    assert torch_tracing.table_of(OldMode()) is TABLE


def test_the_table_of_the_mode_that_records() -> None:
    """Whatever torch is installed, what it is told to take apart is found while it records."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    found: list[Any] = []

    def model(x: Any) -> Any:
        """Look at the table from inside."""
        found.append(torch_tracing.table_of(get_proxy_mode()))
        return x + 1

    make_fx(model, decomposition_table=TABLE)(torch.ones(1))
    assert torch.ops.aten.addmm.default in found[0]
    assert torch.ops.aten.mul.Tensor not in found[0]


def test_outside_of_a_compilation_nothing_is_traced() -> None:
    """There is no graph, and Inductor has not taken one over."""
    assert torch_tracing.tracing_context() is None
    assert not torch_tracing.inside_inductor()


def test_without_modes_tensors_are_real() -> None:
    """What is made inside is no part of a graph that is traced around it."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        assert isinstance(torch.ones(1), FakeTensor)
        with torch_tracing.no_modes():
            assert type(torch.ones(1)) is torch.Tensor
        assert isinstance(torch.ones(1), FakeTensor)
