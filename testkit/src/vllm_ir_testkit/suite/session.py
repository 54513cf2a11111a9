"""One pytest run over one provider: its plan, and the outcomes so far."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from vllm_ir.errors import IrError

from vllm_ir_testkit import checks, engine, known, rendering
from vllm_ir_testkit.plan import make_plan
from vllm_ir_testkit.suite import options

if TYPE_CHECKING:
    from vllm_ir_testkit.known import KnownFailure
    from vllm_ir_testkit.outcome import Outcome
    from vllm_ir_testkit.plan import Plan
    from vllm_ir_testkit.subject import Subject


@dataclass(slots=True)
class Session:
    """A run over one provider.

    Attributes:
        plan: what can be judged of it.
        known: known failures beside those that its package carries.
        outcomes: what was found so far.
    """

    plan: Plan
    known: tuple[KnownFailure, ...] = ()
    outcomes: list[Outcome] = field(default_factory=list)

    @classmethod
    def of(cls, config: pytest.Config) -> Session | None:
        """Return the session that the options ask for, made at the first question; None where no provider is named.

        Raises:
            pytest.UsageError: a name or a file does not fit.
        """
        provider: Any = config.getoption(options.PROVIDER)
        if provider is None:
            return None
        found = config.stash.get(SESSION, None)
        if found is None:
            try:
                entries = [entry for file in config.getoption(options.KNOWN) for entry in known.read(Path(file))]
                found = cls(make_plan(provider, config.getoption(options.OPS)), tuple(entries))
            except IrError as error:
                raise pytest.UsageError(str(error)) from error
            config.stash[SESSION] = found
        return found

    def items(self) -> list[tuple[Subject, str]]:
        """Return one pair of op and check for each test."""
        return [(subject, name) for subject in self.plan.subjects for name in checks.NAMES]

    def judge(self, subject: Subject, name: str) -> Outcome:
        """Run one check on one op and keep the outcome."""
        outcome = engine.judge(subject, name, self.plan, self.known)
        self.outcomes.append(outcome)
        return outcome

    def finish(self, file: str | None) -> str:
        """Return the table of the run, and write it as JSON where a file is given."""
        report = engine.report(self.plan, self.outcomes)
        if file is not None:
            Path(file).write_text(json.dumps({"version": "1", **report.describe()}, indent=2) + "\n", encoding="utf-8")
        return rendering.markdown(report)


SESSION: Final[pytest.StashKey[Session]] = pytest.StashKey()
"""Where a run's session is kept."""
