"""Who may run what: variables and files as one predicate, over many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.environment import Environment
from vllm_ir.errors import MalformedSettings, MalformedVariable
from vllm_ir.policy import Policy, Rule, Source
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PROVIDERS = {"triton": "vllm-ir-provider-triton", "vllm_c": "vllm-ir-provider-vllm-c"}
OPS = ("rms_norm", "silu_and_mul")
NAMES = st.sampled_from(
    ["triton", "Vllm-C", "vllm_c", "VLLM_IR_provider.triton", "vllm-ir-provider-vllm-c", "*", "other"]
)
TEXTS = st.tuples(NAMES, st.sampled_from(["", *(f":{op}" for op in OPS)])).map("".join)
LISTS = st.lists(TEXTS, max_size=4, unique=True).map(tuple)
FILES = st.builds(
    Settings,
    file=st.just("policy.toml"),
    allow=st.none() | LISTS,
    deny=LISTS,
    strict=st.booleans(),
    require=st.sampled_from([(), ("batch_invariant",)]),
)
VARIABLES = st.builds(
    Environment, providers=st.none() | LISTS, disabled=LISTS, strict=st.booleans(), batch_invariant=st.booleans()
)
ASKED = st.tuples(st.sampled_from(sorted(PROVIDERS)), st.sampled_from([None, *OPS]))


def means(text: str, provider: str, op: str | None, *, any_op: bool) -> bool:
    """Tell whether an entry of a list is about an op of a provider, by the words of the page."""
    name, _, only = text.partition(":")
    spelt = name.lower().replace("_", "-").replace(".", "-")
    return spelt in {"*", provider.replace("_", "-"), PROVIDERS[provider]} and (not only or only == op or any_op)


def may(allow: Iterable[str] | None, deny: Iterable[str], provider: str, op: str | None) -> bool:
    """Tell what one pair of lists says, by the words of the page."""
    if any(means(text, provider, op, any_op=False) for text in deny):
        return False
    return allow is None or any(means(text, provider, op, any_op=op is None) for text in allow)


@given(FILES, VARIABLES, ASKED)
def test_every_source_narrows_and_none_widens(
    settings: Settings, environment: Environment, asked: tuple[str, str | None]
) -> None:
    """A provider may run an op when each source by itself would let it; what holds strictly, holds when one asks."""
    provider, op = asked
    policy = Policy.read(environment, settings)
    refusal = policy.refuse(provider, PROVIDERS[provider], op)
    by_file = may(settings.allow, settings.deny, provider, op)
    by_variables = may(environment.providers, environment.disabled, provider, op)
    assert (refusal is None) == (by_file and by_variables)
    if refusal is not None:
        assert (refusal.file is None) == by_file
        assert refusal.op == op
    assert policy.strict == (settings.strict or environment.strict)
    assert policy.batch_invariant == (bool(settings.require) or environment.batch_invariant)
    assert (policy.refuse_variant(batch_invariant=False) is None) == (not policy.batch_invariant)
    assert policy.refuse_variant(batch_invariant=True) is None


@given(FILES, VARIABLES, ASKED)
def test_who_may_run_an_op_may_load(
    settings: Settings, environment: Environment, asked: tuple[str, str | None]
) -> None:
    """The question about loading is about any op, so it never refuses what one op needs."""
    provider, op = asked
    policy = Policy.read(environment, settings)
    if policy.refuse(provider, PROVIDERS[provider], op) is None:
        assert policy.refuse(provider, PROVIDERS[provider]) is None


@given(FILES, VARIABLES, st.sampled_from([None, *OPS]))
def test_native_is_never_refused(settings: Settings, environment: Environment, op: str | None) -> None:
    """Without its fallback nothing would run."""
    assert Policy.read(environment, settings).refuse("native", "vllm-ir", op) is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a", Rule("a", "a", None)),
        (" Vllm_C ", Rule(" Vllm_C ", "vllm-c", None)),
        ("a.b-c:rms_norm", Rule("a.b-c:rms_norm", "a-b-c", "rms_norm")),
        ("*:rms_norm", Rule("*:rms_norm", "*", "rms_norm")),
        ("a : rms_norm", Rule("a : rms_norm", "a", "rms_norm")),
        ("a:", None),
        (":rms_norm", None),
        ("a:b:c", None),
        ("a:*", None),
        ("a*", None),
        ("a/b", None),
        ("", None),
    ],
)
def test_an_entry_of_a_list(text: str, rule: Rule | None) -> None:
    """A provider or a distribution, alone or with one op, or a star for all providers."""
    assert Rule.read(text) == rule


def test_an_entry_that_cannot_be_read_names_its_list(tmp_path: Path) -> None:
    """The variable, or the file with its key."""
    with pytest.raises(MalformedVariable, match=r"VLLM_IR_PROVIDERS_DISABLED='a:b:c' cannot be read, wanted names"):
        Policy.read(Environment(disabled=("a:b:c",)), Settings())
    with pytest.raises(MalformedVariable, match=r"VLLM_IR_PROVIDERS='a:' cannot be read"):
        Policy.read(Environment(providers=("a:",)), Settings())
    file = tmp_path / "policy.toml"
    with pytest.raises(MalformedSettings, match=r"policy.toml: allow has 'a:', which names no provider. Write allow"):
        Policy.read(Environment(), Settings(file, allow=("a:",)))


@pytest.mark.parametrize("text", ["native", "Native", "native:rms_norm"])
def test_a_file_that_denies_native_is_refused(tmp_path: Path, text: str) -> None:
    """A rule that cannot be kept is no rule."""
    with pytest.raises(
        MalformedSettings, match=f"deny has '{text}', and native is what every op means and always stays"
    ):
        Policy.read(Environment(), Settings(tmp_path / "policy.toml", deny=(text,)))


def test_the_policy_file_and_the_settings_file_both_hold(tmp_path: Path) -> None:
    """The first refusal is the policy's; the settings refuse what it leaves."""
    policy_file, own = tmp_path / "policy.toml", tmp_path / "vllm-ir.toml"
    policy_file.write_text('deny = ["a"]')
    own.write_text('deny = ["b"]\nop-priority.rms_norm = "c"')
    policy = Policy.read(Environment(policy=str(policy_file)), Settings.read(tmp_path))
    assert [bool(policy.refuse(name, None)) for name in "abc"] == [True, True, False]
    refusal = policy.refuse("a", "dist-a", "rms_norm")
    assert str(refusal) == (
        f"Provider 'a' of dist-a is denied for op 'rms_norm': deny = [\"a\"] in {policy_file} denies it."
    )
    assert policy.files == (str(policy_file), str(own))


