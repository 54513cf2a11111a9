"""Which dimensions grow with the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from vllm_ir import ops, register_op
from vllm_ir_testkit import batch
from vllm_ir_testkit.batch import BatchDim

if TYPE_CHECKING:
    from vllm_ir_testkit import TestManager


def test_the_cores_ops() -> None:
    """Activations and positions grow, weights and tables do not."""
    assert [(d.argument, d.dim) for d in batch.of_inputs(ops.rms_norm)] == [(0, 0)]
    assert [(d.argument, d.dim) for d in batch.of_inputs(ops.rotary_embedding)] == [(0, 0), (1, 0), (2, 0)]
    assert [(d.argument, d.dim) for d in batch.of_outputs(ops.fused_add_rms_norm)] == [(0, 0), (1, 0)]


def test_a_dimension_may_grow_by_several_elements_a_token(manager: TestManager) -> None:
    """Factor and rest follow from two answers of the generator."""
    del manager

    @register_op(name="ragged")
    def ragged(x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    @ragged.register_input_generator
    def _inputs(num_tokens: int) -> tuple[Tensor]:
        """Return x [7, 3 * num_tokens + 1]."""
        return (torch.zeros(7, 3 * num_tokens + 1),)

    (dim,) = batch.of_inputs(ragged)
    assert dim == BatchDim(argument=0, dim=1, factor=3, rest=1)
    assert dim.size(10) == 31


def test_asking_leaves_torchs_generator_as_it_was() -> None:
    """A check that asks for dimensions changes no test that draws afterwards."""
    torch.manual_seed(3)
    wanted = torch.randn(3)
    torch.manual_seed(3)
    batch.of_outputs(ops.silu_and_mul)
    assert torch.equal(torch.randn(3), wanted)
