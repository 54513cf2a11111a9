"""Every mistake of an author: the whole sentence, its facts, a pickle of it, and nothing registered afterwards.

The mistakes are real declarations. The same file, run by `python -O`, makes them all again.
"""

from __future__ import annotations

import functools
import json
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir import errors, ops, runtime
from vllm_ir.isolation import isolated
from vllm_ir.staging import transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from vllm_ir.op import IrOp

GRAMMAR = "wanted a lower-case letter or underscore, then lower-case letters, digits or underscores. Rename it."
FIX = (
    "Annotate every parameter and the result with Tensor, Tensor | None, int, float, bool, str, torch.dtype or lists of"
    " these,"
    " imported at run time."
)
BY = "implementation of op 'two' by provider 'fast'"


def two(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Return x times a scale; an op without any mistake."""
    return x * scale


def keyword_only(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Take a parameter that no graph could pass."""
    return x * scale


def any_number(*x: torch.Tensor) -> torch.Tensor:
    """Take any number of tensors."""
    return x[0]


def any_keyword(x: torch.Tensor, **more: float) -> torch.Tensor:
    """Take any keyword."""
    return x * len(more)


def reserved_parameter(x: torch.Tensor, _ir_scale: float) -> torch.Tensor:
    """Call a parameter as generated code calls its own."""
    return x * _ir_scale


def unannotated(x, scale: float) -> torch.Tensor:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Leave a parameter without a type."""
    result: torch.Tensor = x * scale
    return result


def unannotated_result(x: torch.Tensor):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Leave the result without a type."""
    return x


def strange(x: torch.Tensor, where: slice) -> torch.Tensor:
    """Take a type that no schema has."""
    return x[where]


def hidden(x: torch.Tensor, where: Path) -> torch.Tensor:
    """Take a type that is imported for type checkers only."""
    return x * len(where.parts)


def infinite(x: torch.Tensor, bound: float = float("inf")) -> torch.Tensor:
    """Have a default that a schema cannot carry."""
    return x.clamp(max=bound)


def one_of_two(x: torch.Tensor, x_residual: torch.Tensor) -> torch.Tensor:
    """Return one tensor for two activations."""
    return x + x_residual


def number(x: torch.Tensor) -> int:
    """Return no tensor at all."""
    return x.dim()


def no_activation(query: torch.Tensor) -> torch.Tensor:
    """Have no parameter that begins with x."""
    return query + 1


def other_name(y: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Differ from two by the name of a parameter."""
    return y * scale


def other_type(x: torch.Tensor, scale: int = 2) -> torch.Tensor:
    """Differ from two by the type of a parameter."""
    return x * scale


def other_default(x: torch.Tensor, scale: float = 3.0) -> torch.Tensor:
    """Differ from two by a default."""
    return x * scale


def renamed_predicate(y: torch.Tensor, scale: float = 2.0) -> bool:
    """Call a parameter otherwise than the function does."""
    return y.dim() == scale


def shorter_predicate(x: torch.Tensor) -> bool:
    """Leave a parameter out."""
    return x.dim() == 1


def defaultless_predicate(x: torch.Tensor, scale: float) -> bool:
    """Leave a default out."""
    return x.dim() == scale


def keyword_predicate(x: torch.Tensor, *, scale: float = 2.0) -> bool:
    """Take a parameter by keyword only."""
    return x.dim() == scale


def op_of_two() -> IrOp:
    """Return the op `two`, registered if it is not."""
    registry = runtime.current().registry
    return registry.get("two") if "two" in registry else vllm_ir.register_op(two)


def implement(function: Any = two, provider: Any = "fast", **declared: Any) -> object:
    """Register an implementation of a fresh op."""
    return op_of_two().register_impl(provider, **declared)(function)


def register(function: Any = two, **declared: Any) -> object:
    """Register an op."""
    return vllm_ir.register_op(**declared)(function)


def register_twice() -> object:
    """Register one op's name again."""
    op_of_two()
    return register(other_type, name="two")


def implement_twice() -> object:
    """Register a provider's second implementation."""
    op = op_of_two()
    op.register_impl("fast")(two)
    return op.register_impl("fast")(two)


def defined_elsewhere() -> object:
    """Register an op that somebody else has defined in torch."""
    library = torch.library.Library("vllm_ir", "FRAGMENT")
    library.define("elsewhere(Tensor x, float scale=2.0) -> Tensor")
    try:
        return register(name="elsewhere")
    finally:
        library._destroy()


def retired() -> object:
    """Register an op whose name torch keeps for one that was forgotten."""
    with isolated():
        register(name="retired_before")
    return register(other_type, name="retired_before")


def staged(*, ops: Any = (), implementations: Any = ()) -> None:
    """Give a transaction what it does not take."""
    with transaction("some-distribution") as staging:
        staging.add_ops(ops)
        staging.add_implementations(implementations)


def called_too_early() -> None:
    """Call an op before the transaction that declares it has ended."""
    with transaction("some-distribution"):
        vllm_ir.register_op(name="early")(two)(torch.ones(1))


def donated_too_early() -> None:
    """Call its other overload."""
    with transaction("some-distribution"):
        vllm_ir.register_op(name="early", allow_inplace=True)(two).maybe_inplace(torch.ones(1))


def torn() -> None:
    """Register a declaration for another op than the one it names."""
    with transaction("some-distribution") as staging:
        staging.stage(op_of_two(), vllm_ir.implements("three", provider="fast")(two))


@dataclass(frozen=True)
class Mistake:
    """A declaration that must fail, and what its author reads."""

    make: Callable[[], object]
    kind: type[errors.IrError]
    sentence: str
    facts: dict[str, object] = field(default_factory=dict)


MISTAKES: dict[str, Mistake] = {
    "op name with a capital": Mistake(
        lambda: register(name="Two"),
        errors.BadName,
        f"Op name 'Two' is not legal: {GRAMMAR}",
        {"kind": "Op", "name": "Two"},
    ),
    "op name that is no text": Mistake(
        lambda: register(name=2), errors.BadName, f"Op name '2' is not legal: {GRAMMAR}"
    ),
    "op name of a lambda": Mistake(
        lambda: register(lambda x: x), errors.BadName, f"Op name '<lambda>' is not legal: {GRAMMAR}"
    ),
    "op name that is a keyword": Mistake(
        lambda: register(name="class"),
        errors.BadName,
        "Op name 'class' is not legal: it is a keyword of Python. Rename it.",
        {"reason": "it is a keyword of Python"},
    ),
    "op name that torch has": Mistake(
        lambda: register(name="name"),
        errors.BadName,
        "Op name 'name' is not legal: every namespace of torch.ops has an attribute of that name. Rename it.",
    ),
    "op name that vllm_ir.ops has": Mistake(
        lambda: register(name="rotary"),
        errors.BadName,
        "Op name 'rotary' is not legal: vllm_ir.ops has an attribute of that name, which would hide the op. Rename it.",
    ),
    "op that is no function": Mistake(lambda: register(5), errors.BadName, f"Op name '5' is not legal: {GRAMMAR}"),
    "named op that is no function": Mistake(
        lambda: register(5, name="five"),
        errors.BadSignature,
        "op 'five': 5 has no signature that can be read. Give a Python function.",
        {"who": "op 'five'", "problem": "5 has no signature that can be read", "fix": "Give a Python function."},
    ),
    "keyword-only parameter": Mistake(
        lambda: register(keyword_only),
        errors.KeywordOnlyParameter,
        "op 'keyword_only': parameter 'scale' is keyword-only, but graphs pass an op's arguments by position."
        " Remove the '*' before it.",
        {"who": "op 'keyword_only'", "parameter": "scale"},
    ),
    "any number of arguments": Mistake(
        lambda: register(any_number),
        errors.BadSignature,
        "op 'any_number': parameter '*x: 'torch.Tensor'' takes any number. Name each parameter.",
    ),
    "any keyword": Mistake(
        lambda: register(any_keyword),
        errors.BadSignature,
        "op 'any_keyword': parameter '**more: 'float'' takes any number. Name each parameter.",
    ),
    "parameter of generated code": Mistake(
        lambda: register(reserved_parameter),
        errors.BadSignature,
        "op 'reserved_parameter': parameter '_ir_scale' begins with '_ir_'. Rename the parameter.",
    ),
    "parameter without a type": Mistake(
        lambda: register(unannotated),
        errors.BadSignature,
        "op 'unannotated': torch cannot read its annotations: infer_schema(func): Parameter x must have a type"
        f" annotation. Got func with signature (x, scale: 'float') -> 'torch.Tensor'). {FIX}",
    ),
    "result without a type": Mistake(
        lambda: register(unannotated_result),
        errors.BadSignature,
        "op 'unannotated_result': torch cannot read its annotations: infer_schema(func): No return type annotation"
        f" was provided. Please add one. Got func with signature (x: 'torch.Tensor')). {FIX}",
    ),
    "parameter of a type that no schema has": Mistake(
        lambda: register(strange),
        errors.BadSignature,
        f"op 'strange': torch cannot read its annotations: {{torch}} {FIX}",
    ),
    "parameter of a type for checkers only": Mistake(
        lambda: register(hidden),
        errors.BadSignature,
        f"op 'hidden': torch cannot read its annotations: {{torch}} {FIX}",
    ),
    "infinite default": Mistake(
        lambda: register(infinite),
        errors.BadSignature,
        "op 'infinite': torch cannot read its schema (Tensor x, float bound=inf) -> Tensor."
        " Give defaults that are finite numbers.",
    ),
    "allow_inplace that is no bool": Mistake(
        lambda: register(allow_inplace="yes"),
        errors.BadValue,
        "op 'two': allow_inplace is 'yes', wanted a bool.",
        {"who": "op 'two'", "field": "allow_inplace", "got": "'yes'", "wanted": "a bool"},
    ),
    "activations as one text": Mistake(
        lambda: register(activations="x"),
        errors.BadValue,
        "op 'two': activations is 'x', wanted a list of parameter names.",
    ),
    "unknown activation": Mistake(
        lambda: register(one_of_two, activations=["x_residal"]),
        errors.UnknownActivation,
        "Op 'one_of_two': activation 'x_residal' is no tensor parameter (tensor parameters: 'x', 'x_residual')."
        " Did you mean 'x_residual'?",
        {"op": "one_of_two", "activation": "x_residal", "known": ("x", "x_residual")},
    ),
    "activation that is a number": Mistake(
        lambda: register(activations=["scale"]),
        errors.UnknownActivation,
        "Op 'two': activation 'scale' is no tensor parameter (tensor parameters: 'x').",
    ),
    "too few outputs": Mistake(
        lambda: register(one_of_two, allow_inplace=True),
        errors.InplaceOutputs,
        "Op 'one_of_two' allows in-place, so it must return at least one tensor per activation: got outputs (Tensor),"
        " wanted 2 tensor(s) for activations 'x', 'x_residual'. Change the outputs, name the activations, or drop"
        " allow_inplace.",
        {"op": "one_of_two", "outputs": "(Tensor)", "activations": ("x", "x_residual")},
    ),
    "output that is no tensor": Mistake(
        lambda: register(number, allow_inplace=True),
        errors.InplaceOutputs,
        "Op 'number' allows in-place, so it must return at least one tensor per activation: got outputs (int), wanted"
        " 1 tensor(s) for activations 'x'. Change the outputs, name the activations, or drop allow_inplace.",
    ),
    "in-place without activation": Mistake(
        lambda: register(no_activation, allow_inplace=True),
        errors.InplaceOutputs,
        "Op 'no_activation' allows in-place, so it must return at least one tensor per activation: got outputs"
        " (Tensor), wanted 0 tensor(s) for activations none. Change the outputs, name the activations, or drop"
        " allow_inplace.",
    ),
    "second op of a name": Mistake(
        register_twice,
        errors.DuplicateOp,
        "Op 'two' is already registered ({where}). Choose another name; an op's meaning never changes under its name.",
        {"op": "two"},
    ),
    "second op of core's name": Mistake(
        lambda: register(name="rms_norm"),
        errors.DuplicateOp,
        "Op 'rms_norm' is already registered ({where}). Choose another name; an op's meaning never changes under its"
        " name.",
    ),
    "op defined elsewhere": Mistake(
        defined_elsewhere,
        errors.DefinedElsewhere,
        "Op 'elsewhere' cannot be bound: torch.ops.vllm_ir.elsewhere is defined already, by code outside vllm-ir."
        " Choose another name, or remove that definition.",
        {"op": "elsewhere", "namespace": "vllm_ir"},
    ),
    "op that torch still holds": Mistake(
        retired,
        errors.RetiredOp,
        "Op 'retired_before' was registered before in this process with the schema (Tensor x, float scale=2.0) ->"
        " Tensor, got (Tensor x, SymInt scale=2) -> Tensor. Torch keeps an op's schema until the process ends; choose"
        " another name.",
        {"op": "retired_before", "got": "(Tensor x, SymInt scale=2) -> Tensor"},
    ),
    "provider name with a dash": Mistake(
        lambda: implement(provider="my-kernels"),
        errors.BadName,
        f"Provider name 'my-kernels' is not legal: {GRAMMAR}",
        {"kind": "Provider", "name": "my-kernels"},
    ),
    "reserved provider": Mistake(
        lambda: vllm_ir.implements("two", provider="native")(two),
        errors.ReservedName,
        "Provider name 'native' is reserved (reserved names: 'native', 'unfused'). Name the provider after its"
        " library.",
        {"name": "native", "reserved": ("native", "unfused")},
    ),
    "other reserved provider": Mistake(
        lambda: vllm_ir.implements("two", provider="unfused")(two),
        errors.ReservedName,
        "Provider name 'unfused' is reserved (reserved names: 'native', 'unfused'). Name the provider after its"
        " library.",
    ),
    "second implementation": Mistake(
        implement_twice,
        errors.DuplicateImplementation,
        "Op 'two' already has an implementation by provider 'fast' ({where}). Give the second one a provider name of"
        " its own.",
        {"op": "two", "provider": "fast"},
    ),
    "implementation that is no function": Mistake(
        lambda: implement(5), errors.BadValue, f"{BY}: the implementation is 5, wanted a function."
    ),
    "implementation with a keyword-only parameter": Mistake(
        lambda: implement(functools.partial(two, scale=2.0)),
        errors.KeywordOnlyParameter,
        f"{BY}: parameter 'scale' is keyword-only, but graphs pass an op's arguments by position."
        " Remove the '*' before it.",
    ),
    "implementation by another name": Mistake(
        lambda: implement(other_name),
        errors.SchemaMismatch,
        "Implementation of op 'two' by provider 'fast' has the schema (Tensor y, float scale=2.0) -> Tensor, wanted"
        " (Tensor x, float scale=2.0) -> Tensor. Names, types and defaults must be those of the native function.",
        {
            "op": "two",
            "provider": "fast",
            "got": "(Tensor y, float scale=2.0) -> Tensor",
            "wanted": "(Tensor x, float scale=2.0) -> Tensor",
        },
    ),
    "implementation of another type": Mistake(
        lambda: implement(other_type),
        errors.SchemaMismatch,
        "Implementation of op 'two' by provider 'fast' has the schema (Tensor x, SymInt scale=2) -> Tensor, wanted"
        " (Tensor x, float scale=2.0) -> Tensor. Names, types and defaults must be those of the native function.",
    ),
    "implementation with another default": Mistake(
        lambda: implement(other_default),
        errors.SchemaMismatch,
        "Implementation of op 'two' by provider 'fast' has the schema (Tensor x, float scale=3.0) -> Tensor, wanted"
        " (Tensor x, float scale=2.0) -> Tensor. Names, types and defaults must be those of the native function.",
    ),
    "in-place where the op allows none": Mistake(
        lambda: implement(inplace=True),
        errors.InplaceNotAllowed,
        "Implementation of op 'two' by provider 'fast' is declared inplace=True, but the op does not allow it."
        " Return new tensors, or register the op with allow_inplace=True.",
        {"op": "two", "provider": "fast"},
    ),
    "inplace that is no bool": Mistake(
        lambda: implement(inplace=1), errors.BadValue, f"{BY}: inplace is 1, wanted a bool."
    ),
    "batch_invariant that is no bool": Mistake(
        lambda: implement(batch_invariant="yes"), errors.BadValue, f"{BY}: batch_invariant is 'yes', wanted a bool."
    ),
    "supported that is no bool": Mistake(
        lambda: implement(supported="cuda"),
        errors.BadValue,
        f"{BY}: supported is 'cuda', wanted a bool or Unsupported(sentence).",
    ),
    "refusal without a reason": Mistake(
        lambda: vllm_ir.Unsupported(" "), errors.BadValue, "Unsupported: reason is ' ', wanted a sentence."
    ),
    "predicate that is no function": Mistake(
        lambda: implement(supports_args=True),
        errors.BadValue,
        f"{BY}: supports_args is True, wanted a function or None.",
    ),
    "predicate by other names": Mistake(
        lambda: implement(supports_args=renamed_predicate),
        errors.PredicateMismatch,
        "supports_args of op 'two' by provider 'fast' takes (y, scale=2.0), wanted (x, scale=2.0): the same names and"
        " defaults in the same order, so that dispatch can call it without binding.",
        {"op": "two", "provider": "fast", "got": "(y, scale=2.0)", "wanted": "(x, scale=2.0)"},
    ),
    "predicate of another length": Mistake(
        lambda: implement(supports_args=shorter_predicate),
        errors.PredicateMismatch,
        "supports_args of op 'two' by provider 'fast' takes (x), wanted (x, scale=2.0): the same names and defaults in"
        " the same order, so that dispatch can call it without binding.",
    ),
    "predicate without the default": Mistake(
        lambda: implement(supports_args=defaultless_predicate),
        errors.PredicateMismatch,
        "supports_args of op 'two' by provider 'fast' takes (x, scale), wanted (x, scale=2.0): the same names and"
        " defaults in the same order, so that dispatch can call it without binding.",
    ),
    "predicate as a lambda of one argument": Mistake(
        lambda: implement(supports_args=lambda x: x.is_contiguous()),
        errors.PredicateMismatch,
        "supports_args of op 'two' by provider 'fast' takes (x), wanted (x, scale=2.0): the same names and defaults in"
        " the same order, so that dispatch can call it without binding.",
    ),
    "predicate with a keyword-only parameter": Mistake(
        lambda: implement(supports_args=keyword_predicate),
        errors.KeywordOnlyParameter,
        f"supports_args of the {BY}: parameter 'scale' is keyword-only, but graphs pass an op's arguments by"
        " position. Remove the '*' before it.",
    ),
    "item that is no op": Mistake(
        lambda: staged(ops=["two"]),
        errors.BadValue,
        "distribution 'some-distribution': an item of its ops is 'two', wanted an IrOp.",
    ),
    "item that is no implementation": Mistake(
        lambda: staged(implementations=[5]),
        errors.BadValue,
        "distribution 'some-distribution': an item of its implementations is 5, wanted a function declared with"
        " implements(...).",
    ),
    "call before the end of the transaction": Mistake(
        called_too_early,
        errors.UnregisteredOp,
        "Op 'early' cannot be called: the transaction that declares it has not ended, or has failed. Call it after its"
        " distribution has been loaded.",
        {"op": "early"},
    ),
    "donating call before the end of the transaction": Mistake(
        donated_too_early,
        errors.UnregisteredOp,
        "Op 'early.maybe_inplace' cannot be called: the transaction that declares it has not ended, or has failed."
        " Call it after its distribution has been loaded.",
    ),
    "declaration for another op": Mistake(
        torn,
        errors.TornDeclaration,
        "Provider 'fast' declared an implementation of op 'three', which was given to op 'two'. Register it with"
        " ops.three.",
        {"op": "two", "provider": "fast", "declared": "three"},
    ),
    "fake with other parameters": Mistake(
        lambda: op_of_two().register_fake(other_default),
        errors.BadSignature,
        "fake of op 'two': it takes (x, scale=3.0), wanted (x, scale=2.0). Use the op's parameters.",
    ),
    "generator without num_tokens": Mistake(
        lambda: op_of_two().register_input_generator(lambda: (torch.ones(1),)),
        errors.BadSignature,
        "input generator of op 'two': it does not take num_tokens. Add the parameter; benchmarks vary it.",
    ),
    "inputs without a generator": Mistake(
        lambda: op_of_two().generate_inputs(num_tokens=2),
        errors.MissingGenerator,
        "Op 'two' has no input generator. Add one with @ops.two.register_input_generator; it must take num_tokens.",
        {"op": "two"},
    ),
    "tolerance of a strange dtype": Mistake(
        lambda: ops.silu_and_mul.get_tolerance(torch.bool),
        errors.MissingTolerance,
        "Op 'silu_and_mul' has no tolerance for torch.bool (there are: 'torch.float64', 'torch.float32',"
        " 'torch.float16', 'torch.bfloat16', 'torch.float8_e4m3fn', 'torch.float8_e4m3fnuz', 'torch.float8_e5m2',"
        " 'torch.int8', 'torch.uint8'). Add one with ops.silu_and_mul.override_tolerance(torch.bool, atol=...,"
        " rtol=...).",
        {"op": "silu_and_mul", "dtype": "torch.bool"},
    ),
}
"""The op of each mistake is `two` unless its sentence says otherwise."""


def fail(mistake: Mistake) -> errors.IrError:
    """Return the error that a mistake raises."""
    try:
        mistake.make()
    except errors.IrError as error:
        return error
    msg = "the mistake was accepted"
    raise LookupError(msg)


def fits(mistake: Mistake, sentence: str, where: object) -> bool:
    """Tell whether a sentence is that of the mistake, whatever torch says in it."""
    pattern = re.escape(mistake.sentence).replace(r"\{where\}", re.escape(str(where))).replace(r"\{torch\}", ".+")
    return re.fullmatch(pattern, sentence) is not None


def registered() -> dict[str, tuple[str, ...]]:
    """Return every op with its providers."""
    return {op.name: tuple(op.impls) for op in runtime.current().registry}


def in_torch() -> set[str]:
    """Return what torch has in the namespace of ops, apart from ops that only these mistakes register first."""
    names = torch._C._dispatch_get_all_op_names()
    return {name for name in names if name.startswith("vllm_ir::") and not name.startswith("vllm_ir::retired_before")}


@pytest.fixture
def clean() -> Iterator[None]:
    """Give a fresh process state in which torch knows `two` already, as some mistakes are made with it."""
    with isolated():
        op_of_two()
    with isolated():
        yield


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_who_what_known_and_fix(name: str) -> None:
    """The class, the whole sentence and the facts are those that a reader and a program need."""
    mistake = MISTAKES[name]
    error = fail(mistake)
    assert type(error) is mistake.kind
    assert isinstance(error, errors.DeclarationError)
    assert isinstance(error, ValueError)
    assert fits(mistake, str(error), getattr(error, "where", "")), str(error)
    assert {fact: getattr(error, fact) for fact in mistake.facts} == mistake.facts


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_pickles(name: str) -> None:
    """A worker's error arrives as the same class with the same sentence and facts."""
    error = fail(MISTAKES[name])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {key: value for key, value in vars(copy).items() if key != "_facts"} == {
        key: value for key, value in vars(error).items() if key != "_facts"
    }


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", MISTAKES)
def test_nothing_of_a_mistake_is_left(name: str) -> None:
    """Neither the registry, nor an op's implementations, nor torch has anything that was not there before."""
    op_of_two()
    before, torch_before = registered(), in_torch()
    fail(MISTAKES[name])
    if MISTAKES[name].make is implement_twice:
        before["two"] = ("native", "fast")  # the first of the two is right
    assert registered() == before
    assert in_torch() == torch_before


@pytest.mark.parametrize(
    ("wrong", "declared", "right"),
    [
        (keyword_only, {}, two),
        (unannotated, {}, two),
        (strange, {}, two),
        (infinite, {}, two),
        (one_of_two, {"allow_inplace": True}, two),
        (two, {"activations": ["nope"]}, two),
        (no_activation, {"allow_inplace": True}, two),
    ],
)
def test_a_corrected_op_works_under_the_same_name(
    state: runtime.Runtime, wrong: Any, declared: dict[str, Any], right: Any
) -> None:
    """What failed has not taken the name, neither here nor in torch."""
    with pytest.raises(errors.DeclarationError):
        register(wrong, name="corrected", **declared)
    assert "corrected" not in state.registry
    op = vllm_ir.register_op(name="corrected")(right)
    assert op(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert torch.ops.vllm_ir.corrected(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("function", "declared"),
    [
        (other_name, {}),
        (other_type, {}),
        (two, {"inplace": True}),
        (two, {"supports_args": shorter_predicate}),
        (two, {"supported": "cuda"}),
    ],
)
def test_a_corrected_implementation_works_under_the_same_name(function: Any, declared: dict[str, Any]) -> None:
    """What failed has not taken the provider's name in the op, and the op still runs."""
    op = op_of_two()
    with pytest.raises(errors.DeclarationError):
        op.register_impl("fast", **declared)(function)
    assert list(op.impls) == ["native"]
    assert op(torch.ones(1)).item() == 2.0
    op.register_impl("fast")(functools.partial(_thirds, 3))
    with op.set_priority(["fast"]):
        assert op(torch.ones(1)).item() == 6.0


def _thirds(factor: int, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Return x times a scale times a factor that is given beforehand."""
    return x * scale * factor


def test_the_same_mistakes_fail_the_same_under_optimisation() -> None:
    """`python -O` drops asserts, so no check may be one: classes and sentences do not change."""
    script = f"import runpy; runpy.run_path({__file__!r}, run_name='optimised')"
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told.pop("optimised") is True
    assert set(told) == set(MISTAKES)
    for name, mistake in MISTAKES.items():
        kind, sentence, where = told[name]
        assert kind == mistake.kind.__name__, name
        assert fits(mistake, sentence, where), sentence


def main() -> None:
    """Make every mistake and write what it raised, for the test above."""
    told: dict[str, object] = {"optimised": not __debug__}
    for name, mistake in MISTAKES.items():
        with isolated():
            op_of_two()
        with isolated():
            error = fail(mistake)
        told[name] = (type(error).__name__, str(error), str(getattr(error, "where", "")))
    sys.stdout.write(json.dumps(told))


if __name__ == "optimised":
    main()
