"""Plain torch.compile: what native runs is inlined, all else stays one op that dispatches when it runs."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from vllm_ir import ops, register_op

rms: Any = ops.rms_norm


def calls_in(code: str) -> list[str]:
    """Return the names of the ops that generated code calls."""
    return re.findall(r"torch\.ops\.vllm_ir\.(\w+\.\w+)\(", code)


@pytest.mark.parametrize("dynamic", [False, True])
def test_native_is_inlined_and_fused(plain: Any, dynamic: bool) -> None:
    """No op is left in the code, donating ones included, and it is as many kernels as the native functions make."""
    args = plain.inputs()
    kernels = []
    for run in (plain.layer, plain.native_layer):
        with torch.no_grad():
            got, (code,) = run_and_get_code(torch.compile(run, fullgraph=True, dynamic=dynamic), *args)
        assert calls_in(code) == []
        torch.testing.assert_close(got, plain.layer(*args))
        kernels.append(code.count("async_compile.cpp"))
    assert kernels[0] == kernels[1] > 0


def test_providers_stay_whole_and_dispatch_when_they_run(plain: Any, add_provider: Any) -> None:
    """An op that a provider takes is one call that asks the priority of its context; the others are inlined."""
    add_provider(rms, "a", 2.0)
    rms.set_default("a")
    args = plain.inputs()
    run: Any = torch.compile(plain.layer, fullgraph=True)
    with torch.no_grad():
        _, (code,) = run_and_get_code(run, *args)
        assert calls_in(code) == ["rms_norm.default"]
        torch.testing.assert_close(run(*args), plain.layer(*args))
        with rms.set_priority("native"):
            torch.testing.assert_close(run(*args), plain.native_layer(*args))


def test_the_scope_that_is_open_while_compiling_decides(plain: Any, add_provider: Any) -> None:
    """What a scope of the compiling context asks for is whole, although native is the default."""
    add_provider(rms, "a", 2.0)
    with rms.set_priority("a"):
        _, calls = plain.recorded(plain.layer, *plain.inputs())
    assert calls == [rms.torch_op]


def test_an_op_registered_after_the_first_compilation_is_inlined(plain: Any) -> None:
    """Nothing is set up once for the ops there are."""
    plain.recorded(plain.layer, *plain.inputs())

    @register_op
    def late_double(x: Tensor) -> Tensor:
        """Double x."""
        return x * 2

    x = torch.randn(4, 8)
    got, calls = plain.recorded(lambda x: late_double(x) + 1, x)
    assert calls == []
    torch.testing.assert_close(got, x * 2 + 1)


def test_a_native_that_writes_to_its_own_tensors_is_inlined(plain: Any) -> None:
    """Writes inside of native, also through views, become functional like any others."""

    @register_op
    def scribbling(x: Tensor, weight: Tensor) -> Tensor:
        """Double, set a row, add the weight, and negate through a view."""
        doubled = x.float().clone().mul_(2)
        out = torch.empty_like(doubled)
        out.copy_(doubled)
        out[0] = 3.0
        out.add_(weight)
        out.view(-1).neg_()
        return out.to(x.dtype)

    x, weight = torch.randn(4, 8), torch.randn(8)
    kept = x.clone()
    got, calls = plain.recorded(lambda x, w: scribbling(x, w) + 1, x, weight)
    assert calls == []
    torch.testing.assert_close(got, scribbling(x, weight) + 1)
    assert torch.equal(x, kept)


def test_every_selection_is_logged(plain: Any, add_provider: Any, caplog: pytest.LogCaptureFixture) -> None:
    """At level DEBUG a reader sees what became of each call, and why."""
    add_provider(rms, "a", 2.0)
    rms.set_default("a")
    with caplog.at_level(logging.DEBUG, logger="vllm_ir"):
        plain.recorded(plain.layer, *plain.inputs())
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("plain graph")]
    assert said == [
        "plain graph: op rms_norm: stays whole: a takes it",
        "plain graph: op fused_add_rms_norm: native, inlined",
    ]


EAGER = """
import sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import ops
run = lambda x: ops.rms_norm(x, None, 1e-5)
run(torch.ones(2, 8))
make_fx(run)(torch.ones(2, 8))
with FakeTensorMode():
    run(torch.empty(2, 8))
print([name for name in sys.modules if name.startswith("vllm_ir.compile")])
"""


def test_a_process_that_never_compiles_loads_none_of_this() -> None:
    """Eager calls, fake tensors, and graphs that nobody compiles leave the package alone."""
    done = subprocess.run([sys.executable, "-c", EAGER], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr
