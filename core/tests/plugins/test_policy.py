"""The operator's lists held against what is installed: which names are errors, and which are doubted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.environment import Environment
from vllm_ir.errors import ConfigurationError, UnknownAllowed, UnknownAllowedOp
from vllm_ir.plugins.policy import Policy, check, doubts
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = ("triton", "vllm-ir-provider-triton", "vllm_c", "vllm-ir-provider-vllm-c", "native", "vllm-ir")
OPS = ("rms_norm", "silu_and_mul")
LISTS = st.lists(st.sampled_from([*KNOWN, "Vllm-C", "triton:rms_norm", "*", "other", "other:rms_norm"]), max_size=4)


def policy(settings: Settings | None = None, **variables: str) -> Policy:
    """Return what variables and a file say."""
    return Policy.read(Environment.read(variables), settings or Settings())


@given(LISTS)
def test_an_unknown_allowed_name_is_an_error(allowed: list[str]) -> None:
    """Exactly the lists with a name that nothing has are refused."""
    asked = policy(VLLM_IR_PROVIDERS=",".join(allowed))
    strangers = [name for name in allowed if name.startswith("other")]
    if strangers:
        with pytest.raises(UnknownAllowed) as caught:
            check(asked, KNOWN)
        assert (caught.value.name, caught.value.variable) == (strangers[0], "VLLM_IR_PROVIDERS")
    else:
        check(asked, KNOWN)


def test_the_error_suggests_what_was_meant() -> None:
    """A misspelling is told with the names there are, and what to do."""
    with pytest.raises(ConfigurationError, match=r"Did you mean 'triton'.*Install it, or take it out"):
        check(policy(VLLM_IR_PROVIDERS="tritn"), KNOWN)


def test_a_file_may_allow_what_is_installed_elsewhere(tmp_path: Path) -> None:
    """One file serves a fleet; what looks like a mistake in it is doubted."""
    asked = policy(Settings(tmp_path / "policy.toml", allow=("something_else", "tritn")))
    check(asked, KNOWN)
    (doubt,) = doubts(asked, KNOWN, OPS)
    assert doubt == (
        f"allow in {tmp_path / 'policy.toml'} names 'tritn', which nothing here has. Did you mean 'triton'?"
    )


def test_only_a_denied_name_that_looks_like_a_mistake_is_doubted() -> None:
    """A deny list may name what other machines have installed."""
    assert doubts(policy(VLLM_IR_PROVIDERS_DISABLED="something_else,triton,*,triton:rms_norm"), KNOWN, OPS) == ()
    (doubt,) = doubts(policy(VLLM_IR_PROVIDERS_DISABLED="tritn"), KNOWN, OPS)
    assert doubt == "VLLM_IR_PROVIDERS_DISABLED names 'tritn', which nothing here has. Did you mean 'triton'?"


def test_an_op_that_looks_like_a_mistake_is_doubted() -> None:
    """A rule about an op that nobody has would deny nothing."""
    (doubt,) = doubts(policy(VLLM_IR_PROVIDERS_DISABLED="triton:rms_nrom,triton:an_op_of_elsewhere"), KNOWN, OPS)
    assert doubt == (
        "VLLM_IR_PROVIDERS_DISABLED names 'triton:rms_nrom', and no installed provider has an op 'rms_nrom'."
        " Did you mean 'rms_norm'?"
    )


def test_a_variable_that_denies_native_is_doubted() -> None:
    """It always stays, and the operator is told."""
    (doubt,) = doubts(policy(VLLM_IR_PROVIDERS_DISABLED="native"), KNOWN, OPS)
    assert "native is what every op means and always stays" in doubt


@pytest.mark.parametrize("entry", ["triton:rms_nrom", "triton:elsewhere", "*:rms_nrom"])
def test_an_allowed_op_that_nothing_has_is_an_error(entry: str) -> None:
    """Everything else would be left to native for a slip of the pen."""
    with pytest.raises(UnknownAllowedOp) as caught:
        check(policy(VLLM_IR_PROVIDERS=f"triton,{entry}"), KNOWN, OPS)
    assert str(caught.value).startswith(f"VLLM_IR_PROVIDERS names {entry!r}, and no installed provider has an op")
    assert ("Did you mean 'rms_norm'?" in str(caught.value)) == ("nrom" in entry)


def test_an_allowed_op_that_may_be_there_is_none() -> None:
    """An op of the program itself, which all may run; and any, where a manifest could not be read."""
    check(policy(VLLM_IR_PROVIDERS="triton:rms_norm,*:an_op_of_the_program"), KNOWN, OPS)
    check(policy(VLLM_IR_PROVIDERS="triton:rms_nrom"), KNOWN, None)


@pytest.mark.parametrize("entry", ["rms_norm", "RMS-norm:silu_and_mul"])
def test_an_op_in_a_provider_s_place_is_doubted(entry: str, tmp_path: Path) -> None:
    """No machine of a fleet has a provider of that name."""
    file = tmp_path / "policy.toml"
    (doubt,) = doubts(policy(Settings(file, deny=(entry,))), KNOWN, OPS)
    written = entry.partition(":")[0]
    assert doubt == (
        f"deny in {file} names {written!r}, which is an op and no provider, so it means nothing. Name a provider (there"
        f" are: 'triton', 'vllm-ir-provider-triton', 'vllm_c', 'vllm-ir-provider-vllm-c', 'native', 'vllm-ir'), or"
        f" write '*:{written}' for that op of all."
    )
