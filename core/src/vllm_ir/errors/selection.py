"""What a user reads when an op is called and no implementation may take the call, or the call is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import CallError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence


class NoImplementation(SelectionError):
    """Every candidate refused, or none was admitted."""

    def __init__(self, *, op: str, refusals: Sequence[tuple[str, str]], batch_invariant: bool = False) -> None:
        self.op, self.refusals, self.batch_invariant = op, tuple(refusals), batch_invariant
        why = "; ".join(f"{provider}: {reason}" for provider, reason in refusals) or "there is no candidate"
        mode = (
            " Batch invariance is asked for: only implementations declared batch-invariant are admitted."
            if batch_invariant
            else ""
        )
        super().__init__(
            f"No implementation of op {op!r} may run: {why}.{mode} Install a provider that can, or change the"
            " priority; `vllm-ir explain " + op + "` shows every candidate.",
            op=op,
            refusals=tuple(refusals),
            batch_invariant=batch_invariant,
        )


class RefusedArguments(SelectionError):
    """Strict mode: a provider the user named refused these arguments."""

    def __init__(self, *, op: str, provider: str, reason: str, layer: str) -> None:
        self.op, self.provider, self.reason, self.layer = op, provider, reason, layer
        super().__init__(
            f"Provider {provider!r}, named for op {op!r} by {layer}, refused the call: {reason}."
            " Strict mode does not fall back; unset VLLM_IR_STRICT, or strict in the file that sets it, to let the next"
            " provider take it.",
            op=op,
            provider=provider,
            reason=reason,
            layer=layer,
        )


class PredicateFailed(SelectionError):
    """Strict mode: a `supports_args` raised, or returned what is no verdict."""

    def __init__(self, *, op: str, provider: str, reason: str) -> None:
        self.op, self.provider, self.reason = op, provider, reason
        super().__init__(
            f"supports_args of op {op!r} by provider {provider!r} gave no verdict: {reason}."
            " Return a bool or Unsupported(sentence); without strict mode the provider is skipped.",
            op=op,
            provider=provider,
            reason=reason,
        )


class WrongArgument(CallError):
    """An argument that the op cannot mean anything with."""

    def __init__(self, *, op: str, parameter: str, got: str, wanted: str) -> None:
        self.op, self.parameter, self.got, self.wanted = op, parameter, got, wanted
        super().__init__(
            f"{op}(): argument {parameter!r} is {got}, wanted {wanted}.",
            op=op,
            parameter=parameter,
            got=got,
            wanted=wanted,
        )


class WrongCall(CallError):
    """A call whose arguments do not fit the op's signature."""

    def __init__(self, *, op: str, problem: str, signature: str) -> None:
        self.op, self.problem, self.signature = op, problem, signature
        super().__init__(
            f"{op}(): {problem}. Its signature is {op}{signature}.", op=op, problem=problem, signature=signature
        )
