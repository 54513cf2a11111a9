"""The public names."""

from __future__ import annotations

import vllm_ir_testkit


def test_every_public_name_is_there_and_sorted() -> None:
    """The list, the listing and what can be taken agree."""
    assert vllm_ir_testkit.__all__ == sorted(vllm_ir_testkit.__all__)
    assert dir(vllm_ir_testkit) == vllm_ir_testkit.__all__
    for name in vllm_ir_testkit.__all__:
        assert getattr(vllm_ir_testkit, name) is not None
