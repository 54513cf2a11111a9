"""Looking for a call that breaks a demand: Hypothesis draws calls and shrinks what it finds to the simplest.

Every search draws the same calls each time, so that a green run stays green on the same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.errors import Unsatisfiable
from vllm_ir.dispatch import judge

from vllm_ir_testkit import strategies

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

EXAMPLES: Final = 30
"""Legal calls that one search draws."""


class _Broken(Exception):
    """Carries what a demand had to say to the place where the search ends."""


def search(
    subject: Subject, notes: Notes, demand: Callable[[Case, tuple[Any, ...]], str | None], *, refused: bool = False
) -> None:
    """Draw calls until one breaks a demand, and write the simplest such call down.

    Args:
        subject: the op and the provider.
        notes: where cases are counted and the finding is written.
        demand: returns in words what is wrong with a call, or None.
        refused: whether calls that the provider refuses are asked about too.
    """
    last: list[Case] = []

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(strategies.cases(subject.op))
    def drawn(case: Case) -> None:
        """Hold one drawn call against the demand."""
        args = subject.take(case) or ()
        assume(bool(args) and (refused or judge(subject.impl, args) is None))
        notes.tried()
        what = demand(case, args)
        if what is not None:
            last[:] = [case]
            raise _Broken(what)

    try:
        drawn()
    except _Broken as broken:
        notes.fault(last[0], str(broken))
    except Unsatisfiable:
        # The provider refuses whatever is drawn; that nothing was tried shows in the number of cases.
        return
