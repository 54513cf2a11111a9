"""Reading `--args`: what is written, what it becomes, and what cannot be read."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.cli.arguments import DTYPES, TensorSpec, parse, realise
from vllm_ir.errors import MalformedArguments, MissingArgument, UnknownArgument
from vllm_ir.signature import Signature


def rms_norm(x: object, weight: object, epsilon: float, variance_size: int | None = None) -> None:
    """Stand in for an op's native function."""


SIGNATURE = Signature.read(rms_norm, "a test")


def test_tensors_numbers_and_words() -> None:
    """Every kind of value is read as what it looks like."""
    text = "x=bf16[4,64], weight=float32[64],epsilon=1e-6,n=3,m=-2,neox=true,none=None,approximate='tanh',s=f16[]"
    assert parse(text) == {
        "x": TensorSpec("bfloat16", (4, 64)),
        "weight": TensorSpec("float32", (64,)),
        "epsilon": 1e-6,
        "n": 3,
        "m": -2,
        "neox": True,
        "none": None,
        "approximate": "tanh",
        "s": TensorSpec("float16", ()),
    }


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True),
        st.builds(TensorSpec, st.sampled_from(sorted(set(DTYPES.values()))), st.tuples(st.integers(0, 9))),
        max_size=4,
    )
)
def test_what_is_written_is_read_back(arguments: dict[str, TensorSpec]) -> None:
    """A description of tensors survives being written and read."""
    assert parse(",".join(f"{name}={spec}" for name, spec in arguments.items())) == arguments


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bf16[4,64]", "'bf16[4,64]' is not name=value"),
        ("x=bf16[4,64", "a bracket is left open"),
        ("x=bf16[4,sixty]", "the sizes of 'x' are '4,sixty', wanted whole numbers"),
        ("x=bf16[-1]", "the sizes of 'x' are '-1', wanted whole numbers"),
        ("x=bf17[4]", "'bf17' is no dtype Did you mean 'bf16'"),
        ("x=bf16", "tensor 'x' has no sizes, write bf16[4,64]"),
        ("x=1,x=2", "'x' is given twice"),
        ("x=", "the value of 'x' is ''"),
        ("x=$(rm)", "the value of 'x' is '$(rm)'"),
        ("1x=3", "'1x=3' is not name=value"),
    ],
)
def test_what_cannot_be_read_says_which_part(text: str, reason: str) -> None:
    """The error quotes the whole text, names the part, and shows how it is written."""
    with pytest.raises(MalformedArguments) as caught:
        parse(text)
    assert caught.value.reason == reason
    assert caught.value.text == text
    assert "x=bf16[4,64],weight=bf16[64],epsilon=1e-6" in str(caught.value)


def test_an_argument_the_op_does_not_have() -> None:
    """A misspelt name is answered with the nearest one."""
    with pytest.raises(UnknownArgument, match="Did you mean 'weight'"):
        realise("rms_norm", SIGNATURE, {"wieght": None}, "cpu")


def test_an_argument_that_is_missing() -> None:
    """Every missing parameter is named at once; one with a default is not missing."""
    with pytest.raises(MissingArgument) as caught:
        realise("rms_norm", SIGNATURE, {"weight": None}, "cpu")
    assert caught.value.missing == ("x", "epsilon")


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")
def test_tensors_are_made_in_the_order_of_the_parameters() -> None:
    """Values come in the op's own order, defaults filled in."""
    import torch

    arguments = parse("epsilon=0.5,weight=none,x=bf16[2,3]")
    x, weight, epsilon, variance_size = realise("rms_norm", SIGNATURE, arguments, "cpu")
    assert (x.dtype, tuple(x.shape)) == (torch.bfloat16, (2, 3))
    assert (weight, epsilon, variance_size) == (None, 0.5, None)
    (positions,) = realise(
        "op", Signature.read(lambda positions: positions, "a test"), parse("positions=i64[3]"), "cpu"
    )
    assert torch.equal(positions, torch.zeros(3, dtype=torch.int64))


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")
def test_every_short_name_is_a_dtype_of_torch() -> None:
    """A name that we accept exists."""
    import torch

    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES.values())
