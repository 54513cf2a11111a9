"""What a fusion is: its parts are checked when it is made, its functions decide its key, and a named provider wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import Unsupported, ops
from vllm_ir.compile import Fusion, fusions
from vllm_ir.compile.options import CompileOptions
from vllm_ir.compile.passes.order import ordered
from vllm_ir.compile.passes.surroundings import Surroundings
from vllm_ir.errors import BadCompileOption, BadFusion, PassesInCircle, UnknownFusion

from core.tests.compile.passes import decoder_parts as parts
from core.tests.compile.passes.conftest import Printing, same_bits
from core.tests.compile.passes.decoder_parts import GATED, SCALE, WIDE, R, W, X

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tests.compile.passes.conftest import Fuser


def doubled_gate(x: Tensor, approximate: str) -> Any:
    """Gate, and double."""
    return ops.gelu_and_mul(x, approximate) * 2


def gate_of_silu(x: Tensor, approximate: str) -> Any:
    """Gate otherwise, so that a result tells whether it was replaced."""
    del approximate
    return ops.silu_and_mul(x)


def example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    return torch.empty(2, 32), "none"


PARTS: dict[str, Any] = {
    "name": "own",
    "pattern": doubled_gate,
    "replacement": gate_of_silu,
    "example": example,
    "free": ("approximate",),
}


def make(**given: Any) -> Fusion:
    """Return a fusion of the program's own, with some parts changed."""
    return Fusion(**{**PARTS, **given})


def plainly(x: Tensor) -> Any:
    """Gate and double as a program would."""
    return torch.mul(ops.gelu_and_mul(x, approximate="tanh"), 2)


def test_a_fusion_of_ones_own(fuser: Fuser) -> None:
    """It goes where passes go, and binds what is free."""
    got = fuser(plainly, GATED.float(), passes=[make()])
    assert fuser.ran("own").changes == 1
    assert torch.equal(got, ops.silu_and_mul(GATED.float()))


def test_what_is_not_free_must_be_as_in_the_example(fuser: Fuser) -> None:
    """A literal that discriminates is pinned."""
    got = fuser(plainly, GATED.float(), passes=[make(free=())])
    (miss,) = fuser.ran("own").near_misses
    assert miss.reason == "'approximate' of gelu_and_mul is tanh, wanted none"
    assert torch.equal(got, plainly(GATED.float()))


def test_a_pattern_with_torchs_own_functions_matches_what_inductor_takes_apart(state: Any) -> None:
    """It is drawn with the decompositions of the compiler at hand."""
    assert state is not None

    def pattern(x: Tensor) -> Any:
        """Normalise, and clamp smoothly, which Inductor takes apart."""
        return torch.nn.functional.silu(ops.rms_norm(x, None, 1e-6))

    def replacement(x: Tensor) -> Any:
        """Return something else."""
        return ops.rms_norm(x, None, 1e-6) * 3

    fusion = make(pattern=pattern, replacement=replacement, example=lambda: (torch.empty(2, 32),), free=())
    with torch.no_grad():
        got = vllm_ir.compile(lambda x: pattern(x) + 1, passes=[fusion])(WIDE[0])
    torch.testing.assert_close(got, replacement(WIDE[0]) + 1)


def says_no(x: Tensor, approximate: str) -> bool | Unsupported:
    """Take rows of one width."""
    return x.shape[-1] == 8 or Unsupported(f"rows have {x.shape[-1]} elements and {approximate}")


def refuses(*_: Any) -> bool:
    """Refuse without a word."""
    return False


def raises(*_: Any) -> bool:
    """Raise."""
    message = "no such\nthing"
    raise KeyError(message)


def answers(*_: Any) -> Any:
    """Answer with a number."""
    return 1


def asks_for_the_batch(x: Tensor, *_: Any) -> bool:
    """Ask for the number of tokens."""
    return x.shape[0] > 3


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (says_no, "rows have 64 elements and tanh"),
        (refuses, "refuses says no"),
        (raises, "raises raised KeyError: 'no such\\nthing'"),
        (answers, "answers returned 1, wanted a bool or Unsupported(sentence)"),
        (asks_for_the_batch, "asks_for_the_batch asks for a size that this graph leaves open (s"),
    ],
)
def test_a_condition_of_the_authors_refuses_with_its_reason(
    predicate: Callable[..., Any], said: str, fuser: Fuser
) -> None:
    """Whatever it returns or raises is a near miss; the number of tokens is no one's to ask for."""
    got = fuser(plainly, GATED.float(), passes=[make(when=(predicate,))], dynamic=True)
    (miss,) = fuser.ran("own").near_misses
    assert said in miss.reason
    assert torch.equal(got, plainly(GATED.float()))


