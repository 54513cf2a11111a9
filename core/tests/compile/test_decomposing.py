"""An exported program is taken apart into whoever is selected, in torch's own way, and then needs nothing of ours."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from vllm_ir import errors, ops
from vllm_ir.compile import decomposition_table
from vllm_ir.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
QUANT: Any = ops.silu_and_mul_dynamic_quant_fp8


class Block(nn.Module):
    """A norm, an add that donates, and an activation that ends in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Run the block."""
        x, residual = fused.maybe_inplace(rms(x, self.weight, 1e-5) * 2, residual * 1, self.weight, 1e-5)
        quantized, scale = QUANT(x)
        return quantized.float(), scale, residual


def inputs(tokens: int) -> tuple[Tensor, Tensor]:
    """Return rows and a residual of some tokens."""
    generator = torch.Generator().manual_seed(tokens)
    first, second = (torch.randn(tokens, 16, generator=generator) for _ in range(2))
    return first, second


def export() -> torch.export.ExportedProgram:
    """Export the block for any number of tokens."""
    tokens = torch.export.Dim("tokens")
    return torch.export.export(Block(), inputs(5), dynamic_shapes=({0: tokens}, {0: tokens}))


def left(program: torch.export.ExportedProgram) -> Counter[str]:
    """Return how often a program calls each torch op that is not torch's own."""
    names = (str(node.target) for node in program.graph.nodes if node.op == "call_function")
    return Counter(name for name in names if not name.startswith(("aten.", "<built-in", "prims.")))


def agree(program: torch.export.ExportedProgram, *, bits: bool = True) -> None:
    """Fail unless a program gives eager native's results for several numbers of tokens and leaves its inputs alone."""
    for tokens in (5, 2, 64):
        given = inputs(tokens)
        for mine, theirs in zip(program.module()(*given), Block()(*inputs(tokens)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0 if bits else None, atol=0 if bits else None)
        assert all(map(torch.equal, given, inputs(tokens)))


def test_natives_are_torchs_operations(state: Runtime) -> None:
    """Nothing of ours is left, bits are eager's, and a table that lacks an op leaves it in the program."""
    assert state is not None
    program = export().run_decompositions(decomposition_table())
    assert left(program) == {}
    agree(program)
    table = decomposition_table()
    del table[rms.torch_op]
    assert left(export().run_decompositions(table)) == {"vllm_ir.rms_norm.default": 1}


@pytest.mark.usefixtures("state")
def test_unfused_is_its_parts() -> None:
    """An op that is to run unfused is taken apart into what its parts select, down to torch's operations."""
    with QUANT.set_priority("unfused"), fused.set_priority("unfused"):
        program = export().run_decompositions(decomposition_table())
    assert left(program) == {}
    agree(program)


@pytest.mark.parametrize("kind", ["functional", "inplace", "both"])
def test_providers_run_where_they_are_selected(provide: Callable[..., None], kind: str) -> None:
    """What a priority names is in the program, in a form that writes no input."""
    for op in (rms, fused):
        provide(op, kind)
    with rms.set_priority("probe"), fused.set_priority("probe"):
        program = export().run_decompositions(decomposition_table())
    assert left(program) == {}
    agree(program)


def test_a_provider_is_left_as_its_own_torch_op(state: Runtime) -> None:
    """A kernel behind a torch op is one call of that op."""
    assert state is not None
    library = torch.library.Library("vllm_ir_decomposing_probe", "FRAGMENT")
    library.define("norm(Tensor x, Tensor? weight, float epsilon, SymInt? variance_size) -> Tensor")
    library.impl("norm", rms.declaration.native, "CompositeExplicitAutograd")
    call = torch.ops.vllm_ir_decomposing_probe.norm

    @rms.register_impl("behind")  # type: ignore[untyped-decorator]
    def norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        """Call the torch op."""
        return call(x, weight, epsilon, variance_size)  # type: ignore[no-any-return]

    with rms.set_priority("behind"):
        program = export().run_decompositions(decomposition_table())
    assert left(program) == {"vllm_ir_decomposing_probe.norm.default": 1}
    agree(program)
    library._destroy()


def test_what_cannot_be_selected_is_told_at_once() -> None:
    """A name that nobody has is an error before anything is taken apart."""
    with isolated({"VLLM_IR_OP_PRIORITY": "rms_norm=nobody"}), pytest.raises(errors.UnknownProvider):
        decomposition_table()
