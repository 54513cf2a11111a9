"""Reading `--args`: what is written, what it becomes, and what cannot be read."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.cli.arguments import DTYPES, DtypeSpec, TensorSpec, complete, parse
from vllm_ir.errors import MalformedArguments, MissingArgument, UnknownArgument
from vllm_ir.signature import Signature


def rms_norm(x: object, weight: object, epsilon: float, variance_size: int | None = None) -> None:
    """Stand in for an op's native function."""


SIGNATURE = Signature.read(rms_norm, "a test")


THERE = (
    "There are float64 (f64), float32 (f32), bfloat16 (bf16), float16 (f16), int64 (i64), int32 (i32), int16 (i16),"
    " int8 (i8), uint8 (u8), bool, float8_e4m3fn (fp8, f8e4m3, e4m3fn), float8_e4m3fnuz (f8e4m3fnuz, e4m3fnuz),"
    " float8_e5m2 (f8e5m2, e5m2)"
)


@pytest.mark.parametrize("name", [*DTYPES, *DTYPES.values()])
@pytest.mark.parametrize("prefix", ["", "torch."])
def test_a_dtype_has_torchs_name_or_a_short_one(name: str, prefix: str) -> None:
    """With sizes it is a tensor's, alone it is the dtype; each with torch's name before it or without."""
    full = DTYPES.get(name, name)
    assert parse(f"x={prefix}{name}[2,3]") == {"x": TensorSpec(full, (2, 3))}
    assert parse(f"dtype={prefix}{name}") == {"dtype": DtypeSpec(full, f"{prefix}{name}")}


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
        st.one_of(
            st.builds(TensorSpec, st.sampled_from(sorted(set(DTYPES.values()))), st.tuples(st.integers(0, 9))),
            st.builds(
                TensorSpec,
                st.just("float32"),
                st.tuples(st.integers(0, 9), st.integers(0, 9)),
                st.tuples(st.integers(0, 99), st.integers(0, 9)),
            ),
        ),
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
        (
            "x=bf16[4,sixty]",
            "the sizes of 'x' are '4,sixty', wanted whole numbers of at most 19 digits, none below zero",
        ),
        ("x=bf16[4,64:64]", "'x' has 2 sizes and 1 strides"),
        ("x=bf16[4:]", "'x' has 1 sizes and 0 strides"),
        ("x=bf16[4:one]", "the strides of 'x' are 'one', wanted whole numbers of at most 19 digits, none below zero"),
        ("x=bf16[4:1:1]", "the strides of 'x' are '1:1', wanted whole numbers of at most 19 digits, none below zero"),
        ("x=bf16[\u0664]", "the sizes of 'x' are '\u0664', wanted whole numbers of at most 19 digits, none below zero"),
        ("x=bf16[-1]", "the sizes of 'x' are '-1', wanted whole numbers of at most 19 digits, none below zero"),
        (
            "x=bf16[99999999999999999999,4]",
            "the sizes of 'x' are '99999999999999999999,4', wanted whole numbers of at most 19 digits, none below zero",
        ),
        ("x=bf17[4]", f"'bf17' is no dtype. Did you mean 'bf16'? {THERE}"),
        ("x=e4m3[4]", f"'e4m3' is no dtype. Did you mean 'f8e4m3'? {THERE}"),
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
        complete("rms_norm", SIGNATURE, {"wieght": None})


def test_an_argument_that_is_missing() -> None:
    """Every missing parameter is named at once; one with a default is not missing."""
    with pytest.raises(MissingArgument) as caught:
        complete("rms_norm", SIGNATURE, {"weight": None})
    assert caught.value.missing == ("x", "epsilon")


def test_values_come_in_the_order_of_the_parameters() -> None:
    """In the op's own order, defaults filled in."""
    given = complete("rms_norm", SIGNATURE, parse("epsilon=0.5,weight=none,x=bf16[2,3]"))
    assert list(given.items()) == [
        ("x", TensorSpec("bfloat16", (2, 3))), ("weight", None), ("epsilon", 0.5), ("variance_size", None),
    ]  # fmt: skip


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")
def test_every_short_name_is_a_dtype_of_torch() -> None:
    """A name that we accept exists."""
    import torch

    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES.values())
