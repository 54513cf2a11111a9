"""What a user's type checker refuses: every line below has a complaint of its own; checked, never run."""

from __future__ import annotations

import torch
import vllm_ir


@vllm_ir.register_op
def plain(x: torch.Tensor) -> torch.Tensor:
    """Be an op without in-place."""
    return x


plain.maybe_inplace(torch.ones(1))  # type: ignore[attr-defined]
plain.set_default(5)  # type: ignore[arg-type]
plain.override_tolerance(torch.float32, 1e-3, 1e-3)  # type: ignore[call-arg]
vllm_ir.implements("plain")  # type: ignore[call-arg]
vllm_ir.implements("plain", provider="a", supported="yes")  # type: ignore[arg-type]
vllm_ir.implements("plain", provider="a", inplace="yes")  # type: ignore[arg-type]
vllm_ir.register_op(plain, name="other")  # type: ignore[call-overload]
vllm_ir.register_op(activations="x")(lambda x: x).maybe_inplace  # type: ignore[attr-defined]  # noqa: B018 - never run
vllm_ir.KernelConfig(ir_op_priority=["a"])  # type: ignore[arg-type]
vllm_ir.verify_agreement("world")  # type: ignore[arg-type]
vllm_ir.selection_digest("rms_norm")  # type: ignore[call-arg]
vllm_ir.no_such_name(1)  # type: ignore[attr-defined]
vllm_ir.Unsupported()  # type: ignore[call-arg]
vllm_ir.compile(plain, exact="yes")  # type: ignore[call-overload]
vllm_ir.compile(5)  # type: ignore[call-overload]
vllm_ir.compile(plain, backend="inductor")  # type: ignore[call-overload]
vllm_ir.make_torch_op("plain", plain)  # type: ignore[call-arg]
vllm_ir.make_torch_op(5, plain, namespace="a")  # type: ignore[arg-type]
vllm_ir.make_torch_op("plain", plain, namespace="a", writes=5)  # type: ignore[arg-type]
