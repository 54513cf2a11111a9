"""A process state for an author's unit tests: it holds what the test adds, and refuses to discover what is installed.

Which providers a machine happens to have must not decide whether an author's test is green.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from vllm_ir import runtime
from vllm_ir.isolation import isolated
from vllm_ir.once import Once

from vllm_ir_testkit.errors import RealDiscoveryRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self
    from vllm_ir import IrOpImpl, Platform
    from vllm_ir.plugins.discovery import Finished
    from vllm_ir.plugins.distributions import Installed
    from vllm_ir.plugins.outcome import Discovery
    from vllm_ir.plugins.records import DistributionRecord

    from vllm_ir_testkit.outcome import Report


class Given(Once[Any]):
    """A discovery whose result a test gives.

    Attributes:
        found: what was given so far.
    """

    found: Discovery | None = None

    @property
    def result(self) -> Discovery | None:
        """What was given."""
        return self.found

    def get(self, run: Callable[[], Any]) -> Discovery:
        """Return what was given, and never look at what is installed.

        Raises:
            RealDiscoveryRefused: nothing was given.
        """
        del run
        if self.found is None:
            raise RealDiscoveryRefused
        return self.found


class TestManager:
    """A fresh state while open, with native implementations and what is added.

    Args:
        variables: the environment variables that hold, such as {"VLLM_IR_STRICT": "1"}; none when None.
    """

    __test__ = False  # pytest would take the name for a class of tests

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        self._stack = contextlib.ExitStack()
        self._given = Given()
        self._installed: list[Installed] = []
        self._finished: Finished = {}

    def __enter__(self) -> Self:
        """Put the fresh state in place."""
        from vllm_ir import ops  # noqa: F401 - the core's ops are there before the state is taken apart

        self._stack.enter_context(isolated(self._variables, discovery=self._given))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the old state back."""
        self._stack.close()

    def add(self, *implementations: IrOpImpl) -> None:
        """Register implementations made with `implements`, all or none.

        Raises:
            DeclarationError, ConfigurationError: one does not fit its op.
        """
        from vllm_ir.staging import transaction

        with transaction(None) as staging:
            staging.add_implementations(implementations)

    def load(self, provider: str, module: str, platform: Platform | None = None) -> DistributionRecord:
        """Load a hooks module and the manifest beside it as discovery would load an installed distribution.

        Args:
            provider: the provider's name, as the entry point would have it.
            module: the module with the hooks, as the entry point would name it.
            platform: the machine; the real one when None.

        Returns:
            the record of the distribution, which is loaded or says why not.
        """
        from vllm_ir.plugins.discovery import discover
        from vllm_ir.plugins.distributions import EntryPoint, Installed

        state = runtime.current()
        name = f"under-test-{provider}"
        self._installed.append(Installed(name, "0", "", (EntryPoint(provider, module, None),), (), ()))
        found = discover(state.environment, platform or state.platform, self._installed, finished=self._finished)
        self._given.found = found
        state.adopt(found.landscape)
        return next(record for record in found.distributions if record.name == name)

    def conformance(self, provider: str, ops: Iterable[str] = (), checks: Iterable[str] = ()) -> Report:
        """Judge a provider that was added or loaded.

        Args:
            provider: its name.
            ops: the ops to judge; all when empty.
            checks: the checks to run; all when empty.

        Raises:
            NoSuchProvider, NoSuchOp, NoSuchCheck: a name does not fit.
        """
        from vllm_ir_testkit.engine import conformance

        return conformance(provider, tuple(ops), tuple(checks))
