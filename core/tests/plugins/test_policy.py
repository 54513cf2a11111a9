"""The operator's lists: what they let load, over many lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.environment import Environment
from vllm_ir.errors import ConfigurationError, UnknownAllowed
from vllm_ir.plugins.policy import Policy

KNOWN = ("triton", "vllm-ir-provider-triton", "vllm_c", "vllm-ir-provider-vllm-c", "native", "vllm-ir")
LISTS = st.lists(st.sampled_from([*KNOWN, "Vllm-C", "VLLM_IR_provider.triton", "*", "other"]), max_size=4).map(tuple)


def names(provider: str, distribution: str) -> set[str]:
    """Return every way to name a provider, in one spelling."""
    return {provider.replace("_", "-"), distribution, "*"}


def spelt(listed: tuple[str, ...]) -> set[str]:
    """Return names in one spelling."""
    return {name.lower().replace("_", "-").replace(".", "-") for name in listed}


@given(allowed=st.none() | LISTS, denied=LISTS, provider=st.sampled_from(["triton", "vllm_c"]))
def test_denying_wins_and_either_name_counts(
    allowed: tuple[str, ...] | None, denied: tuple[str, ...], provider: str
) -> None:
    """A provider loads when nothing denies it and, if there is an allow list, something in it names it."""
    distribution = f"vllm-ir-provider-{provider.replace('_', '-')}"
    ways = names(provider, distribution)
    wanted = not (spelt(denied) & ways) and (allowed is None or bool(spelt(allowed) & ways))
    refusal = Policy(allowed, denied).refuse(provider, distribution)
    assert (refusal is None) == wanted
    if refusal is not None:
        assert refusal.allows == (not spelt(denied) & ways)


@given(allowed=st.none() | LISTS, denied=LISTS)
def test_native_is_never_refused(allowed: tuple[str, ...] | None, denied: tuple[str, ...]) -> None:
    """Without its fallback nothing would run."""
    assert Policy(allowed, denied).refuse("native", "vllm-ir") is None


@given(allowed=LISTS)
def test_an_unknown_allowed_name_is_an_error(allowed: tuple[str, ...]) -> None:
    """Exactly the lists with a name that nothing has are refused."""
    policy = Policy(allowed)
    if "other" in allowed:
        with pytest.raises(UnknownAllowed) as caught:
            policy.check(KNOWN)
        assert (caught.value.name, caught.value.variable) == ("other", "VLLM_IR_PROVIDERS")
    else:
        policy.check(KNOWN)


def test_the_error_suggests_what_was_meant() -> None:
    """A misspelling is told with the names there are, and what to do."""
    with pytest.raises(ConfigurationError, match=r"Did you mean 'triton'.*Install it, or take it out"):
        Policy(("tritn",)).check(KNOWN)


def test_only_a_denied_name_that_looks_like_a_mistake_is_doubted() -> None:
    """A deny list may name what other machines have installed."""
    assert Policy(denied=("something_else", "triton", "*")).doubts(KNOWN) == ()
    (doubt,) = Policy(denied=("tritn",)).doubts(KNOWN)
    assert "VLLM_IR_PROVIDERS_DISABLED names 'tritn'" in doubt
    assert "'triton'" in doubt


@pytest.mark.parametrize(
    ("variables", "policy"),
    [
        ({}, Policy(None, ())),
        ({"VLLM_IR_PROVIDERS": ""}, Policy((), ())),
        ({"VLLM_IR_PROVIDERS": " a , b ,a,"}, Policy(("a", "b"), ())),
        ({"VLLM_IR_PROVIDERS_DISABLED": " * "}, Policy(None, ("*",))),
    ],
)
def test_the_variables_are_read_as_the_page_says(variables: dict[str, str], policy: Policy) -> None:
    """Unset is all, empty is none, spaces are stripped, repetitions kept once."""
    assert Policy.read(Environment.read(variables)) == policy


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Policy(denied=("a", "triton")), "VLLM_IR_PROVIDERS_DISABLED='a,triton' denies it"),
        (Policy(allowed=()), "VLLM_IR_PROVIDERS='' does not list it"),
    ],
)
def test_the_refusal_says_which_list_it_was(policy: Policy, said: str) -> None:
    """The operator finds the variable and its value in the reason."""
    refusal = policy.refuse("triton", "vllm-ir-provider-triton")
    assert refusal is not None
    assert said in str(refusal)
    assert not refusal.fault
