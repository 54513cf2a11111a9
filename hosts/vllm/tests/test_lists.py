"""VLLM's own priority lists are held against what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir.errors import ProviderLacksOp
from vllm_ir_host_vllm import lists
from vllm_ir_host_vllm.adopting import adopt
from vllm_ir_host_vllm.errors import ListOfAnotherMode, UnknownVllmProvider

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime


def test_what_vllm_has_passes(fake_vllm: Any, state: Runtime) -> None:
    """Ours and its own alike, and empty lists."""
    adoption = adopt(fake_vllm.ops, state)
    lists.check({"rms_norm": ["fast", "native"], "fused_add_rms_norm": []}, fake_vllm.ops, state, adoption)


def test_an_unknown_name_has_the_nearest_one_beside_it(fake_vllm: Any, state: Runtime) -> None:
    """VLLM itself ends with a KeyError there."""
    adoption = adopt(fake_vllm.ops, state)
    with pytest.raises(UnknownVllmProvider) as caught:
        lists.check({"rms_norm": ["fats"]}, fake_vllm.ops, state, adoption)
    assert str(caught.value) == (
        "--ir-op-priority.rms_norm: provider 'fats' is not installed (op 'rms_norm' has: 'native', 'fast'). Did you"
        " mean 'fast'? Install or mend its distribution, or take it out of the list; `vllm-ir list --all` shows what"
        " is there."
    )


@pytest.mark.parametrize(("provider", "reason"), [("broken", "it needs a moon"), ("gone", "its wheel is damaged")])
def test_one_that_cannot_run_says_why(fake_vllm: Any, state: Runtime, provider: str, reason: str) -> None:
    """VLLM would leave it out without a word, or not know it."""
    adoption = adopt(fake_vllm.ops, state)
    with pytest.raises(UnknownVllmProvider, match=f"'{provider}' cannot run here: {reason}"):
        lists.check({"rms_norm": ["native", provider]}, fake_vllm.ops, state, adoption)


def test_one_that_lacks_the_op_says_what_it_has(fake_vllm: Any, state: Runtime) -> None:
    """Gelu is vLLM's alone."""
    adoption = adopt(fake_vllm.ops, state)
    with pytest.raises(ProviderLacksOp, match="'fast' has no implementation of op 'gelu_and_mul_sparse'"):
        lists.check({"gelu_and_mul_sparse": ["fast"]}, fake_vllm.ops, state, adoption)


def test_in_layer_mode_the_list_to_use_is_named(fake_vllm: Any, state: Runtime) -> None:
    """Its own lists are not ours there."""
    with pytest.raises(ListOfAnotherMode, match="Write VLLM_IR_OP_PRIORITY=rms_norm=fast"):
        lists.check({"rms_norm": ["fast"]}, fake_vllm.ops, state, None)


def test_one_of_vllms_own_that_it_leaves_out_is_said(fake_vllm: Any, state: Runtime, caplog: Any) -> None:
    """That is vLLM's way, and stays."""
    op = fake_vllm.ops["rms_norm"]
    op.register_impl("theirs")(op.native).supported = False
    caplog.set_level("WARNING", "vllm_ir")
    lists.check({"rms_norm": ["theirs"]}, fake_vllm.ops, state, adopt(fake_vllm.ops, state))
    assert "--ir-op-priority.rms_norm: vLLM leaves out 'theirs', which cannot run here" in caplog.text