def other_parameters(x: Tensor) -> Any:
    """Take fewer."""
    return x


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": ""}, "Fusion '': it has no name of its own. Give it one: name='mine'."),
        ({"pattern": 3}, "Fusion own: pattern is 3, wanted a function. Give a function."),
        (
            {"replacement": other_parameters},
            (
                "Fusion own: the pattern takes (x, approximate), the replacement (x)."
                " Give both the same parameters in the same order."
            ),
        ),
        ({"free": "approximate"}, "Fusion own: free is 'approximate', wanted a tuple. Write free=('approximate',)."),
        (
            {"free": ("aproximate",)},
            (
                "Fusion own: free names 'aproximate', and its parameters are 'x', 'approximate'."
                " Name a parameter. Did you mean 'approximate'?"
            ),
        ),
        ({"when": (True,)}, "Fusion own: when is (True,), wanted functions. Give functions that return a bool."),
    ],
)
def test_a_mistake_is_told_when_it_is_made(given: dict[str, Any], said: str) -> None:
    """With who, what, and what to write."""
    with pytest.raises(BadFusion) as caught:
        make(**given)
    assert str(caught.value) == said


def without_op(x: Tensor, approximate: str) -> Any:
    """Call no op."""
    return torch.nn.functional.gelu(x, approximate=approximate)


def returns_its_input(x: Tensor, approximate: str) -> Any:
    """Return a view of what it is given."""
    return ops.gelu_and_mul(x, approximate), x.view(-1)


def named_otherwise(x: Tensor, kind: str) -> Any:
    """Call a parameter otherwise than the op does."""
    return ops.gelu_and_mul(x, kind)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pattern": without_op}, "its pattern calls no op"),
        ({"pattern": returns_its_input}, "its pattern returns a view of what it is given"),
        (
            {"pattern": named_otherwise, "replacement": named_otherwise, "free": ("kind",)},
            "'kind' is free, and no call of its pattern has an argument of that name",
        ),
        ({"example": lambda: (torch.empty(2, 31), "none")}, "its pattern cannot be traced on its example: "),
    ],
)
def test_a_mistake_that_only_tracing_shows_is_told_then(given: dict[str, Any], said: str, fuser: Fuser) -> None:
    """When the first graph with an op in it is compiled."""
    with pytest.raises(BadFusion, match="Fusion own: ") as caught:
        fuser(plainly, GATED.float(), passes=[make(**given)])
    assert said in str(caught.value)


def test_a_replacement_of_another_kind_is_left_out(fuser: Fuser) -> None:
    """What a graph returns keeps its dtype, shape and strides."""

    def other_kind(x: Tensor, approximate: str) -> Any:
        """Return half of it."""
        return ops.gelu_and_mul(x, approximate).half()

    fuser(plainly, GATED.float(), passes=[make(replacement=other_kind)])
    (miss,) = fuser.ran("own").near_misses
    assert miss.reason == (
        "result 0 of the replacement is float16[5, 32] with strides [32, 1], wanted float32[5, 32] with strides [32, 1]"
    )


def test_the_key_follows_what_the_functions_do() -> None:
    """And the settings; two fusions of the same parts have one key."""
    keys = {
        make().key(),
        make(name="other").key(),
        make(replacement=doubled_gate).key(),
        make(free=()).key(),
        make(when=(refuses,)).key(),
        make(after=("add_norm",)).key(),
    }
    assert len(keys) == 6
    assert make().key() == make().key()
    digests = {CompileOptions.read({"fusions": names}).all_passes()[0].key() for names in ("add_norm", "norm_quant")}
    assert len(digests) == 2


def test_passes_order_themselves() -> None:
    """By what they declare; else in the order in which they were given, the user's first."""
    mine = Printing([], after=("add_norm",), before=("norm_quant",))
    names = [each.name for each in CompileOptions.read({"fusions": "all", "passes": [mine]}).all_passes()]
    assert names == ["qk_norm_rope", "noop_removal", "add_norm", "Printing", "norm_quant", "activation_quant"]
    again = CompileOptions.read({"fusions": ["activation_quant", "add_norm", "add_norm"]}).all_passes()
    assert [each.name for each in again] == ["add_norm", "activation_quant"]


def test_passes_in_a_circle_are_named() -> None:
    """Each with the one behind it."""
    first, second, third = (make(name=name, after=(other,)) for name, other in (("a", "b"), ("b", "c"), ("c", "a")))
    with pytest.raises(PassesInCircle, match="'a' before 'c' before 'b' before 'a'") as caught:
        ordered([first, second, third])
    assert caught.value.names == ("a", "c", "b", "a")


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    """And with what there is."""
    with pytest.raises(UnknownFusion, match=r"names 'norm_qant'; there are .*Did you mean 'norm_quant'\?"):
        vllm_ir.compile(plainly, fusions=["norm_qant"])
    with pytest.raises(BadCompileOption, match='wanted "all" or a list of names'):
        vllm_ir.compile(plainly, fusions=3)  # type: ignore[call-overload]


def test_a_backend_takes_the_same_option(state: Any) -> None:
    """Through torch.compile."""
    assert state is not None
    options: dict[str, Any] = {"fusions": "norm_quant", "lower_to": lambda module, _: module}
    torch.compile(parts.norm_then_token, backend="vllm_ir", options=options)(X, W)
    assert [each.name for each in vllm_ir.report().graphs[-1].passes] == ["functionalization", "norm_quant"]


