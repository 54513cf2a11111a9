"""What can be judged of a provider, and why the rest cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import Tensor  # noqa: TC002 - torch reads the annotations of what is registered
from vllm_ir import Unsupported, implements, ops, register_op
from vllm_ir_testkit.errors import NoSuchOp, NoSuchProvider
from vllm_ir_testkit.plan import make_plan

if TYPE_CHECKING:
    from vllm_ir_testkit import TestManager


@implements("silu_and_mul", provider="elsewhere", supported=Unsupported("needs a device that is not here"))
def silu_and_mul(x: Tensor) -> Tensor:
    """Never run."""
    return x


def test_native_can_be_judged(manager: TestManager) -> None:
    """Every op of the core, also where nothing was discovered."""
    del manager
    plan = make_plan("native")
    assert sorted(each.op.name for each in plan.subjects) == sorted(ops.__all__)
    assert plan.refused == {}


def test_an_unknown_provider_is_refused_with_a_suggestion(manager: TestManager) -> None:
    """Exit code 2 for a typing error."""
    del manager
    with pytest.raises(NoSuchProvider, match=r"'natve' is not installed .*Did you mean 'native'"):
        make_plan("natve")


def test_an_op_that_it_lacks_is_refused(manager: TestManager) -> None:
    """A name after --op that means nothing for the provider."""
    manager.add(silu_and_mul)
    with pytest.raises(NoSuchOp, match=r"has no op 'rms_norm'.*implements: 'silu_and_mul'"):
        make_plan("elsewhere", ["rms_norm"])


def test_what_runs_nowhere_here_is_refused_with_its_reason(manager: TestManager) -> None:
    """Nothing to check: exit code 3, and the sentence of the declaration."""
    manager.add(silu_and_mul)
    report = manager.conformance("elsewhere")
    assert report.exit_code == 3
    assert report.refused == {"silu_and_mul": "needs a device that is not here"}


def test_an_op_without_inputs_is_told(manager: TestManager) -> None:
    """Nothing can be called without a generator."""

    @register_op(name="mute")
    def mute(x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    @implements("mute", provider="some")
    def kernel(x: Tensor) -> Tensor:
        """Return a copy."""
        return x.clone()

    manager.add(kernel)
    assert "no input generator" in make_plan("some").refused["mute"]
