"""One predicate chooses and explains: whatever it answers, the provider that is explained is the one that ran."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch
import vllm_ir
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from vllm_ir import Unsupported, errors
from vllm_ir.dispatch import BrokenPredicate, read_answer
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_ir.op import IrOpInplace

LOOK_ELSEWHERE = (
    " (GuardOnDataDependentSymNode); look at trailing sizes, dtypes and strides only",
    " while compiling, such as the number of tokens; look at trailing sizes, dtypes and strides only",
)
NOT_THIS = "needs float32, got {dtype}"


def marked(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
    """Return a tensor of zeros like x: the mark of native."""
    del y, scale
    return torch.zeros_like(x)


def float32_only(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> bool | Unsupported:
    """Take float32 and say why not otherwise."""
    del y, scale
    return x.dtype == torch.float32 or Unsupported(NOT_THIS.format(dtype=x.dtype))


def predicate_that(answer: Any) -> Callable[..., Any]:
    """Return a predicate that gives one answer, or raises it if it is an exception."""

    def predicate(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> Any:
        """Answer."""
        del x, y, scale
        if isinstance(answer, Exception):
            raise answer
        return answer

    return predicate


def by_tokens(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> bool:
    """Branch on a number of tokens, which no predicate should."""
    del y, scale
    return bool(x.shape[0] > 4)


def token_answer(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> bool:
    """Return a comparison of a number of tokens, which is no bool while compiling."""
    del y, scale
    return x.shape[0] > 4


def make_op() -> IrOpInplace:
    """Register the op."""
    return vllm_ir.register_op(name="marked", activations=["x"], allow_inplace=True)(marked)


def add(op: IrOpInplace, provider: str, mark: float, **declared: Any) -> None:
    """Register an implementation whose result is its mark; an in-place one writes it into x."""
    writes = declared.get("inplace", False)

    def kernel(x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        """Return the mark."""
        del y, scale
        return x.fill_(mark) if writes else torch.full_like(x, mark)

    op.register_impl(provider, **declared)(kernel)


def ones(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the x of a call."""
    return torch.ones(2, 4, dtype=dtype)


ANSWERS: list[tuple[Any, str | None]] = [
    (True, None),
    (False, "supports_args returned False"),
    (Unsupported("needs float16"), "needs float16"),
    (1, "supports_args returned int 1, wanted a bool or Unsupported(sentence)"),
    (0, "supports_args returned int 0, wanted a bool or Unsupported(sentence)"),
    (None, "supports_args returned NoneType None, wanted a bool or Unsupported(sentence)"),
    ("no", "supports_args returned str 'no', wanted a bool or Unsupported(sentence)"),
    (torch.tensor(1), "supports_args returned Tensor tensor(1), wanted a bool or Unsupported(sentence)"),
    (ValueError("bad\n  stride"), "supports_args raised ValueError: bad stride"),
    (KeyError("x"), "supports_args raised KeyError: 'x'"),
]


@pytest.mark.parametrize(("answer", "reason"), ANSWERS)
@pytest.mark.usefixtures("state")
def test_every_answer_of_a_predicate(answer: Any, reason: str | None) -> None:
    """Only True accepts; everything else is a refusal whose reason tells what the predicate did."""
    op = make_op()
    add(op, "fast", 7.0, supports_args=predicate_that(answer))
    with vllm_ir.IrOpPriorityConfig.with_default(["fast"]).set_priority():
        explained = op.explain(ones())
        ran = op(ones())[0, 0].item()
        dispatched = op.dispatch(ones()).provider
    expected = "fast" if reason is None else "native"
    assert (explained.selected, dispatched, ran) == (expected, expected, 7.0 if reason is None else 0.0)
    assert explained.verdicts[0].reason == reason
    assert explained.verdicts[0].accepted is (reason is None)


