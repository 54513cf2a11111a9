"""What is read when processes do not agree, or when what is asked of a process cannot be told by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import ConfigurationError, SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence


class SelectionsDiffer(SelectionError):
    """Ranks of one group that do not run the same kernels.

    Args:
        ranks: how many there are.
        differences: each entry in which they differ, and who has what.
    """

    def __init__(self, *, ranks: int, differences: Sequence[tuple[str, str]]) -> None:
        self.ranks, self.differences = ranks, tuple(differences)
        told = " | ".join(f"{entry}: {who}" for entry, who in differences)
        super().__init__(
            f"{ranks} ranks do not select the same kernels. They differ in {told}."
            " Install the same wheels and set the same variables on all of them; `vllm-ir doctor` on each tells more.",
            ranks=ranks,
            differences=tuple(differences),
        )


class NotDistributed(ConfigurationError):
    """A question to all ranks in a process that knows of none."""

    def __init__(self, *, wanted: str) -> None:
        self.wanted = wanted
        super().__init__(
            f"vllm_ir.{wanted} asks all ranks of torch.distributed, which is not initialised in this process."
            " Call torch.distributed.init_process_group first, or compare vllm_ir.selection_digest() by other means.",
            wanted=wanted,
        )


class NoWorkingFolder(ConfigurationError):
    """A process in a folder that is not there any more, so that nobody knows whether it has settings."""

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"The working folder of this process cannot be found ({reason}), and settings are read from it."
            " Go to a folder that is there: cd.",
            reason=reason,
        )


class UnwritableOutput(ConfigurationError):
    """An answer that nobody can be given."""

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"The answer is lost: stdout cannot be written ({reason}). Send it to a terminal, a pipe, or a file on a"
            " disk with room.",
            reason=reason,
        )


class PrometheusMissing(ConfigurationError):
    """Counts that are to be exported where the library that does so is not installed."""

    def __init__(self, *, wanted: str) -> None:
        self.wanted = wanted
        super().__init__(
            f"{wanted} needs prometheus_client, which is not installed here: pip install 'vllm-ir[prometheus]'.",
            wanted=wanted,
        )
