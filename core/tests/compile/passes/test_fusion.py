"""What a fusion is: its parts are checked when it is made, its functions decide its key, and a named provider wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import Unsupported, ops
from vllm_ir.compile import Fusion, FusionGroup, fusions
from vllm_ir.compile.options import CompileOptions
from vllm_ir.compile.passes import async_tp, sequence_parallel
from vllm_ir.compile.passes.order import ordered
from vllm_ir.compile.passes.surroundings import Surroundings
from vllm_ir.errors import BadCompileOption, BadFusion, IrWarning, PassesInCircle, PassesOfOneName, UnknownFusion

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


def raises_on_wide_rows(x: Tensor, *_: Any) -> bool:
    """Raise on what the example is not."""
    if x.shape[-1] == 64:
        message = "no such\nthing"
        raise KeyError(message)
    return True


def answers_on_wide_rows(x: Tensor, *_: Any) -> Any:
    """Answer with a number on what the example is not."""
    return 1 if x.shape[-1] == 64 else True


def asks_for_the_batch(x: Tensor, *_: Any) -> bool:
    """Ask for the number of tokens."""
    return x.shape[0] > 3


def branches_on_the_batch(x: Tensor, *_: Any) -> bool:
    """Branch on the number of tokens."""
    return bool(x.shape[0] > 3)


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (says_no, "rows have 64 elements and tanh"),
        (refuses, "refuses says no"),
        (asks_for_the_batch, "asks_for_the_batch asks for a size that this graph leaves open (s"),
        (branches_on_the_batch, "branches_on_the_batch asks for a size that this graph leaves open ("),
    ],
)
def test_a_condition_of_the_authors_refuses_with_its_reason(
    predicate: Callable[..., Any], said: str, fuser: Fuser
) -> None:
    """A refusal is a near miss; the number of tokens is no one's to ask for."""
    got = fuser(plainly, GATED.float(), passes=[make(when=(predicate,))], dynamic=True)
    (miss,) = fuser.ran("own").near_misses
    assert said in miss.reason
    assert torch.equal(got, plainly(GATED.float()))


@pytest.mark.parametrize(
    ("predicate", "said"),
    [
        (raises_on_wide_rows, "raises_on_wide_rows raised KeyError: 'no such\\nthing'"),
        (answers_on_wide_rows, "answers_on_wide_rows returned 1"),
    ],
)
def test_a_condition_that_fails_is_an_error(predicate: Callable[..., Any], said: str, fuser: Fuser) -> None:
    """Also where only the graph's tensors show it; as a refusal it would never be seen."""
    with pytest.raises(BadFusion) as caught:
        fuser(plainly, GATED.float(), passes=[make(when=(predicate,))])
    assert str(caught.value) == f"Fusion own: its condition {said}. Let it return a bool or Unsupported(sentence)."


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
        ({"when": (True,)}, "Fusion own: when has True in it, wanted functions. Give functions that return a bool."),
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
def test_a_mistake_that_only_tracing_shows_is_told_too(given: dict[str, Any], said: str) -> None:
    """When the fusion is made, since it has an example to be drawn with."""
    with pytest.raises(BadFusion, match="Fusion own: ") as caught:
        make(**given)
    assert said in str(caught.value)


def none(x: Tensor, approximate: str) -> None:
    """Return nothing."""


def two_results(x: Tensor, approximate: str) -> Any:
    """Return one more than the pattern."""
    return ops.gelu_and_mul(x, approximate), ops.silu_and_mul(x)


def half(x: Tensor, approximate: str) -> Any:
    """Return another dtype."""
    return ops.gelu_and_mul(x, approximate).half()


def fails(x: Tensor, approximate: str) -> Any:
    """Raise."""
    return ops.gelu_and_mul(x, approximate + "!")


def writes(x: Tensor, approximate: str) -> Any:
    """Gate, and double in place."""
    return ops.gelu_and_mul(x, approximate).mul_(2)


def copies(x: Tensor, approximate: str) -> Any:
    """Gate, and write it elsewhere."""
    gated = ops.gelu_and_mul(x, approximate)
    return torch.empty_like(gated).copy_(gated)


