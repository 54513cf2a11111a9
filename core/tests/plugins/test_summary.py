"""The one line about what discovery found."""

from __future__ import annotations

from vllm_ir.errors import ManifestMissing
from vllm_ir.plugins.records import DistributionRecord, Failure, ProviderRecord, ShadowedCopy
from vllm_ir.plugins.summary import summarise

FAILURE = Failure.of(ManifestMissing(distribution="d", package="p", file="f"))


def test_everything_worth_knowing_is_in_it() -> None:
    """Who serves how many ops here, who does not and why in two words, what is hidden, which file is in force."""
    serves = ProviderRecord("a", "da", "1", "loaded", ("x", "y", "z"), refused_ops=(("y", "no kernel"),))
    fails = ProviderRecord("b", "db", "1", "not usable", failure=FAILURE)
    line = summarise(
        [
            DistributionRecord("da", "1", "/", "a", "a", (serves,), shadowed=(ShadowedCopy("0.9", "/old"),)),
            DistributionRecord("db", "1", "/", "b", "b", (fails,), failure=FAILURE),
            DistributionRecord("dc", "1", "/", "c", "c", (), failure=FAILURE),
        ],
        "/etc/vllm-ir.toml",
    )
    start, digest = line.rsplit(" ", 1)
    assert start == (
        "providers: a serves 2 ops; refused: b (manifest missing), dc (manifest missing);"
        " shadowed: da 0.9; settings: /etc/vllm-ir.toml; digest"
    )
    assert len(digest) == 12


def test_what_is_not_there_is_not_mentioned() -> None:
    """An empty machine has a short line."""
    assert summarise([]).startswith("providers: none; digest ")
    one = DistributionRecord("d", "1", "/", "a", "a", (ProviderRecord("a", "d", "1", "loaded", ("x",)),))
    assert summarise([one]).startswith("providers: a serves 1 op; digest ")


def test_the_files_that_say_who_may_run_are_named() -> None:
    """An operator reads in the log which policy was in force."""
    assert "; policy: /etc/policy.toml, vllm-ir.toml; " in summarise([], None, ("/etc/policy.toml", "vllm-ir.toml"))
    assert "policy" not in summarise([])
