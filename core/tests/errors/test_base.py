"""What holds for every error: a class with facts as attributes, one sentence, and a pickle that is the same."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
from vllm_ir import errors
from vllm_ir.errors import IrError, did_you_mean, listed

SAMPLES: dict[str, Any] = {
    "str": "some_text",
    "str | None": "some_text",
    "int": 3,
    "bool": True,
    "Sequence[str]": ["one", "two"],
    "Iterable[str]": ["one", "two"],
    "Sequence[tuple[str, str]]": [("one", "because"), ("two", "therefore")],
}
WHOLE = ("fix", "reason of LoadingStopped")
"""Facts that are sentences themselves, as whoever raises the error writes them."""

ROOTS = (
    errors.IrError,
    errors.DeclarationError,
    errors.ConfigurationError,
    errors.SelectionError,
    errors.CallError,
    errors.ProviderError,
    errors.ManifestError,
    errors.DistributionConflict,
)
CLASSES = [
    value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, IrError) and name in errors.__all__ and value not in ROOTS
]


def facts_of(kind: type[IrError]) -> dict[str, Any]:
    """Return a value for every fact that a class takes."""
    parameters = inspect.signature(kind.__init__).parameters
    facts = {name: SAMPLES[str(p.annotation)] for name, p in parameters.items() if name != "self"}
    return {
        name: "Do this." if name in WHOLE or f"{name} of {kind.__name__}" in WHOLE else value
        for name, value in facts.items()
    }


def make(kind: Any) -> IrError:
    """Return an error of a class."""
    made: IrError = kind(**facts_of(kind))
    return made


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_has_its_facts_as_attributes(kind: type[IrError]) -> None:
    """Under the names that it takes, all of them by keyword, and sequences as tuples that nobody changes."""
    error = make(kind)
    for name, value in facts_of(kind).items():
        assert getattr(error, name) == (tuple(value) if isinstance(value, list) else value), name
    assert {p.kind for n, p in inspect.signature(kind.__init__).parameters.items() if n != "self"} <= {
        inspect.Parameter.KEYWORD_ONLY
    }


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_pickles(kind: type[IrError]) -> None:
    """By every protocol, with sentence and facts, and again."""
    error = make(kind)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error, protocol)), protocol))  # noqa: S301 - made here
        assert type(copy) is kind
        assert str(copy) == str(error)
        for name in facts_of(kind):
            assert getattr(copy, name) == getattr(error, name)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_sentence_is_one_line_that_ends(kind: type[IrError]) -> None:
    """Logs and command lines show it as it is: no line breaks, no double points, no missing word."""
    sentence = str(make(kind))
    assert sentence == " ".join(sentence.split())
    assert ".." not in sentence.replace("...", "")
    assert "None" not in sentence
    assert sentence.endswith((".", "?")), sentence


def test_the_roots_are_what_python_code_catches() -> None:
    """A ValueError for what was declared or configured, a TypeError for a call, a RuntimeError for what cannot run."""
    assert issubclass(errors.DeclarationError, ValueError)
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.CallError, TypeError)
    for kind in (errors.SelectionError, errors.ProviderError, errors.InternalError):
        assert issubclass(kind, RuntimeError)
    assert issubclass(errors.UnknownOp, AttributeError)
    assert issubclass(errors.IrWarning, UserWarning)
    assert all(issubclass(kind, ROOTS[1:]) or kind is errors.InternalError for kind in CLASSES)


def test_an_inner_fault_asks_for_a_report() -> None:
    """It is nobody's mistake but ours."""
    error = errors.InternalError(what="Two ends met.")
    assert str(error) == "Two ends met. This is a fault in vllm-ir itself; please report it with this text."
    assert error.what == "Two ends met."


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("rms_nrom", ["rms_norm", "silu"], " Did you mean 'rms_norm'?"),
        ("zzz", ["rms_norm", "silu"], ""),
        ("x", [], ""),
        ("fsat", iter(["fast", "silu"]), " Did you mean 'fast'?"),
    ],
)
def test_the_nearest_name(name: str, known: list[str], words: str) -> None:
    """Only where one is near."""
    assert did_you_mean(name, known) == words


def test_names_in_a_row() -> None:
    """Quoted, or the word for none."""
    assert listed(["a", "b"]) == "'a', 'b'"
    assert listed([]) == "none"
