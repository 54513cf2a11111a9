"""What one compilation goes by: orders, implementations, passes and switches, read once in the context that compiles.

Everything behind it works on the plan and never asks the runtime, since Inductor may compile a backward graph later and
in another thread. Its digest is what caches tell graphs apart by.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_ir import fingerprint, runtime
from vllm_ir.errors import BrokenPass
from vllm_ir.names import NATIVE
from vllm_ir.orders import check_pinned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vllm_ir.dispatch import Candidate
    from vllm_ir.graphs import BasePass
    from vllm_ir.op import IrOp
    from vllm_ir.priority import Wish

FORMAT = "1"
"""Raised whenever a graph is lowered in another way than before, so that caches forget what they hold."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one compilation goes by.

    Attributes:
        ops: by name.
        orders: each op's candidates in order, for a graph that is compiled, open scopes included.
        passes: run in this order on the graph with the ops in it: the user's, then those of distributions.
        bringers: the distribution of each of the passes; None for the user's.
        batch_invariant: only batch-invariant implementations were admitted.
        strict: raise where a refusal would fall back.
        exact: keep the roundings of the native functions.
        digest: changes with everything that a compiled graph depends on; 64 hexadecimal digits.
    """

    ops: Mapping[str, IrOp]
    orders: Mapping[str, tuple[Candidate, ...]]
    passes: tuple[BasePass, ...] = ()
    bringers: tuple[str | None, ...] = ()
    batch_invariant: bool = False
    strict: bool = False
    exact: bool = False
    digest: str = field(default="", compare=False)

    @classmethod
    def take(
        cls, *, passes: Iterable[BasePass] = (), exact: bool = False, extra: Mapping[str, Wish] | None = None
    ) -> Plan:
        """Return the plan that holds in the current context.

        Args:
            passes: the user's, on the graph with the ops in it.
            exact: keep the roundings of the native functions.
            extra: by op, what goes before everything else.

        Raises:
            ConfigurationError: a layer names what does not exist or cannot run.
            BrokenPass: a pass does not tell its key.
        """
        state = runtime.current()
        state.load()
        with state.lock:
            state.check_names()
            ops = {op.name: op for op in state.registry}
            orders: dict[str, tuple[Candidate, ...]] = {}
            for op in ops.values():
                wishes = state.current_wishes(op)
                if extra is not None and op.name in extra:
                    wishes = (*wishes, extra[op.name])
                orders[op.name] = state.candidates(op, wishes, compiling=True)
                state.check(op, orders[op.name])
                check_pinned(op, orders[op.name], state.landscape, compiling=True)
            policy, brought = state.policy, state.landscape.passes
        own = tuple(passes)
        plan = cls(
            ops=ops,
            orders=orders,
            passes=(*own, *(each for _, each in brought)),
            bringers=(*(None for _ in own), *(distribution for distribution, _ in brought)),
            batch_invariant=policy.batch_invariant,
            strict=policy.strict,
            exact=exact,
        )
        object.__setattr__(plan, "digest", plan._digest(fingerprint.device_architecture(state.platform)))
        return plan

    def _digest(self, architecture: str) -> str:
        """Return the digest of everything that a compiled graph depends on."""
        lines = [
            FORMAT,
            fingerprint.distribution_digest("vllm-ir"),
            architecture,
            f"batch_invariant={self.batch_invariant} strict={self.strict} exact={self.exact}",
            *(_key(each, distribution) for each, distribution in zip(self.passes, self.bringers, strict=True)),
        ]
        for name in sorted(self.ops):
            op = self.ops[name]
            lines.append(f"{name}{op.declaration.schema} {fingerprint.native_digest(op)}")
            for candidate in self.orders[name]:
                if candidate.impl is None or candidate.refusal is not None:
                    continue
                digest = fingerprint.implementation_digest(candidate.impl)
                lines.append(f"  {candidate.entry.provider} required={candidate.entry.required} {digest}")
                if candidate.unconditional and (candidate.entry.required or candidate.impl.provider == NATIVE):
                    # Any other that cannot be put into a graph makes room for the next one.
                    break
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _key(each: BasePass, distribution: str | None) -> str:
    """Return the key of a pass.

    Raises:
        BrokenPass: it gives none.
    """
    try:
        key: object = each.key()
    except Exception as error:
        cause = f"key raised {type(error).__name__}: {error}"
        raise BrokenPass(name=each.name, distribution=distribution, cause=cause) from error
    if not isinstance(key, str):
        raise BrokenPass(name=each.name, distribution=distribution, cause=f"key returned {key!r}, wanted a text")
    return key
