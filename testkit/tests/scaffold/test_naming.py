"""The names of a new provider."""

from __future__ import annotations

import pytest
from vllm_ir_testkit.errors import BadProviderName
from vllm_ir_testkit.scaffold import naming


@pytest.mark.parametrize(
    "text", ["acme_sample", "acme-sample", "vllm-ir-provider-acme-sample", "vllm_ir_provider_acme_sample"]
)
def test_however_it_is_written_the_names_follow(text: str) -> None:
    """Hyphens and underscores, with and without the custom prefix."""
    names = naming.read(text, {})
    assert names.provider == "acme_sample"
    assert names.distribution == "vllm-ir-provider-acme-sample"
    assert names.package == "vllm_ir_provider_acme_sample"
    assert names.title == "Acme Sample"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lower-case letters"),
        ("9lives", "begins with a letter"),
        ("Demo", "lower-case letters"),
        ("de mo", "lower-case letters"),
        ("import", "keyword of Python"),
        ("unfused", "keeps that name for itself"),
        ("_demo", "underscore at either end"),
        ("demo-", "underscore at either end"),
        ("taken", "dist-taken, which is installed, has it"),
        ("testkit", None),
    ],
)
def test_a_name_that_cannot_be_had_is_refused(text: str, reason: str | None) -> None:
    """Each with its own reason."""
    if reason is None:
        assert naming.read(text, {}).provider == text
        return
    with pytest.raises(BadProviderName, match=reason):
        naming.read(text, {"taken": "dist-taken"})


def test_installed_distributions_and_packages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one of that name would shadow the first."""
    monkeypatch.setattr(naming, "PREFIX", "")
    with pytest.raises(BadProviderName, match="a distribution pytest is installed"):
        naming.read("pytest", {})
    with pytest.raises(BadProviderName, match="a package json can be imported already"):
        naming.read("json", {})