@pytest.mark.parametrize(("answer", "reason"), [pair for pair in ANSWERS if isinstance(pair[0], (int, Exception, str))])
def test_strict_mode_raises_where_a_predicate_gives_no_verdict(answer: Any, reason: str | None) -> None:
    """Whoever named the provider, or nobody: an exception or a strange answer is never passed over in strict mode."""
    with isolated({"VLLM_IR_STRICT": "1"}, landscape=Landscape(provider_defaults={False: {"marked": ("fast",)}})):
        op = make_op()
        add(op, "fast", 7.0, supports_args=predicate_that(answer))
        if isinstance(answer, bool):
            assert op(ones())[0, 0].item() == (7.0 if answer else 0.0)
            return
        with pytest.raises(errors.PredicateFailed) as caught:
            op(ones())
        assert str(caught.value) == (
            f"supports_args of op 'marked' by provider 'fast' gave no verdict: {reason}. Return a bool or"
            " Unsupported(sentence); without strict mode the provider is skipped."
        )
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - made here
        if isinstance(answer, Exception):
            assert caught.value.__cause__ is answer


def test_a_symbolic_answer_is_no_verdict() -> None:
    """A comparison of a symbolic size is told apart from other strange answers, with the cause."""
    size = ShapeEnv().create_unbacked_symint()
    refusal = read_answer(size > 4)
    assert isinstance(refusal, BrokenPredicate)
    assert refusal.reason == (
        "supports_args returned a SymBool: it looks at a size that changes while compiling, such as the number of"
        " tokens; look at trailing sizes, dtypes and strides only"
    )
    assert not refusal


@pytest.mark.usefixtures("state")
def test_dispatch_on_fake_tensors() -> None:
    """`op.dispatch` answers for tensors without values as for real ones, and no kernel runs."""
    op = make_op()
    add(op, "fast", 7.0, supports_args=float32_only)
    op.set_default(["fast"])
    with FakeTensorMode() as mode:
        assert op.dispatch(mode.from_tensor(ones())).provider == "fast"
        assert op.dispatch(mode.from_tensor(ones(torch.float16))).provider == "native"
        assert (
            op.explain(mode.from_tensor(ones(torch.float16))).verdicts[0].reason == "needs float32, got torch.float16"
        )
        assert op.dispatch(torch.ones(2, device="meta")).provider == "fast"


@pytest.mark.usefixtures("state")
def test_dispatch_on_symbolic_sizes() -> None:
    """A predicate that looks at dtypes answers as ever, and no guard on the number of tokens comes from it."""
    op = make_op()
    add(op, "fast", 7.0, supports_args=float32_only)
    op.set_default(["fast"])
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    dynamic: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(ones(), symbolic_context=dynamic)
    assert type(x.shape[0]).__name__ == "SymInt"
    assert op.dispatch(x).provider == "fast"
    assert op.dispatch(x.to(torch.float16)).provider == "native"
    assert env.guards == []


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (by_tokens, f"supports_args branches on a size or value that is not known while compiling{LOOK_ELSEWHERE[0]}"),
        (token_answer, f"supports_args returned a SymBool: it looks at a size that changes{LOOK_ELSEWHERE[1]}"),
    ],
)
@pytest.mark.usefixtures("state")
def test_a_predicate_that_looks_at_the_number_of_tokens(predicate: Callable[..., Any], reason: str) -> None:
    """With sizes that are not known the refusal says what is wrong with the predicate, and native takes the call."""
    op = make_op()
    add(op, "fast", 7.0, supports_args=predicate)
    op.set_default(["fast"])
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        x = torch.empty(env.create_unbacked_symint(), 4)
    assert op.dispatch(x).provider == "native"
    assert op.explain(x).verdicts[0].reason == reason


