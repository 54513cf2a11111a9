"""Loading in a child process, where a crash is only the child's.

`python -m vllm_ir.plugins.probe` is that child; it prints what came of loading as one JSON object. How that looks to
a reader is left to the command line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import IrError
from vllm_ir.plugins.records import NOT_USABLE, Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT: Final = 600.0
"""Seconds after which a child that loads is ended."""

_ENDED: Final = "ended by"


def load_in_child(timeout: float = TIMEOUT) -> dict[str, Any]:
    """Return what a child process finds when it loads every provider.

    Where the child does not survive, each distribution is loaded in a child of its own, to tell which one it was.

    Args:
        timeout: seconds that one child gets.

    Returns:
        an object with `platform`, `distributions` (as `DistributionRecord.describe` gives them), `digest`, `summary`,
        `dropped` and `doubts`; or with `error` and `error_class`, where the operator's lists stop it. What two
        distributions claim is a failure of both.
    """
    whole, end = _child({}, timeout)
    if whole is not None:
        return whole
    nothing, end_of_nothing = _child({"VLLM_IR_PROVIDERS_DISABLED": "*"}, timeout)
    if nothing is None:
        return {"error": f"Loading the core alone: {end_of_nothing or end}.", "error_class": "InternalError"}
    return _one_by_one(nothing, timeout)


def _one_by_one(found: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Return what is found when each distribution is loaded in a child of its own."""
    from vllm_ir.environment import Environment
    from vllm_ir.platforms import detect
    from vllm_ir.plugins.policy import Policy
    from vllm_ir.plugins.static import survey

    environment = Environment.read()
    policy = Policy.read(environment)
    # A child that loads one distribution cannot see what two of them claim; files can.
    files = survey(environment, detect())
    claimed = {each.provider: Failure.of(each).describe() for each in files.conflicts}
    outcome = []
    for one in found["distributions"]:
        names = [each["name"] for each in one["providers"]] or [one["entry_point"]]
        if all(name == "native" or policy.refuse(name, one["name"]) for name in names):
            outcome.append(one)
            continue
        denied = ",".join(other["name"] for other in found["distributions"] if other["name"] != one["name"])
        alone, end = _child({"VLLM_IR_PROVIDERS_DISABLED": ",".join([*environment.disabled, denied])}, timeout)
        mine = next((each for each in (alone or {}).get("distributions", ()) if each["name"] == one["name"]), None)
        outcome.append(_claim(mine or _crashed(one, end or "it said nothing"), claimed))
    return {**found, "distributions": outcome, "doubts": list(files.doubts)}


def _claim(one: dict[str, Any], claimed: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a record in which what another distribution claims, too, has failed."""
    providers = [
        {**each, "state": NOT_USABLE, "failure": claimed[each["name"]]}
        if each["name"] in claimed and each["failure"] is None
        else each
        for each in one["providers"]
    ]
    return {**one, "providers": providers}


def _crashed(one: dict[str, Any], end: str) -> dict[str, Any]:
    """Return the record of a distribution that took its process along."""
    reason = f"Distribution {one['name']} did not load: the process that imported it was {end}."
    failure = {"kind": "broken import", "reason": reason, "fault": True, "traceback": None}
    providers = [{**each, "state": NOT_USABLE, "failure": failure} for each in one["providers"]]
    return {**one, "failure": failure, "providers": providers}


def _child(variables: dict[str, str], timeout: float) -> tuple[dict[str, Any] | None, str | None]:
    """Return what a child printed, or how it ended."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vllm_ir.plugins.probe"],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"{_ENDED} us after {timeout:g} seconds"
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return None, _how_it_ended(done.returncode)
    return (answer, None) if isinstance(answer, dict) else (None, _how_it_ended(done.returncode))


def _how_it_ended(code: int) -> str:
    """Return an exit code in words."""
    if code < 0:
        try:
            return f"{_ENDED} {signal.Signals(-code).name}"
        except ValueError:
            return f"{_ENDED} signal {-code}"
    return f"{_ENDED} exit code {code} before it could report"


def answer() -> dict[str, Any]:
    """Load everything in this process and return what came of it, as values that JSON can hold."""
    from vllm_ir.plugins import discovery

    try:
        found = discovery.load_around_conflicts()
    except IrError as error:
        return {"error": str(error), "error_class": type(error).__name__}
    if found is None:
        return {"error": "Discovery was asked for while it was going on.", "error_class": "InternalError"}
    return {
        "platform": found.platform.describe(),
        "distributions": [record.describe() for record in found.distributions],
        "dropped": [each.describe() for each in found.dropped],
        "doubts": list(found.doubts),
        "digest": found.digest,
        "summary": found.summary,
    }


def main() -> int:
    """Print what came of loading, and nothing else: what providers print while they load goes to stderr."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(answer())
    with os.fdopen(out, "w", encoding="utf-8") as stream:
        stream.write(text)
    return 0


if __name__ == "__main__":
    # Not sys.exit: a provider's threads must not keep the child alive, nor its atexit handlers crash it.
    code = main()
    sys.stderr.flush()
    os._exit(code)
