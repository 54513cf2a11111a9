"""Records: what they say as JSON, how a failure spreads, and what their digest covers."""

from __future__ import annotations

import json
import pickle

from vllm_ir.errors import BrokenImport, DeniedByPolicy
from vllm_ir.plugins.records import (
    LOADED,
    NOT_USABLE,
    DistributionRecord,
    Failure,
    ProviderRecord,
    ShadowedCopy,
    digest,
)

GOOD = ProviderRecord("a", "dist", "1", LOADED, ops=("rms_norm",), platforms=("cpu",))
BROKEN = BrokenImport(distribution="dist", where="import of x", cause="OSError: no")
DENIED = DeniedByPolicy(distribution="dist", provider="b", variable="V", value="b", allows=False)


def distribution(*providers: ProviderRecord, version: str = "1", name: str = "dist") -> DistributionRecord:
    """Return a record of a distribution."""
    return DistributionRecord(name, version, "/somewhere", "a", "dist.hooks", providers)


def test_a_failure_is_that_of_every_provider_without_its_own() -> None:
    """A denied provider stays denied when its distribution breaks."""
    denied = ProviderRecord("b", "dist", "1", "not loaded").refuse(DENIED)
    record = distribution(GOOD, denied).fail(Failure.of(BROKEN, "Traceback"))
    assert [each.failure.kind for each in record.providers if each.failure] == ["broken import", "denied by policy"]
    assert [each.state for each in record.providers] == [NOT_USABLE, NOT_USABLE]
    assert record.providers[0].reason == str(BROKEN)
    assert record.providers[0].failure is not None
    assert record.providers[0].failure.traceback == "Traceback"


def test_records_pickle_and_are_json() -> None:
    """Worker processes send them, and `--json` prints them."""
    record = distribution(GOOD).fail(Failure.of(BROKEN))
    assert pickle.loads(pickle.dumps(record)) == record  # noqa: S301 - our own bytes
    told = json.loads(json.dumps(record.describe()))
    assert told["failure"]["kind"] == "broken import"
    assert told["providers"][0]["state"] == NOT_USABLE
    copy = ShadowedCopy("0.9", "/elsewhere")
    assert copy.describe() == {"version": "0.9", "location": "/elsewhere"}


def test_the_digest_does_not_depend_on_order_or_place() -> None:
    """Two machines with the same wheels in other folders agree."""
    one, two = distribution(GOOD), distribution(name="other")
    moved = DistributionRecord("dist", "1", "/elsewhere", "a", "dist.hooks", (GOOD,))
    assert digest([one, two]) == digest([two, moved])
    assert len(digest([])) == 64


def test_the_digest_sees_versions_and_failures() -> None:
    """A worker that has another version, or in which something broke, does not agree."""
    digests = [
        digest([distribution(GOOD)]),
        digest([distribution(GOOD, version="2")]),
        digest([distribution(GOOD).fail(Failure.of(BROKEN))]),
        digest([distribution(GOOD.refuse(DENIED))]),
        digest([distribution()]),
    ]
    assert len(set(digests)) == len(digests)
