"""What the ops did: differences of two reports, and the sentences drawn from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir.isolation import isolated
from vllm_ir_host_transformers import measuring, use_ir_ops

if TYPE_CHECKING:
    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]


def test_only_what_happened_since_counts(llama: Any, batch: Inputs, zoo: Zoo) -> None:
    """Calls before the meter started are not in its reading, and ops without any use are left out."""
    replacement = use_ir_ops(llama)
    zoo.logits(llama, batch)
    meter = measuring.Meter()
    zoo.logits(llama, batch)
    usage = meter.read(replacement, 1)
    assert {name: op.calls for name, op in usage.ops.items()} == {
        "rms_norm": {"native": 3},
        "fused_add_rms_norm": {"native": 2},
        "silu_and_mul": {"native": 2},
        "rotary_embedding": {"native": 2},
    }
    assert usage.norms == 5


SAID = (
    "rms_norm takes 3 of 5 norms per forward pass; the other 2 run in fused_add_rms_norm"
    " (--no-fuse-residual puts all 5 on rms_norm)"
)


@pytest.mark.parametrize(("fuse", "wanted"), [(True, SAID), (False, None)])
def test_it_is_said_where_the_other_norms_run(
    fuse: bool, wanted: str | None, llama: Any, batch: Inputs, zoo: Zoo
) -> None:
    """Fewer calls of `rms_norm` than norms have a reason; as many need none."""
    replacement, meter = use_ir_ops(llama, fuse_residual=fuse), measuring.Meter()
    for _ in range(3):
        zoo.logits(llama, batch)
    assert measuring.norm_sentence(meter.read(replacement, 3)) == wanted


def test_refusals_and_a_named_provider_that_never_ran_are_told(llama: Any, batch: Inputs, zoo: Zoo) -> None:
    """Every refusal with its reason and number, and a sentence for the provider that was asked for in vain."""
    op = vllm_ir.ops.rms_norm

    def refuse(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> vllm_ir.Unsupported:
        """Refuse everything."""
        del x, weight, epsilon, variance_size
        return vllm_ir.Unsupported("never wants to")

    op.register_impl("picky", supports_args=refuse)(op.declaration.native)
    op.set_default(["picky"])
    replacement, meter = use_ir_ops(llama), measuring.Meter()
    zoo.logits(llama, batch)
    usage = meter.read(replacement, 1)
    assert usage.ops["rms_norm"].refusals == (("picky", "never wants to", 3),)
    assert measuring.unmet(usage) == ("picky was named for rms_norm and ran none of its 3 calls",)
    assert measuring.as_json(usage)["rms_norm"]["priority"][0] == {"provider": "picky", "layer": "set_default"}


@pytest.mark.parametrize(("calls", "passes", "wanted"), [(6, 3, 2), (7, 2, 3.5), (1, 3, 0.33), (5, 0, 0)])
def test_calls_per_pass_are_whole_where_they_are(calls: int, passes: int, wanted: float) -> None:
    """A whole number is shown as one, and no pass is no division."""
    got = measuring.per_pass(calls, passes)
    assert got == wanted
    assert isinstance(got, type(wanted))


def test_counting_can_be_switched_on_in_a_process_that_started_without(llama: Any, batch: Inputs, zoo: Zoo) -> None:
    """The command line has read the variables by the time it finds out that this verb counts."""
    with isolated({}):
        zoo.logits(llama, batch)
        assert not vllm_ir.report().counting
        measuring.count_calls()
        replacement, meter = use_ir_ops(llama), measuring.Meter()
        zoo.logits(llama, batch)
        assert meter.read(replacement, 1).ops["rms_norm"].calls == {"native": 3}
        assert vllm_ir.report().counting
