"""The test kit judges the provider, loaded as on an AMD machine and called with a CPU's tensors, on the stand-in.

What passes is how this distribution calls AITER; what is known to fail is how AITER rounds, and is written down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir.errors import UnusableProvider
from vllm_ir_provider_aiter.symbols import CALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.platforms import Platform

    from providers.aiter_stub.tests.conftest import Site

kit = pytest.importorskip("vllm_ir_testkit", reason="needs vllm-ir-testkit, which judges providers")

CLEAN = ("manifest", "verdict", "predicate", "refusal", "functional", "layout", "poison", "zero_tokens")
ROUNDED = ("values", "aliasing", "opcheck")
KNOWN = {
    ("rms_norm", "values"),
    ("rotary_embedding", "values"),
    ("rotary_embedding", "aliasing"),
    ("fused_add_rms_norm", "values"),
    ("fused_add_rms_norm", "aliasing"),
    ("silu_and_mul", "values"),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute on one thread: the tensors are small and the machine has others to serve."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def manager(site: Site, machine: Callable[..., Platform]) -> Iterator[Any]:
    """Give a state in which the provider is loaded on an AMD machine."""
    assert site.package.is_dir()
    with kit.TestManager() as found:
        record = found.load("aiter", "vllm_ir_provider_aiter.hooks", machine())
        assert [(each.name, each.state) for each in record.providers] == [("aiter", "loaded")]
        yield found


def states(report: Any) -> dict[tuple[str, str], str]:
    """Return what became of each op under each check, skipped ones left out."""
    return {(each.op, each.check): each.state for each in report.outcomes if each.state != "skipped"}


def test_calls_keep_every_promise_that_is_not_about_roundings(manager: Any) -> None:
    """Manifest, refusals, layouts, memory, no tokens: for all four ops."""
    found = states(manager.conformance("aiter", checks=CLEAN))
    assert set(found.values()) == {"passed"}
    assert {op for op, _ in found} == set(CALLED)
    assert ("rotary_embedding", "functional") in found


def test_what_is_known_to_fail_fails_and_nothing_else_does(manager: Any) -> None:
    """The entries cover every finding, none of them is left over, and a green row has native's bits."""
    report = manager.conformance("aiter", checks=ROUNDED)
    found = states(report)
    assert {key for key, state in found.items() if state != "passed"} == KNOWN
    assert {found[key] for key in KNOWN} == {"known failure"}
    shares = {each.op: each.figures for each in report.outcomes if each.check == "values"}
    for op in ("rms_norm", "rotary_embedding"):
        assert shares[op]["float16"]["differing"] == 0
    for op in ("fused_add_rms_norm", "silu_and_mul"):
        assert shares[op]["float16"]["share"] > 1e-4
        assert shares[op]["bfloat16"]["share"] > 1e-4


def test_only_what_rounds_as_native_runs_without_being_named(manager: Any) -> None:
    """On an AMD machine two ops come here by default, the others where a user asks for it."""
    import vllm_ir

    assert manager is not None
    for op in CALLED:
        default = getattr(vllm_ir.ops, op)
        listed = op in {"rms_norm", "rotary_embedding"}
        assert (default.get_priority()[0] == "aiter") is listed
        with default.set_priority(["aiter"]):
            assert default.get_priority()[0] == "aiter"


def test_it_explains_and_runs_as_any_provider_does(manager: Any) -> None:
    """Through the op: what AITER takes comes here, the rest goes on with a reason."""
    import vllm_ir

    assert manager is not None
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(64).bfloat16()
    told = vllm_ir.ops.rms_norm.explain(x, weight.float(), 1e-6)
    assert told.selected == "native"
    assert told.verdicts[0].reason == "needs a weight of x's dtype"
    assert vllm_ir.ops.rms_norm.dispatch(x, weight, 1e-6).provider == "aiter"
    native = vllm_ir.ops.rms_norm.impls["native"].impl_fn(x, weight, 1e-6)
    assert torch.equal(vllm_ir.ops.rms_norm(x, weight, 1e-6), native)


def test_an_op_whose_function_is_missing_is_refused_alone(site: Site, machine: Callable[..., Platform]) -> None:
    """The distribution loads; naming that op's provider is an error with the reason, the other ops run."""
    import vllm_ir

    site.change("ops/activation.py", "def silu_and_mul(", "def silu_mul(")
    site.change("__init__.py", "import silu_and_mul", "import silu_mul as silu_and_mul")
    with kit.TestManager() as found:
        found.load("aiter", "vllm_ir_provider_aiter.hooks", machine())
        x = torch.randn(3, 64).bfloat16()
        asked = vllm_ir.ops.silu_and_mul.set_priority("aiter")
        with pytest.raises(UnusableProvider, match="has no function silu_and_mul"), asked:
            vllm_ir.ops.silu_and_mul(x)
        assert vllm_ir.ops.rms_norm.dispatch(x, x[0], 1e-6).provider == "aiter"
        report = found.conformance("aiter", checks=["verdict"])
        assert list(report.refused) == ["silu_and_mul"]
