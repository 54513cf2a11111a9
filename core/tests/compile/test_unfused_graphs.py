"""In a graph an op that runs unfused becomes its parts, which are selected for and donated to like any call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import fingerprint, ops, report
from vllm_ir.compile.plan import Plan
from vllm_ir.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Callable

NORM: Any = ops.rms_norm_static_quant_fp8
ADD: Any = ops.fused_add_rms_norm_static_quant_fp8
HEADS: Any = ops.fused_qk_norm_rope
SCALE = torch.tensor([0.013])
FUSED = tuple(name for name in ops.__all__ if getattr(ops, name).declaration.parts)


def flat(results: Any) -> list[Tensor]:
    """Return results as float32, since 8-bit floats compare with nothing."""
    return [x.float() for x in torch.utils._pytree.tree_leaves(results)]


def equal(got: Any, wanted: Any) -> None:
    """Fail unless results are equal bit for bit, as one 8-bit value is one float32."""
    assert all(map(torch.equal, flat(got), flat(wanted)))


def calling(op: Any) -> Callable[..., Any]:
    """Return a program of one call."""

    def run(*args: Any) -> Any:
        """Call the op."""
        return op(*args)

    return run


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("name", "donates"),
    [(name, donates) for name in FUSED for donates in (False, True) if getattr(ops, name).allow_inplace or not donates],
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_every_fused_op_in_parts(compiled: Any, name: str, dynamic: bool, donates: bool) -> None:
    """Node by node the graph of the parts gives native's bits, and the record names the parts and who runs them."""
    op: Any = getattr(ops, name)
    arguments = op.generate_inputs(num_tokens=5)
    wanted = op.declaration.native(*arguments)
    with op.set_priority("unfused"), torch.no_grad():
        call = op.maybe_inplace if donates else op
        equal(compiled(calling(call), provider=None, dynamic=dynamic)(*arguments), wanted)
    record = report().graphs[-1]
    assert set(record.selected[name].values()) == {"unfused"}
    for part in op.declaration.parts:
        assert set(record.selected[part.name].values()) == {"native"}


@pytest.mark.parametrize("kind", ["functional", "inplace", "both"])
def test_parts_are_selected_for(compiled: Any, provide: Callable[..., None], kind: str) -> None:
    """Each part takes the provider that its own order asks for."""
    provide(ops.fused_add_rms_norm, kind)
    arguments = ADD.generate_inputs(num_tokens=5)
    wanted = ADD.declaration.native(*arguments)
    with ADD.set_priority("unfused"), torch.no_grad():
        equal(compiled(calling(ADD))(*arguments), wanted)
    selected = report().graphs[-1].selected
    assert {op: set(nodes.values()) for op, nodes in selected.items()} == {
        ADD.name: {"unfused"},
        "fused_add_rms_norm": {"probe"},
        "static_quant_fp8": {"native"},
    }


@pytest.mark.parametrize("donates", [False, True], ids=["plain", "donating"])
def test_what_is_donated_is_donated_to_the_part(compiled: Any, provide: Callable[..., None], donates: bool) -> None:
    """An in-place part writes what the caller of the graph gave away without a copy, and copies what it did not."""
    provide(ops.fused_add_rms_norm, "inplace")
    x, residual, weight, *rest = ADD.generate_inputs(num_tokens=5)
    wanted = ADD.declaration.native(x, residual, weight, *rest)
    kept = x.clone(), residual.clone()
    call = ADD.maybe_inplace if donates else ADD
    with ADD.set_priority("unfused"), torch.no_grad():
        got = compiled(lambda x, r: call(x, r, weight, *rest))(x, residual)
    equal(got, wanted)
    assert compiled.lowered[-1].copies == (0 if donates else 2)
    assert (got[1].data_ptr() == residual.data_ptr()) is donates
    assert donates or (torch.equal(x, kept[0]) and torch.equal(residual, kept[1]))