def test_when_every_candidate_refuses() -> None:
    """The error names each with its reason, and the rule that left native out."""
    variables = {"VLLM_BATCH_INVARIANT": "1"}
    landscape = Landscape(provider_defaults={False: {"marked": ("a", "b", "c", "d")}}, unusable={"d": "needs CUDA"})
    with isolated(variables, landscape=landscape):
        op = make_op()
        add(op, "a", 1.0, batch_invariant=True, supports_args=predicate_that(Unsupported("needs float16")))
        add(op, "b", 2.0)
        add(op, "c", 3.0, supported=Unsupported("needs a library"))
        with pytest.raises(errors.NoImplementation) as caught:
            op(ones())
        with pytest.raises(errors.NoImplementation) as dispatched:
            op.dispatch(ones())
    not_invariant = "it is not declared batch-invariant, which VLLM_BATCH_INVARIANT=1 asks for"
    error = caught.value
    assert str(error) == (
        f"No implementation of op 'marked' may run: a: needs float16; b: {not_invariant}; c: needs a library; d: needs"
        f" CUDA; native: {not_invariant}. Batch invariance is asked for: only implementations declared batch-invariant"
        " are admitted. Install a provider that can, or change the priority; `vllm-ir explain marked` shows every"
        " candidate."
    )
    assert str(dispatched.value) == str(error)
    assert dict(error.refusals)["a"] == "needs float16"
    assert error.batch_invariant
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - made here


@pytest.mark.usefixtures("state")
def test_explain_tells_what_stands_behind_the_one_that_runs() -> None:
    """Every candidate has a verdict, also those that are not reached and those in no list."""
    op = make_op()
    add(op, "a", 1.0, supports_args=float32_only)
    add(op, "b", 2.0)
    add(op, "c", 3.0)
    with op.set_priority(["a", "b"]):
        asked = op.explain(ones())
        unasked = op.explain()
    told = [(v.provider, v.layer, v.accepted, v.reason, v.selected) for v in asked.verdicts]
    assert told == [
        ("a", "set_priority", True, None, True),
        ("b", "set_priority", True, "not reached: a takes the call", False),
        ("native", "built-in", True, "not reached: a takes the call", False),
        ("c", "", False, "no priority list names it", False),
    ]
    assert unasked.verdicts[0].reason == "for the arguments that its supports_args accepts"
    assert str(asked) == (
        "marked: a\n"
        " > a [set_priority] accepted\n"
        "   b [set_priority] accepted: not reached: a takes the call\n"
        "   native [built-in] accepted: not reached: a takes the call\n"
        "   c [in no list] refused: no priority list names it"
    )


@pytest.mark.usefixtures("state")
def test_explain_binds_its_arguments_like_a_call() -> None:
    """Keywords and defaults reach the predicate by position; what does not fit is a wrong call."""
    op = make_op()
    add(op, "a", 1.0, supports_args=lambda x, y=None, scale=1.0: scale == 2.0 and y is x)
    op.set_default("a")
    x = ones()
    assert op.explain(x, scale=2.0, y=x).selected == "a"
    assert op.explain(x=x).selected == "native"
    assert op.dispatch(x, scale=2.0, y=x).provider == "a"
    with pytest.raises(errors.WrongCall, match="unexpected keyword argument 'scal'"):
        op.explain(x, scal=2.0)
    with pytest.raises(errors.UnknownOp, match="Did you mean 'marked'"):
        vllm_ir.explain("markd")
    assert vllm_ir.explain("marked", x, x, 2.0).selected == vllm_ir.explain(op, x, x, 2.0).selected == "a"


