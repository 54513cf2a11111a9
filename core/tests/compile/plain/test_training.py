"""Gradients through plain torch.compile are native's, and hold no op where native runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

rms: Any = ops.rms_norm


def gradients(run: Callable[..., Any], *inputs: Tensor) -> list[Tensor | None]:
    """Return the gradients of rows, residual and weight."""
    args = [value.clone().requires_grad_() for value in inputs]
    out, total = run(*args)
    (out.sin().sum() + total.cos().sum()).backward()
    return [value.grad for value in args]


def test_training_is_that_of_compiled_native(plain: Any) -> None:
    """Forward and backward hold no op, and the gradients are compiled native's to the bit."""
    args = plain.inputs()
    wanted = gradients(torch.compile(plain.native_layer, fullgraph=True), *args)
    got, codes = run_and_get_code(lambda: gradients(torch.compile(plain.layer, fullgraph=True), *args))
    assert len(codes) == 2
    assert "torch.ops.vllm_ir" not in "".join(codes)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)


def test_training_with_a_provider(plain: Any, add_provider: Any) -> None:
    """The provider runs forward as one call, and backward is native's, without any op."""
    add_provider(rms, "a", 1.0)
    rms.set_default("a")
    recorder, args = plain.Recorder(), plain.inputs()
    got = gradients(torch.compile(plain.layer, fullgraph=True, backend=recorder), *args)
    assert recorder.calls == [[rms.torch_op], []]
    torch.testing.assert_close(got, gradients(plain.native_layer, *args))