def donates(x: Tensor, approximate: str) -> Any:
    """Give both tensors away."""
    gated = ops.gelu_and_mul(x, approximate)
    return ops.fused_add_rms_norm.maybe_inplace(gated, gated.clone(), None, 1e-6)[0]


def reads_one(x: Tensor, other: Tensor) -> Any:
    """Leave a tensor unread."""
    del other
    return ops.silu_and_mul(x) * 2


MUL = "calls mul_, which writes to a tensor, and graphs are functional when fusions run. Write mul."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"replacement": none},
            (
                "its replacement cannot be traced on its example: TypeError: it returns None, wanted a tensor or a"
                " tuple of tensors. Let it take what the pattern takes, and example() return what both take."
            ),
        ),
        (
            {"replacement": two_results},
            (
                "its replacement returns (float32, float32) on the example, wanted (float32)."
                " Return as many results as the pattern, each its dtype."
            ),
        ),
        (
            {"replacement": two_results, "when": (refuses,)},
            (
                "its replacement returns (float32, float32) on the example, wanted (float32)."
                " Return as many results as the pattern, each its dtype."
            ),
        ),
        (
            {"replacement": half},
            (
                "its replacement returns (float16) on the example, wanted (float32)."
                " Return as many results as the pattern, each its dtype."
            ),
        ),
        (
            {"when": (lambda: True,)},
            (
                "its condition <lambda> takes (), and is called with (x, approximate) by position."
                " Let it take what the pattern takes."
            ),
        ),
        (
            {"when": (lambda x, _: x.nothing,)},
            (
                "its condition <lambda> raised AttributeError: 'FakeTensor' object has no attribute 'nothing'."
                " Let it return a bool or Unsupported(sentence)."
            ),
        ),
        ({"pattern": writes}, f"its pattern {MUL}"),
        ({"replacement": writes}, f"its replacement {MUL}"),
        (
            {"replacement": copies},
            (
                "its replacement calls copy_, which writes to a tensor, and graphs are functional when fusions run."
                " Write what returns a new tensor instead of writing with copy_."
            ),
        ),
        (
            {"pattern": donates},
            (
                "its pattern calls fused_add_rms_norm.maybe_inplace, which writes to a tensor, and graphs are"
                " functional when fusions run. Write fused_add_rms_norm."
            ),
        ),
        (
            {
                "pattern": reads_one,
                "replacement": reads_one,
                "example": lambda: (torch.empty(2, 32), torch.empty(2, 16)),
                "free": (),
            },
            (
                "its pattern does not read 'other', so nothing in a graph can stand for it."
                " Read it, or leave it out of both functions."
            ),
        ),
    ],
)
def test_a_fusion_that_can_never_fire_is_refused(given: dict[str, Any], said: str) -> None:
    """When it is made: with whose it is, what was got and wanted, and what to write."""
    with pytest.raises(BadFusion) as caught:
        make(**given)
    assert str(caught.value) == f"Fusion own: {said}"


def normal(x: Tensor) -> Any:
    """Normalise."""
    return ops.rms_norm(x, None, 1e-6)


def normal_and_twice(x: Tensor) -> Any:
    """Normalise, and return that and twice that."""
    return normal(x), normal(x) * 2


def one_for_two(x: Tensor) -> Any:
    """Return a view for a second result."""
    return (made := normal(x)), made.view(x.shape)


SHARED = (
    "its replacement returns what it is given, or a view of it, and its pattern returns new memory. Return a clone()."
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pattern": normal, "replacement": lambda x: x}, SHARED),
        ({"pattern": normal, "replacement": lambda x: x.view(-1).view(x.shape)}, SHARED),
        (
            {"pattern": normal_and_twice, "replacement": one_for_two},
            "its replacement returns results 0 and 1 in one memory, and its pattern in two. Return a clone().",
        ),
        (
            {"pattern": lambda x, k=1: normal(x) * k, "replacement": lambda x, k=1: normal(x) * k},
            (
                "its pattern takes (x, k), and example() returns 1 of these."
                " Return one value for each, by position, also for one that has a default."
            ),
        ),
    ],
)
def test_a_fusion_that_would_change_whose_memory_a_result_is_is_refused(given: dict[str, Any], said: str) -> None:
    """When it is made, as is one with another number of arguments than its example has."""
    with pytest.raises(BadFusion) as caught:
        make(**given, example=lambda: (torch.empty(2, 32),), free=())
    assert str(caught.value) == f"Fusion own: {said}"