DTYPES = [torch.float32, torch.float16, torch.int32]
KINDS: Mapping[str, Any] = {
    "all": None,
    "float32": float32_only,
    "yes": predicate_that(True),  # noqa: FBT003 - the answer of a predicate
    "no": predicate_that(False),  # noqa: FBT003 - the answer of a predicate
    "why": predicate_that(Unsupported("why")),
    "raises": predicate_that(RuntimeError("broken")),
    "strange": predicate_that(1),
    "tokens": by_tokens,
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Return providers with predicates and flags, and an order in each of three layers."""
    providers = {
        name: {
            "supports_args": KINDS[draw(st.sampled_from(sorted(KINDS)))],
            "inplace": draw(st.booleans()),
            "batch_invariant": draw(st.booleans()),
            "supported": draw(st.sampled_from([True, True, True, False, Unsupported("no library")])),
        }
        for name in draw(st.lists(st.sampled_from("abcd"), unique=True))
    }
    names = st.lists(st.sampled_from([*providers, "native", "absent"]), max_size=4)
    return {
        "providers": providers,
        "default": tuple(draw(names)),
        "all": draw(names),
        "scope": draw(names),
        "invariant": draw(st.booleans()),
        "counting": draw(st.booleans()),
        "dtype": draw(st.sampled_from(DTYPES)),
        "tokens": draw(st.sampled_from([1, 8])),
    }


def outcome(run: Callable[[], object]) -> object:
    """Return what a call gives, or the class of its error."""
    try:
        return run()
    except errors.IrError as error:
        return type(error)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(cases())
def test_what_is_explained_is_what_runs(case: dict[str, Any]) -> None:
    """For any order, predicates and dtype, eagerly and through the torch op, donating or not: the explained one ran."""
    variables = {"VLLM_BATCH_INVARIANT": "1"} if case["invariant"] else {}
    if case["counting"]:
        variables["VLLM_IR_COUNTERS"] = "1"
    landscape = Landscape(
        provider_defaults={False: {"marked": case["default"]}},
        unusable={"absent": "it is for another machine"},
        distributions={name: f"dist-{name}" for name in "abcd"},
    )
    with isolated(variables, landscape=landscape):
        op = make_op()
        marks: dict[object, str] = {0.0: "native"}
        for mark, (name, declared) in enumerate(case["providers"].items(), 1):
            add(op, name, float(mark), **declared)
            marks[float(mark)] = name
        usable = [name for name in case["all"] if name != "absent"]
        if usable:
            vllm_ir.IrOpPriorityConfig.with_default(usable).apply()
        scope = [name for name in case["scope"] if name != "absent"]
        config = vllm_ir.IrOpPriorityConfig.with_default(scope) if scope else vllm_ir.IrOpPriorityConfig()
        with config.set_priority():
            x = torch.ones(case["tokens"], 4, dtype=case["dtype"])
            explained = op.explain(x).selected or errors.NoImplementation
            dispatched = outcome(lambda: op.dispatch(x).provider)
            ran = {
                "eager": outcome(lambda: marks[op(x)[0, 0].item()]),
                "torch": outcome(lambda: marks[op.torch_op(x)[0, 0].item()]),
                "donating": outcome(lambda: marks[op.maybe_inplace(x.clone())[0, 0].item()]),
                "torch donating": outcome(lambda: marks[op.maybe_inplace.torch_op(x.clone())[0, 0].item()]),
            }
            reachable = op.get_priority()
        counts = vllm_ir.report().ops["marked"].calls
    assert dispatched == explained
    assert ran == dict.fromkeys(ran, explained)
    if isinstance(explained, str):
        assert explained in reachable
        assert counts == ({explained: 4} if case["counting"] else {})


def test_in_strict_mode_nothing_runs_behind_a_named_provider_that_refuses() -> None:
    """A forecast that says native runs, where the run stops, would be worse than none."""
    with isolated({"VLLM_IR_STRICT": "1"}):
        op = make_op()
        add(op, "fast", 7.0, supports_args=float32_only)
        op.set_default(["fast"])
        wrong = ones(torch.float64)
        explained = op.explain(wrong)
        assert explained.selected is None
        assert explained.verdicts[1].reason == "not reached: strict mode raises where fast refuses"
        for ask in (op.dispatch, op):
            with pytest.raises(errors.RefusedArguments, match="'fast', named for op 'marked' by set_default"):
                ask(wrong)
        assert op.explain(ones()).selected == op.dispatch(ones()).provider == "fast"
