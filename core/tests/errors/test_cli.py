"""The sentences of the command line: who, what, which names exist, and the fix; and they survive pickling."""

from __future__ import annotations

import pickle

import pytest
from vllm_ir.errors import (
    BrokenVerb,
    ConfigurationError,
    DeniedVerb,
    DuplicateVerb,
    IrError,
    MalformedArguments,
    MissingArgument,
    ProviderError,
    UnknownArgument,
    UnknownName,
    UnknownVerb,
    WrongArguments,
)

CASES = [
    (
        UnknownVerb(verb="shwo", known=["list", "show"]),
        "vllm-ir has no verb 'shwo' (verbs: list, show). Did you mean 'show'? See vllm-ir --help.",
    ),
    (
        UnknownVerb(verb="run", known=["list"]),
        (
            "vllm-ir has no verb 'run' (verbs: list). It comes with another distribution:"
            " pip install vllm-ir-host-transformers. See vllm-ir --help."
        ),
    ),
    (
        DuplicateVerb(verb="run", distributions=["a", "b"]),
        (
            "Verb 'run' is brought by 2 distributions: 'a', 'b'."
            " Uninstall all but one, or deny the others: VLLM_IR_PROVIDERS_DISABLED=b."
        ),
    ),
    (
        DeniedVerb(verb="run", distribution="a", variable="V"),
        "Verb 'run' comes from a, which is denied by V, so it was not loaded. Change V to use it.",
    ),
    (
        BrokenVerb(verb="run", distribution="a", value="a:main", cause="ImportError: no"),
        "Verb 'run' of a did not load: a:main raised ImportError: no. Reinstall it: pip install --force-reinstall a.",
    ),
    (
        UnknownName(name="rms_nrom", ops=["rms_norm"], providers=["native"]),
        "'rms_nrom' is neither an op (ops: 'rms_norm') nor a provider (providers: 'native'). Did you mean 'rms_norm'?",
    ),
    (
        MalformedArguments(text="x=f33[1]", reason="'f33' is no dtype. Did you mean 'f32'?"),
        (
            "--args 'x=f33[1]' cannot be read: 'f33' is no dtype. Did you mean 'f32'? Write name=value apart by ',',"
            " a tensor as dtype[sizes]: x=bf16[4,64],weight=bf16[64],epsilon=1e-6."
        ),
    ),
    (
        WrongArguments(reason="silu_and_mul(): argument 'x' has 3 columns"),
        "--args are no call of the op: silu_and_mul(): argument 'x' has 3 columns.",
    ),
    (
        MalformedArguments(text="x", reason="'x' is not name=value"),
        (
            "--args 'x' cannot be read: 'x' is not name=value. Write name=value apart by ',', a tensor as dtype[sizes]:"
            " x=bf16[4,64],weight=bf16[64],epsilon=1e-6."
        ),
    ),
    (
        UnknownArgument(op="o", argument="wieght", known=["x", "weight"]),
        "Op 'o' has no argument 'wieght' (arguments: x, weight). Did you mean 'weight'?",
    ),
    (
        MissingArgument(op="o", missing=["x", "epsilon"]),
        (
            "Op 'o' also needs x, epsilon. Add to --args: x=...,epsilon=... (none is written none)."
            " Without --args the op's own example is taken."
        ),
    ),
]


@pytest.mark.parametrize(("error", "sentence"), CASES, ids=lambda value: type(value).__name__)
def test_the_sentence(error: IrError, sentence: str) -> None:
    """A reader learns what went wrong and what to type."""
    assert str(error) == sentence


@pytest.mark.parametrize("error", [case[0] for case in CASES], ids=lambda value: type(value).__name__)
def test_it_pickles(error: IrError) -> None:
    """A worker's error arrives whole, its facts as attributes."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_mistake_of_the_user_is_a_configuration_error() -> None:
    """The exit code follows from the class: 2 for what was typed, 1 for what is broken."""
    kinds = {type(error) for error, _ in CASES if not isinstance(error, ConfigurationError)}
    assert kinds == {BrokenVerb}
    assert issubclass(BrokenVerb, ProviderError)
