"""Rotary embedding where sizes are at their edge."""

from __future__ import annotations

import pytest
import torch
from vllm_ir import ops


@pytest.mark.parametrize("shape", [(0, 64), (0, 4, 16), (2, 0, 64)])
def test_zero_tokens_give_empty_results(shape: tuple[int, ...]) -> None:
    """An idle rank gets results of the right shape and dtype, contiguous, and no exception."""
    positions, _, _, *rest = ops.rotary_embedding.generate_inputs(num_tokens=0, dtype=torch.bfloat16)
    query = torch.empty(shape, dtype=torch.bfloat16)
    for result in ops.rotary_embedding.impls["native"].impl_fn(positions, query, query.clone(), *rest):
        assert result.shape == shape
        assert result.dtype == torch.bfloat16
        assert result.is_contiguous()
