"""What a user of vLLM reads who asked for something that this host cannot give.

All are mistakes of configuration in the sense of `vllm_ir.errors`; vLLM stops with the sentence at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors import ConfigurationError, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class NothingToAdopt(ConfigurationError):
    """Adopt mode was asked for, and this vLLM has no `vllm.ir`."""

    def __init__(self, *, version: str) -> None:
        self.version = version
        super().__init__(
            f"VLLM_IR_HOST_MODE=adopt, but vLLM {version} has no vllm.ir whose ops could take implementations."
            " Unset the variable; layers are replaced then.",
            version=version,
        )


class ListOfAnotherMode(ConfigurationError):
    """vLLM's own priority list names one of our providers while layers are replaced, which do not read that list."""

    def __init__(self, *, op: str, provider: str) -> None:
        self.op, self.provider = op, provider
        super().__init__(
            f"--ir-op-priority.{op} names {provider!r}, but with VLLM_IR_HOST_MODE=layers vLLM's own ops have no"
            f" implementation of that name. Write VLLM_IR_OP_PRIORITY={op}={provider}, or unset VLLM_IR_HOST_MODE.",
            op=op,
            provider=provider,
        )


class UnknownVllmProvider(ConfigurationError):
    """vLLM's own priority list names a provider that neither vLLM nor an installed distribution has."""

    def __init__(self, *, op: str, provider: str, known: Sequence[str], reason: str | None) -> None:
        self.op, self.provider, self.known, self.reason = op, provider, tuple(known), reason
        why = f"cannot run here: {reason.rstrip('.')}" if reason else "is not installed"
        super().__init__(
            f"--ir-op-priority.{op}: provider {provider!r} {why} (op {op!r} has: {listed(known)})."
            f"{did_you_mean(provider, known)} Install or mend its distribution, or take it out of the list;"
            " `vllm-ir list --all` shows what is there.",
            op=op,
            provider=provider,
            known=tuple(known),
            reason=reason,
        )


class MalformedAdditionalConfig(ConfigurationError):
    """What --additional-config says under `vllm_ir` cannot be read."""

    def __init__(self, *, given: str, problem: str) -> None:
        self.given, self.problem = given, problem
        super().__init__(
            f"--additional-config: vllm_ir is {given}: {problem}. Write"
            ' \'{"vllm_ir": {"ir_op_priority": {"rms_norm": ["fast", "native"]}}}\'.',
            given=given,
            problem=problem,
        )
