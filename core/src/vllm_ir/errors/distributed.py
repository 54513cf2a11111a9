"""What a user reads when a graph pass for several ranks is given a group that cannot be."""

from __future__ import annotations

from vllm_ir.errors.base import ConfigurationError


class NoProcessGroup(ConfigurationError):
    """A pass for several ranks in a process that knows of none."""

    def __init__(self, *, wanted: str) -> None:
        self.wanted = wanted
        super().__init__(
            f"{wanted} works over a process group of torch.distributed, which is not initialised in this process."
            " Call torch.distributed.init_process_group first.",
            wanted=wanted,
        )


class BadProcessGroup(ConfigurationError):
    """What was named as a process group is none, or none that this process is in."""

    def __init__(self, *, wanted: str, got: str) -> None:
        self.wanted, self.got = wanted, got
        super().__init__(
            f"{wanted} works over one process group and got {got}. Give it a process group of torch.distributed that"
            " this process is in, its name, a device mesh of one dimension, or nothing for all ranks.",
            wanted=wanted,
            got=got,
        )