def test_results_may_share_memory_where_the_patterns_do() -> None:
    """Then nobody is told anything that was not so before."""
    assert make(pattern=one_for_two, replacement=one_for_two, example=lambda: (torch.empty(2, 32),), free=()).name


def test_a_result_stays_new_memory_where_the_example_does_not_tell(fuser: Fuser) -> None:
    """A replacement that returns its input for some rows is left out there: what is written later would be seen."""

    def program(x: Tensor) -> Any:
        """Normalise, and write to what was normalised."""
        result = normal(x)
        x.add_(1)
        return result

    def itself(x: Tensor) -> Any:
        """Return what is given where rows are wide."""
        return x if x.shape[-1] == 64 else x * 1

    fusion = make(pattern=normal, replacement=itself, example=lambda: (torch.empty(2, 32),), free=())
    x = GATED.float()
    got = fuser(program, x, passes=[fusion])
    (miss,) = fuser.ran("own").near_misses
    assert miss.reason == (
        "on these arguments the replacement returns what it is given, or a view of it,"
        " and its pattern returns new memory"
    )
    assert torch.equal(got, normal(x))


def test_a_replacement_that_fails_is_told_where_the_example_is_taken() -> None:
    """Where a condition refuses the example, it need not work on that."""
    with pytest.raises(BadFusion, match=r"its replacement cannot be traced on its example: .*none!"):
        make(replacement=fails)
    assert make(replacement=fails, when=(refuses,)).name == "own"
    assert make(replacement=half, when=(refuses,)).name == "own"


def test_a_replacement_of_another_kind_is_left_out(fuser: Fuser) -> None:
    """What a graph returns keeps its dtype, shape and strides, also where the example's did."""

    def other_kind(x: Tensor, approximate: str) -> Any:
        """Return half of it in wide rows, which the example has not."""
        gated = ops.gelu_and_mul(x, approximate)
        return gated.half() if x.shape[-1] == 64 else gated

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


def test_two_passes_of_one_name_are_told_apart_or_refused() -> None:
    """A fusion shares its name with nobody; passes of a program's own class may."""
    with pytest.raises(PassesOfOneName) as caught:
        vllm_ir.compile(plainly, passes=[make(name="add_norm")], fusions=["add_norm"])
    assert str(caught.value) == (
        "Two graph passes of one compilation are called 'add_norm': the built-in add_norm that fusions=[...] switches"
        " on, and a Fusion in passes=[...]. Give one of them another name, or take one out."
    )
    with pytest.raises(PassesOfOneName, match="'own': a Fusion in passes"):
        CompileOptions(passes=(make(), make()))
    with pytest.raises(PassesOfOneName, match=r"'add_norm': a FusionGroup in passes=.*, and a Fusion in passes"):
        CompileOptions(passes=(fusions.add_norm(always=True), make(name="add_norm")))
    assert len(CompileOptions(passes=(make(name="add_norm"), Printing([]), Printing([]))).all_passes()) == 3


@pytest.mark.parametrize("part", ["before", "after"])
def test_a_misspelt_neighbour_is_told(part: str) -> None:
    """With the nearest name; one of the core that is not switched on is known; none is its own neighbour."""
    with pytest.warns(IrWarning) as caught:
        vllm_ir.compile(plainly, passes=[make(**{part: ("norm_qant",)})])
    (text,) = [str(each.message) for each in caught]
    assert text.startswith(f"Graph pass 'own': {part} names 'norm_qant', which no pass of this compilation and none of")
    assert text.endswith(" Did you mean 'norm_quant'?")
    for name in ("norm_quant", sequence_parallel.SequenceParallelism.name, async_tp.AsyncTensorParallelism.name):
        assert CompileOptions(passes=(make(**{part: (name,)}),)).passes
    with pytest.raises(BadFusion, match=f"Fusion own: {part} names 'own', which it is itself"):
        make(**{part: ("own",)})
    with pytest.raises(BadFusion, match=f"Fusion group: {part} names 'group', which it is itself"):
        FusionGroup(name="group", members=(make(),), **{part: ("group",)})


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
