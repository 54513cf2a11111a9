"""RMS norms: recognised by what they compute, in four flavours; look-alikes are left with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from vllm_ir import Unsupported
from vllm_ir_host_transformers import norms, use_ir_ops

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KINDS = (LlamaRMSNorm, Olmo2RMSNorm, Gemma2RMSNorm)


class BrokenRMSNorm(LlamaRMSNorm):
    """The base of norms that are not quite one."""


class MeanRMSNorm(BrokenRMSNorm):
    """Subtracts the mean first."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return another norm."""
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


class ScaledRMSNorm(BrokenRMSNorm):
    """Is off by one unit in the last place of bfloat16 now and then."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return another norm."""
        return super().forward(hidden_states) * 1.001


class TupleRMSNorm(BrokenRMSNorm):
    """Returns more than one thing."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return another norm."""
        return super().forward(hidden_states), None


class GatedRMSNorm(BrokenRMSNorm):
    """Takes a gate, too."""

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        """Return another norm."""
        return super().forward(hidden_states) * gate


class WideWeightRMSNorm(LlamaRMSNorm):
    """Has a weight that is no row."""

    def __init__(self) -> None:
        super().__init__(8)
        self.weight = nn.Parameter(torch.ones(2, 8))


class NamelessRMSNorm(LlamaRMSNorm):
    """Keeps its epsilon under a name of its own."""

    def __init__(self) -> None:
        super().__init__(8)
        self.tiny = self.variance_epsilon
        del self.variance_epsilon


class BiasedRMSNorm(LlamaRMSNorm):
    """Has a bias beside its weight."""

    def __init__(self) -> None:
        super().__init__(8)
        self.bias = nn.Parameter(torch.ones(8))


@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mix_of_dtypes_keeps_its_bits(
    kind: type[nn.Module], weight_dtype: torch.dtype, x_dtype: torch.dtype
) -> None:
    """Input and weight of any two dtypes: the same result dtype and the same bits as the module's own forward."""
    torch.manual_seed(0)
    module: Any = kind(48)
    module.weight.data += torch.randn(48)
    module, x = module.to(weight_dtype), torch.randn(2, 3, 48).to(x_dtype)
    wanted = module(x)
    assert use_ir_ops(module).ops == {"rms_norm": 1}
    got = module(x)
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


class BareRMSNorm(nn.Module):
    """Has no weight, as the norm of queries and keys in nanochat has none."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of x, computed in float32."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_without_a_weight_keeps_its_bits(dtype: torch.dtype) -> None:
    """The op takes no weight then; rows may be of any width."""
    module, x = BareRMSNorm(), torch.randn(2, 3, 48).to(dtype)
    wanted = module(x)
    assert use_ir_ops(module).ops == {"rms_norm": 1}
    got = module(x)
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


def test_a_norm_without_a_weight_is_asked_for_rows_as_wide_as_it_says() -> None:
    """Torch's own takes no others."""
    assert isinstance(norms.recognise(nn.RMSNorm(24, eps=1e-5, elementwise_affine=False)), norms.Flavour)


@pytest.mark.parametrize("shape", [(48,), (5, 48), (2, 3, 4, 48), (0, 48)], ids=str)
def test_any_number_of_dimensions_will_do(shape: tuple[int, ...]) -> None:
    """One row, heads of queries, and no token at all."""
    module = LlamaRMSNorm(48)
    x = torch.randn(shape)
    wanted = module(x)
    use_ir_ops(module)
    assert torch.equal(module(x), wanted)


def test_queries_in_a_transposed_view_keep_their_bits() -> None:
    """Gemma 3 normalises a view whose heads are not where memory has them."""
    module, x = Gemma2RMSNorm(16), torch.randn(2, 5, 4, 16).transpose(1, 2)
    wanted = module(x)
    use_ir_ops(module)
    assert torch.equal(module(x), wanted)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.LayerNorm(8), "it subtracts the mean, so it is no RMS norm"),
        (nn.LayerNorm(8, bias=False), "it subtracts the mean, so it is no RMS norm"),
        (nn.LayerNorm(8, elementwise_affine=False), "it subtracts the mean, so it is no RMS norm"),
        (MeanRMSNorm(8), "it subtracts the mean, so it is no RMS norm"),
        (ScaledRMSNorm(8), "its result is not that of rms_norm: off by"),
        (TupleRMSNorm(8), "another shape or dtype"),
        (GatedRMSNorm(8), "its forward does not take one tensor (TypeError)"),
        (WideWeightRMSNorm(), "its weight is not one row"),
        (NamelessRMSNorm(), "it keeps no epsilon under a known name"),
        (BiasedRMSNorm(), "it holds more than one weight"),
        (nn.BatchNorm1d(8), "it holds more than one weight"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_look_alike_is_left_with_its_reason(module: nn.Module, reason: str) -> None:
    """A name is not believed: what computes something else, or holds something else, stays as it is."""
    found = norms.recognise(module)
    assert isinstance(found, Unsupported)
    assert reason in found.reason


def test_torch_s_own_norm_is_judged_by_its_bits_too() -> None:
    """`nn.RMSNorm` is left: without an epsilon of its own it takes that of the dtype."""
    found = norms.recognise(nn.RMSNorm(8))
    assert isinstance(found, Unsupported)


def test_a_module_that_is_no_norm_is_not_reported() -> None:
    """A projection is neither replaced nor left."""
    assert norms.recognise(nn.Linear(8, 8)) is None


def test_a_weight_of_ones_does_not_hide_a_difference() -> None:
    """The probe uses a weight of its own, since with ones, or zeros, flavours give the same result."""
    assert isinstance(norms.recognise(LlamaRMSNorm(8)), norms.Flavour)
    assert norms.recognise(LlamaRMSNorm(8)) != norms.recognise(Olmo2RMSNorm(8))


def test_recognising_touches_neither_weight_nor_hooks() -> None:
    """The module's parameter stays the same object with the same version, and no hook fires."""
    module, fired = LlamaRMSNorm(8), []
    weight, version = module.weight, module.weight._version
    module.register_forward_hook(lambda *_: fired.append(1))
    norms.recognise(module)
    assert module.weight is weight
    assert (weight._version, fired) == (version, [])


def test_a_norm_whose_weight_is_elsewhere_is_recognised() -> None:
    """On the meta device, where an offloaded model's weights are, no value is needed."""
    assert isinstance(norms.recognise(LlamaRMSNorm(8).to("meta")), norms.Flavour)


def test_the_epsilon_is_read_at_every_call(counts: Callable[[], dict[str, int]]) -> None:
    """Who changes the module's epsilon later changes the result."""
    module, x = LlamaRMSNorm(8), torch.randn(2, 8)
    use_ir_ops(module)
    before = module(x)
    module.variance_epsilon = 10.0
    assert not torch.equal(module(x), before)
    assert counts() == {"rms_norm": 2}
