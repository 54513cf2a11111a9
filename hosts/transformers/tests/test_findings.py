"""The report as a value: frozen, comparable, and readable."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from torch import nn
from vllm_ir_host_transformers import Left, Replaced, Replacement

PLACES = (
    Replaced("model.layers.0.norm", "norm", "rms_norm", "MiniNorm"),
    Replaced("model.layers.1.norm", "norm", "rms_norm", "MiniNorm"),
    Replaced("model.layers.1.after", "residual", "fused_add_rms_norm", "MiniNorm"),
    Replaced("", "activation", "silu_and_mul", "MLP", "rows of 37: a last bit may differ"),
)
KEPT = (Left("h.0", "rotary", "Attention", "no reason"), Left("h.11", "rotary", "Attention", "no reason"))


def test_it_counts_places_by_op_and_norms_wherever_they_run() -> None:
    """A norm that an add is fused into is a norm."""
    value = Replacement(PLACES, KEPT, nn.Identity())
    assert value.ops == {"rms_norm": 2, "fused_add_rms_norm": 1, "silu_and_mul": 1}
    assert value.norms == 3


def test_places_that_differ_by_a_number_are_one_line() -> None:
    """Thirty layers are one line, with the reason or note at its end."""
    assert str(Replacement(PLACES, KEPT, nn.Identity())).splitlines() == [
        "2 x rms_norm: MiniNorm at model.layers.*.norm",
        "1 x fused_add_rms_norm: MiniNorm at model.layers.*.after",
        "1 x silu_and_mul: MLP at the model itself (rows of 37: a last bit may differ)",
        "2 x rotary left: Attention at h.*: no reason",
    ]


def test_it_is_frozen_and_equal_by_what_it_says() -> None:
    """Two reports that say the same are the same, whatever model they are of."""
    value = Replacement(PLACES, KEPT, nn.Identity())
    assert value == Replacement(PLACES, KEPT, nn.Linear(2, 2))
    assert value != Replacement(PLACES, (), nn.Identity())
    with pytest.raises(FrozenInstanceError):
        value.left = ()  # type: ignore[misc]
