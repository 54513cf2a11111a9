"""What providers implement arrives at vLLM's own ops, and what vLLM has stays."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from vllm_ir_host_vllm.adapters import adapt
from vllm_ir_host_vllm.adopting import adopt

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime


def test_what_can_run_is_registered_and_what_cannot_is_left_with_its_reason(fake_vllm: Any, state: Runtime) -> None:
    """An op that only vLLM has is not touched, and native is nobody's to adopt."""
    done = adopt(fake_vllm.ops, state)
    assert done.adopted == {"rms_norm": ["fast"], "fused_add_rms_norm": ["fast"]}
    assert done.left == [("rms_norm", "broken", "it needs a moon")]
    assert done.offered == ["rms_norm", "fused_add_rms_norm"]
    assert list(fake_vllm.ops["gelu_and_mul_sparse"].impls) == ["native"]
    assert done.reason("rms_norm", "broken") == "it needs a moon"
    assert done.reason("rms_norm", "fast") is None


def test_a_name_that_vllm_has_stays_its_own(fake_vllm: Any, state: Runtime) -> None:
    """A second implementation of that name would be vLLM's no more; it is reported."""
    op = fake_vllm.ops["rms_norm"]
    theirs = op.register_impl("fast")(op.native)
    done = adopt(fake_vllm.ops, state)
    assert op.impls["fast"] is theirs
    assert done.taken == [("rms_norm", "fast")]
    assert "rms_norm" not in done.adopted


def test_another_signature_is_left_with_vllms_words(fake_vllm: Any, state: Runtime) -> None:
    """An op of another vLLM may have the name and mean something else; nothing half done is left."""

    def fused_add_rms_norm(x: Any, epsilon: float) -> Any:
        """Be another op."""
        return x, epsilon

    other = type(fake_vllm.ops["rms_norm"])(fused_add_rms_norm)
    refusing = inspect.signature(fused_add_rms_norm).parameters
    assert list(refusing) == ["x", "epsilon"]
    other.register_impl = lambda *_args, **_kwargs: _refuse
    done = adopt({"fused_add_rms_norm": other}, state)
    assert done.left == [("fused_add_rms_norm", "fast", "schema 'a' is not 'b'")]
    assert list(other.impls) == ["native"]


def _refuse(_function: Any) -> Any:
    """Refuse a function as vLLM does whose schema is another."""
    raise ValueError("schema 'a'\n  is not 'b'")


def test_the_digest_is_of_the_implementation_and_not_of_our_file(fake_vllm: Any, state: Runtime) -> None:
    """VLLM hashes the file of the function, which is ours for every provider."""
    adopt(fake_vllm.ops, state)
    norm, fused = (fake_vllm.ops[name].impls["fast"] for name in ("rms_norm", "fused_add_rms_norm"))
    assert len(norm.uuid()) == 64
    assert norm.uuid() != fused.uuid()
    ours = state.registry.get("rms_norm")
    first = norm.uuid()
    assert first == adapt(ours.impls["fast"], fake_vllm.ops["rms_norm"].native).digest
    ours.register_impl("other")(ours.declaration.native)
    assert adapt(ours.impls["other"], fake_vllm.ops["rms_norm"].native).digest != first


def test_an_in_place_implementation_writes_only_where_vllm_donates(fake_vllm: Any, state: Runtime) -> None:
    """The functional form runs the provider's own, and makes no copies for it."""
    adopt(fake_vllm.ops, state)
    impl = fake_vllm.ops["fused_add_rms_norm"].impls["fast"]
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.ones(8)
    kept = x.clone()
    out, total = impl.func_impl_fn(x, residual, weight, 1e-6)
    assert torch.equal(x, kept)
    written, summed = impl.impl_fn(x, residual, weight, 1e-6)
    assert written is x
    assert summed is residual
    assert torch.equal(written, out)
    assert torch.equal(summed, total)


def test_a_predicate_answers_vllm_with_a_bool_and_an_exception_is_a_refusal(
    fake_vllm: Any, state: Runtime, caplog: Any
) -> None:
    """A predicate of vllm-ir answers with a reason, which vLLM has no use for."""
    adopt(fake_vllm.ops, state)
    accepts = fake_vllm.ops["rms_norm"].impls["fast"].accepts
    assert accepts(torch.ones(2, 4), None, 1e-6) is True
    assert accepts(torch.ones(2, 4, dtype=torch.float64), None, 1e-6) is False
    caplog.set_level("WARNING", "vllm_ir")
    assert accepts(None, None, 1e-6) is False
    assert "fast is skipped: supports_args raised AttributeError" in caplog.text


def test_eager_calls_of_adopted_implementations_count_where_calls_are_counted(fake_vllm: Any, state: Runtime) -> None:
    """Beside those that layers make; a graph that is traced adds nothing."""
    state.count_calls()
    adopt(fake_vllm.ops, state)
    impl, ledger = fake_vllm.ops["rms_norm"].impls["fast"], state.board(state.registry.get("rms_norm")).ledger
    impl.impl_fn(torch.ones(2, 4), None, 1e-6)
    impl.func_impl_fn(torch.ones(2, 4), None, 1e-6)
    assert ledger.calls() == {"fast": 2}
    compiled: Any = torch.compile(impl.impl_fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2, 4), None, 0.0), torch.ones(2, 4))
    assert ledger.calls() == {"fast": 2}


def test_tensors_of_another_device_are_refused(fake_vllm: Any, state: Runtime) -> None:
    """A provider's kernels see only tensors of the devices that its manifest lists."""
    from dataclasses import replace

    op = state.registry.get("fused_add_rms_norm")
    impl = replace(op.impls["fast"], devices=frozenset({"cpu"}))
    accepts = adapt(impl, fake_vllm.ops["fused_add_rms_norm"].native).accepts
    assert accepts is not None
    here, away = torch.ones(2, 4), torch.ones(2, 4, device="meta")
    assert accepts(here, here, None, 1e-6) is True
    assert accepts(here, away, None, 1e-6) is False
    assert adapt(op.impls["fast"], fake_vllm.ops["fused_add_rms_norm"].native).accepts is None
