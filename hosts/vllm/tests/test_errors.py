"""Every error is a sentence that names the fix, and comes whole through a pipe to another process."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from vllm_ir_host_vllm import errors

if TYPE_CHECKING:
    from vllm_ir.errors import ConfigurationError

ALL = [
    (errors.NothingToAdopt(version="0.34.0"), "Unset the variable; layers are replaced then."),
    (errors.ListOfAnotherMode(op="rms_norm", provider="fast"), "or unset VLLM_IR_HOST_MODE."),
    (
        errors.UnknownVllmProvider(op="rms_norm", provider="fast", known=["native"], reason=None),
        "`vllm-ir list --all` shows what is there.",
    ),
    (errors.MalformedAdditionalConfig(given="3", problem="wanted an object"), '"native"]}}}\'.'),
]


@pytest.mark.parametrize(("error", "end"), ALL)
def test_a_sentence_with_a_fix_that_pickles(error: ConfigurationError, end: str) -> None:
    """A worker reports its errors by pickling them."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert str(error).endswith(end)


def test_none_is_forgotten() -> None:
    """Every class of the module is in the list above."""
    classes = {each for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__}
    assert classes == {type(error) for error, _ in ALL}