def test_a_provider_that_a_user_named_is_not_passed_over(fuser: Fuser, provide: Any) -> None:
    """Where it has no implementation of the fused op, or another one would run that, the parts stay."""
    provide(ops.rms_norm, "functional")
    args = (X, W, SCALE)
    got = fuser(parts.norm_then_static, *args, fusions="all", priority={"rms_norm": "probe"})
    (miss,) = fuser.ran("norm_quant").near_misses
    assert miss.reason == "a user named 'probe' for rms_norm, and 'native' would run rms_norm_static_quant_fp8"
    assert fuser.record.counts["rms_norm"] == {"probe": 1}
    assert same_bits(got, parts.norm_then_static(*args))
    provide(ops.rms_norm_static_quant_fp8, "functional")
    named = {"rms_norm": "probe", "rms_norm_static_quant_fp8": "probe"}
    fuser(parts.norm_then_static, *args, fusions="all", priority=named)
    assert fuser.record.counts == {"rms_norm_static_quant_fp8": {"probe": 1}}


def test_native_named_for_a_part_is_native_of_the_fused_op(fuser: Fuser) -> None:
    """Its native is the parts' native."""
    fuser(parts.norm_then_static, X, W, SCALE, fusions="all", priority={"rms_norm": "native"})
    assert fuser.record.counts == {"rms_norm_static_quant_fp8": {"native": 1}}


@pytest.mark.parametrize("donates", [True, False])
def test_what_was_donated_to_a_part_is_donated_to_the_fused_op(donates: bool, fuser: Fuser, provide: Any) -> None:
    """An in-place kernel needs no copy of what the caller gave away, and one of what it did not."""
    fused = ops.fused_add_rms_norm_dynamic_quant_fp8
    provide(ops.silu_and_mul, "functional")

    @fused.register_impl("probe", inplace=True)
    def inplace(
        x: Tensor,
        x_residual: Tensor,
        weight: Tensor | None,
        epsilon: float,
        per_token: bool = True,
        scale_ub: Tensor | None = None,
        dtype: torch.dtype = torch.float8_e4m3fn,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the sum over the residual."""
        q, scale, total = fused.declaration.native(x, x_residual, weight, epsilon, per_token, scale_ub, dtype)
        return q, scale, x_residual.copy_(total)

    assert inplace.provider == "probe"
    op: Any = ops.fused_add_rms_norm.maybe_inplace if donates else ops.fused_add_rms_norm

    def layer(x: Tensor, residual: Tensor) -> Any:
        """Add, normalise and quantise."""
        normal, total = op(x, residual, None, 1e-6)
        return *ops.dynamic_quant_fp8(normal), total

    wanted = parts.add_norm_then_token(X, R)
    residual = R.clone()
    got = fuser(layer, X.clone(), residual, fusions="all", priority={fused.name: "probe"})
    assert fuser.record.counts == {fused.name: {"probe": 1}}
    assert same_bits(got, wanted)
    assert (fuser.record.copies == 0) is donates


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("written", ["scale", "normal", "other"])
def test_what_is_written_in_between_is_seen(written: str) -> None:
    """In a graph that is not functional, run by hand; a write to other memory is none of its business."""

    def program(x: Tensor, weight: Tensor, scale: Tensor, other: Tensor) -> Any:
        """Write between the parts."""
        normal = ops.rms_norm(x, weight, 1e-6)
        {"scale": scale, "normal": normal, "other": other}[written].mul_(2)
        return ops.static_quant_fp8(normal, scale)

    module = make_fx(program, tracing_mode="fake")(X, W, SCALE, SCALE.clone())
    outcome = fusions.norm_quant().transform(module.graph, Surroundings())
    assert outcome.changes == int(written == "other")
    for miss in outcome.near_misses:
        assert "writes in between" in miss.reason or "comes from mul_" in miss.reason
    assert module.graph.lint() is None


def test_two_forms_in_one_graph(fuser: Fuser) -> None:
    """Each place is looked at for itself."""

    def both(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Any:
        """Quantise two norms, one of which is read again."""
        one, total = ops.fused_add_rms_norm(x, residual, weight, 1e-6)
        other = ops.rms_norm(total, weight, 1e-6)
        return ops.static_quant_fp8(one, scale), ops.static_quant_fp8(other, scale), other

    got = fuser(both, X, R, W, SCALE, fusions="all")
    assert fuser.ran("norm_quant").changes == 1
    (miss,) = fuser.ran("norm_quant").near_misses
    assert miss.reason == "result of rms_norm is also read by the graph's output"
    assert same_bits(got, both(X, R, W, SCALE))


def test_the_built_in_ones_can_be_made_by_hand() -> None:
    """Under the names that switch them on."""
    for name in fusions.NAMES:
        assert getattr(fusions, name)().name == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fusions.nothing  # type: ignore[attr-defined]