def test_a_policy_file_that_is_the_settings_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the two paths are written differently; there it may have an order, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm-ir.toml").write_text('deny = ["a"]\nop-priority.rms_norm = "c"')
    policy = Policy.read(Environment(policy="./vllm-ir.toml"))
    assert len(policy.sources) == 2
    assert policy.refuse("a", None) is not None


def test_a_policy_file_below_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilde that no shell has read is read here."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "policy.toml").write_text("strict = true")
    assert Policy.read(Environment(policy="~/policy.toml"), Settings()).strict


def test_a_policy_file_that_is_not_there_stops() -> None:
    """Nobody runs unprotected because of a misspelt path."""
    with pytest.raises(MalformedSettings, match=r"nowhere.toml: it cannot be read: No such file"):
        Policy.read(Environment(policy="nowhere.toml"), Settings())


def test_who_asks_for_batch_invariance_is_said(tmp_path: Path) -> None:
    """The variable, or the file."""
    file = tmp_path / "policy.toml"
    by_variable = Policy((Source(batch_invariant=True),)).refuse_variant(batch_invariant=False)
    by_file = Policy((Source(str(file), batch_invariant=True),)).refuse_variant(batch_invariant=False)
    assert by_variable == "it is not declared batch-invariant, which VLLM_BATCH_INVARIANT=1 asks for"
    assert by_file == f'it is not declared batch-invariant, which require = ["batch_invariant"] in {file} asks for'


def test_a_distribution_denied_by_its_own_name(tmp_path: Path) -> None:
    """For the verbs it brings; a rule about one op, or about all providers, is not about it."""
    file = str(tmp_path / "policy.toml")
    policy = Policy.read(
        Environment(disabled=("*", "Dist.B")), Settings(tmp_path / "policy.toml", deny=("dist-a", "c:o"))
    )
    assert [policy.denies(name) for name in ("Dist_A", "dist-b", "c", "d")] == [
        f"deny in {file}", "VLLM_IR_PROVIDERS_DISABLED", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "allow", "deny"),
    [
        ({}, None, ()),
        ({"VLLM_IR_PROVIDERS": ""}, (), ()),
        ({"VLLM_IR_PROVIDERS": " a , b:rms_norm ,a,"}, ("a", "b:rms_norm"), ()),
        ({"VLLM_IR_PROVIDERS_DISABLED": " * "}, None, ("*",)),
    ],
)
def test_the_variables_are_read_as_the_page_says(
    variables: dict[str, str], allow: tuple[str, ...] | None, deny: tuple[str, ...]
) -> None:
    """Unset is all, empty is none, spaces are stripped, repetitions kept once."""
    source = Source.of_variables(Environment.read(variables))
    assert (None if source.allow is None else tuple(rule.text for rule in source.allow)) == allow
    assert tuple(rule.text for rule in source.deny) == deny


def test_an_empty_list_of_a_file_is_told_as_it_is_written(tmp_path: Path) -> None:
    """And so is one with several."""
    file = tmp_path / "policy.toml"
    for text in ("allow = []", 'allow = ["a", "b:rms_norm"]'):
        file.write_text(text)
        refusal = Policy.read(Environment(policy=str(file)), Settings()).refuse("triton", None)
        assert str(refusal) == f"Provider 'triton' is denied: {text} in {file} does not list it."


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (Environment(disabled=("a", "triton")), "VLLM_IR_PROVIDERS_DISABLED='a,triton' denies it"),
        (Environment(providers=()), "VLLM_IR_PROVIDERS='' does not list it"),
    ],
)
def test_the_refusal_says_which_list_it_was(environment: Environment, said: str) -> None:
    """The operator finds the variable and its value in the reason."""
    refusal = Policy.read(environment, Settings()).refuse("triton", "vllm-ir-provider-triton")
    assert refusal is not None
    assert said in str(refusal)
    assert not refusal.fault
