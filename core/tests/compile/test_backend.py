"""The backend as torch.compile finds and calls it: by name, with options and a mode, beside the user's own passes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo.exc
import torch._inductor.config
from torch import Tensor
from torch.fx import symbolic_trace
from vllm_ir import ops, report
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.compile.options import CompileOptions
from vllm_ir.compile.passes import GraphPass
from vllm_ir.compile.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
X, WEIGHT = torch.linspace(-1, 1, 4 * 8).reshape(4, 8), torch.linspace(0.5, 1.5, 8)

BY_NAME = """
import sys
import torch
from vllm_ir.ops import rms_norm

assert not [name for name in sys.modules if name.startswith("vllm_ir.compile")]


def lower(module, inputs):
    from vllm_ir.compile.lower_to import lower_graph

    print(sorted(lower_graph(module).selected))
    return module


compiled = torch.compile(lambda x: rms_norm(x, None, 1e-5), backend="vllm_ir", options={"lower_to": lower})
print("vllm_ir" in torch._dynamo.list_backends(), tuple(compiled(torch.ones(2, 8)).shape))
"""


def normalize(x: Tensor) -> Tensor:
    """Call an op, donating what was made for it."""
    out, total = fused.maybe_inplace(x * 2, x + 1, WEIGHT, 1e-5)
    return out + total  # type: ignore[no-any-return]


def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Be a compiler that lowers a graph and runs it as it is."""
    lower_graph(module)
    return module


def compile_by_name(function: Callable[..., Any], **keywords: Any) -> Any:
    """Return a function compiled by the backend's name."""
    return torch.compile(function, backend="vllm_ir", fullgraph=True, **keywords)


class Seen:
    """A pass of the user's, as Inductor takes it.

    Attributes:
        ops: how many ops were in each graph that it was given.
        settings: what Inductor was told while it ran.
    """

    def __init__(self) -> None:
        self.ops: list[int] = []
        self.settings: list[tuple[bool, int]] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Look at a graph."""
        self.ops.append(sum("vllm_ir" in str(node.target) for node in graph.nodes))
        config: Any = torch._inductor.config
        self.settings.append((config.triton.cudagraphs, config.max_fusion_size))


def test_torch_finds_it_by_name() -> None:
    """In a process that has imported nothing of ours but the ops."""
    done = subprocess.run([sys.executable, "-c", BY_NAME], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['rms_norm']", "True (2, 8)"]


@pytest.mark.parametrize("door", ["global", "options"])
def test_the_users_passes_run_beside_ours(door: str) -> None:
    """Before lowering they see ops, all functional, behind it none; what else the user set holds."""
    first, before, after = seen = Seen(), Seen(), Seen()
    places = ("pre_grad_custom_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass")
    patches: dict[str, Any] = {**dict(zip(places, seen, strict=True)), "max_fusion_size": 17, "triton.cudagraphs": True}
    patched = torch._inductor.config.patch(patches if door == "global" else {})
    with patched, torch.no_grad():
        result = compile_by_name(normalize, options=patches if door == "options" else None)(X)
        for name, each in zip(places, seen, strict=True):
            assert getattr(torch._inductor.config, name) is (each if door == "global" else None)
    torch.testing.assert_close(result, normalize(X))
    assert [each.ops for each in seen] == [[1], [1], [0]]
    assert {setting for each in (first, before, after) for setting in each.settings} == {(True, 17)}


def test_a_mode_reaches_inductor_and_stays_there() -> None:
    """What a mode stands for holds while a graph is compiled, and the process's configuration stays as it is."""
    seen = Seen()
    before = torch._inductor.config.triton.cudagraphs
    with torch._inductor.config.patch(post_grad_custom_post_pass=seen), torch.no_grad():
        result = compile_by_name(normalize, mode="reduce-overhead")(X)
    torch.testing.assert_close(result, normalize(X))
    assert [setting[0] for setting in seen.settings] == [True]
    assert torch._inductor.config.triton.cudagraphs == before


