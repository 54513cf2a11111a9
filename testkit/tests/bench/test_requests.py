"""What a benchmark is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir import ops
from vllm_ir.errors import UnknownProvider
from vllm_ir_testkit.bench import requests
from vllm_ir_testkit.bench.requests import Size
from vllm_ir_testkit.errors import BadBenchRequest

if TYPE_CHECKING:
    from vllm_ir_testkit import TestManager


def test_sizes_and_dtypes_are_read_once_each() -> None:
    """Spaces, repetitions and short names."""
    assert requests.read_sizes(" 1x576, 16x4096,1x576") == (Size(1, 576), Size(16, 4096))
    assert requests.read_dtypes("bf16, float32,bf16") == ("bfloat16", "float32")


@pytest.mark.parametrize("text", ["", "0x4", "4x0", "4", "axb", "1x2x3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """With what is wanted."""
    with pytest.raises(BadBenchRequest, match="wanted tokens x hidden size"):
        requests.read_sizes(text)


def test_ops_and_providers_have_defaults(manager: TestManager) -> None:
    """All ops with inputs; all providers of these ops."""
    del manager
    assert {op.name for op in requests.read_ops([])} == set(ops.__all__)
    assert requests.read_providers(None, [ops.rms_norm]) == ("native",)
    with pytest.raises(UnknownProvider, match="Did you mean 'native'"):
        requests.read_providers("natve", [ops.rms_norm])
    with pytest.raises(BadBenchRequest):
        requests.read_providers(" , ", [ops.rms_norm])