def test_what_the_meaning_made_is_written_without_a_copy(compiled: Any, provide: Callable[..., None]) -> None:
    """Nobody else reads the normalised heads, so an in-place rotation turns them where they lie."""
    provide(ops.rotary_embedding, "inplace")
    arguments = HEADS.generate_inputs(num_tokens=5)
    with HEADS.set_priority("unfused"), torch.no_grad():
        equal(compiled(calling(HEADS))(*arguments), HEADS.declaration.native(*arguments))
    assert compiled.lowered[-1].copies == 0


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
def test_inductor(compiled: Any, exact: bool) -> None:
    """Inductor compiles the parts; with exact the natives of the parts stay whole and every bit is eager's."""
    x, weight = torch.randn(5, 64).bfloat16(), torch.rand(64).bfloat16()
    wanted = NORM.declaration.native(x, weight, SCALE, 1e-5)
    with NORM.set_priority("unfused"), torch.no_grad():
        got = compiled(lambda x: NORM(x, weight, SCALE, 1e-5), provider=None, inductor=True, exact=exact)(x)
    if exact:
        equal(got, wanted)
    torch.testing.assert_close(got.float(), wanted.float(), rtol=2**-3, atol=2**-9)


@pytest.mark.parametrize("other", [False, True], ids=["native", "another provider"])
def test_plain_compile_takes_the_parts_in(add_provider: Callable[..., Any], other: bool) -> None:
    """Without our backend, parts that native runs are inlined, and the others are calls that dispatch when they run."""
    seen: list[list[str]] = []

    def backend(module: torch.fx.GraphModule, example: Any) -> Any:
        """Keep the names of the ops that are left of what Inductor would be given."""
        from torch._functorch._aot_autograd.utils import make_boxed_func
        from torch._inductor.compile_fx import compile_fx

        def inner(graph: torch.fx.GraphModule, *_args: Any, **_options: Any) -> Any:
            """Take note."""
            seen.append([str(node.target) for node in graph.graph.nodes if "vllm_ir" in str(node.target)])
            return make_boxed_func(graph.forward)

        return compile_fx(module, example, inner_compile=inner)

    add_provider(ops.rms_norm, "other")
    if other:
        ops.rms_norm.set_default("other")
    x, weight = torch.randn(5, 64), torch.rand(64)
    NORM.set_default("unfused")
    with torch.no_grad():
        run = torch.compile(lambda x: NORM(x, weight, SCALE, 1e-5), fullgraph=True, backend=backend)
        got = run(x)
    assert seen == [["vllm_ir.rms_norm.default"] if other else []]
    if not other:
        equal(got, NORM.declaration.native(x, weight, SCALE, 1e-5))


def test_plain_compile_follows_a_part(add_provider: Callable[..., Any]) -> None:
    """A part's new default is in the next graph, which keeps the part whole."""
    x, weight = torch.randn(5, 64), torch.rand(64)
    NORM.set_default("unfused")
    run = torch.compile(lambda x: NORM(x, weight, SCALE, 1e-5), fullgraph=True)
    with torch.no_grad():
        wanted = run(x)
        calls = add_provider(ops.rms_norm, "twice", 2.0)
        ops.rms_norm.set_default("twice")
        doubled = run(x)
        assert calls
        equal(doubled, ops.static_quant_fp8(ops.rms_norm(x, weight, 1e-5), SCALE))
        ops.rms_norm.set_default("native")
        torch.testing.assert_close(run(x).float(), wanted.float())


@pytest.mark.usefixtures("state")
def test_graphs_follow_the_orders_of_parts(provide: Callable[..., None]) -> None:
    """`vllm_ir.compile` makes another graph where a part's order is another, and finds the first one again."""
    provide(ops.rms_norm, "functional")
    x, weight = torch.randn(5, 64), torch.rand(64)
    run: Any = vllm_ir.compile(lambda x: NORM(x, weight, SCALE, 1e-5), lower_to=_lower)
    with NORM.set_priority("unfused"), torch.no_grad():
        wanted = run(x)
        with ops.rms_norm.set_priority("probe"):
            equal(run(x), wanted)
            assert report().graphs[-1].selected["rms_norm"] == {"rms_norm": "probe"}
        count = len(report().graphs)
        run(x)
        assert len(report().graphs) == count


def _lower(module: Any, _inputs: Any) -> Any:
    """Lower a graph and return it."""
    from vllm_ir.compile import lower_graph

    lower_graph(module)
    return module


def test_a_plan_knows_the_parts() -> None:
    """Its digest is another with the fused op in parts."""
    with isolated():
        native = Plan.take().digest
        with NORM.set_priority("unfused"):
            assert Plan.take().digest != native
        assert Plan.take().digest == native
        assert fingerprint.implementation_digest(NORM.impls["unfused"]) != fingerprint.implementation_digest(
            NORM.impls["native"]
        )