def test_an_error_of_ours_stays_readable() -> None:
    """Dynamo wraps what a backend raises; the sentence is in it, and the error itself is its cause."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compile_by_name(normalize, options={"lowerto": lower})(X)
    text = str(caught.value)
    assert "raised:" in text
    assert "UnknownCompileOption: Compile option 'lowerto' is unknown" in text
    assert "Did you mean 'lower_to'?" in text


def test_roundings_that_torch_cannot_keep_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By exact=True in a dtype that is rounded to; not in float32, nor where nothing was promised or they are kept."""
    from vllm_ir.compile import backend, torch_version

    backend._tell_of_roundings.cache_clear()
    half = X.bfloat16()

    def told(x: Tensor, **options: Any) -> list[str]:
        """Return what is said about a graph."""
        caplog.clear()
        backend.compile_graph(symbolic_trace(torch.nn.ReLU()), [x], CompileOptions.read(options), Plan.take(exact=True))
        return [record.getMessage() for record in caplog.records if "exact=True" in record.getMessage()]

    monkeypatch.setattr(torch_version, "compile_with_inductor", lambda *_: None)
    monkeypatch.setattr(torch_version, "honours_roundings", lambda _: False)
    backend._tell_of_roundings.cache_clear()
    assert told(X) == []
    (message,) = told(half)
    assert "drops roundings between other operations on device cpu" in message
    assert told(half) == []
    backend._tell_of_roundings.cache_clear()


def test_another_compiler_gets_ops_passes_and_fakes(state: Runtime) -> None:
    """`lower_to` is called behind the passes, with the functional graph and the fake results in it."""
    assert state is not None
    graphs: list[list[str]] = []

    class Halve(GraphPass):
        """Lets the ops be called on half of what they were."""

        def apply(self, graph: torch.fx.Graph) -> int:
            """Change the number of every call."""
            found = [node for node in graph.nodes if node.target is fused.torch_op]
            for node in found:
                node.args = (*node.args[:3], 0.25)
            return len(found)

    def compiler(module: torch.fx.GraphModule, inputs: Any) -> Any:
        """Keep what it is given."""
        assert all(isinstance(each, torch.Tensor) for each in inputs)
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        assert all("val" in node.meta for node in calls)
        graphs.append([str(node.target) for node in calls if "vllm_ir" in str(node.target)])
        return lower(module, inputs)

    with torch.no_grad():
        result = compile_by_name(normalize, options={"lower_to": compiler, "passes": [Halve()]})(X)
    out, total = fused(X * 2, X + 1, WEIGHT, 0.25)
    torch.testing.assert_close(result, out + total)
    assert graphs == [["vllm_ir.fused_add_rms_norm.default"]]
    (graph,) = report().graphs
    assert [(each.name, each.changes) for each in graph.passes] == [
        ("functionalization", 1),
        ("Halve", 1),
        ("lowering", 1),
    ]
    assert list(graph.selected["fused_add_rms_norm"].values()) == ["native"]


def test_a_compiler_that_leaves_ops_runs_them() -> None:
    """An op that nobody lowered dispatches when it runs, by the priority of whoever calls."""

    def compiler(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Leave everything as it is."""
        return module

    with torch.no_grad():
        torch.testing.assert_close(compile_by_name(normalize, options={"lower_to": compiler})(X), normalize(X))


def test_an_op_registered_afterwards_is_lowered(state: Runtime) -> None:
    """Which ops there are is read for each graph."""
    from vllm_ir import register_op

    assert state is not None
    compile_by_name(normalize, options={"lower_to": lower})(X)

    @register_op(name="late_op_of_the_backend")
    def late(x: Tensor) -> Tensor:
        """Be an op."""
        return x + 1

    call: Any = late
    compiled = compile_by_name(lambda x: call(x) * 2, options={"lower_to": lower})
    torch.testing.assert_close(compiled(X), (X + 1) * 2)
    assert list(report().graphs[-1].selected) == ["late_op_of_the_backend"]
