"""What an author of a kernel reads who makes a torch op of it, or calls one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Sequence


class TorchNameTaken(DeclarationError):
    """A kernel that is to become a torch op under a name that torch has already."""

    def __init__(self, *, op: str, name: str) -> None:
        self.op, self.name = op, name
        super().__init__(
            f"A kernel of op {op!r} cannot become torch op {name!r}: that one is defined already."
            " Make it once, at the top of a module, or choose a namespace of your own.",
            op=op,
            name=name,
        )


class NoInplaceForm(DeclarationError):
    """A torch op that is given tensors to write, and has no form for that."""

    def __init__(self, *, op: str, name: str) -> None:
        self.op, self.name = op, name
        super().__init__(
            f"Torch op {name!r} has no form that writes its inputs: op {op!r} does not allow in-place, or it was made"
            " with writes=(). Call it without donating.",
            op=op,
            name=name,
        )


class UnfitResult(DeclarationError):
    """A kernel's result that is not what torch was told, or not like the activation which it is to lie in."""

    def __init__(self, *, op: str, name: str, kernel: str, got: str, wanted: str, fix: str) -> None:
        self.op, self.name, self.kernel, self.got, self.wanted, self.fix = op, name, kernel, got, wanted, fix
        super().__init__(
            f"Torch op {name!r}: kernel {kernel!r} of op {op!r} returned {got}, wanted {wanted}. {fix}",
            op=op,
            name=name,
            kernel=kernel,
            got=got,
            wanted=wanted,
            fix=fix,
        )


class SharedDonation(DeclarationError):
    """A graph that writes two tensors, and is given two that lie in the same memory."""

    def __init__(self, *, op: str, name: str, parameters: Sequence[str]) -> None:
        self.op, self.name, self.parameters = op, name, tuple(parameters)
        one, other = self.parameters
        super().__init__(
            f"Torch op {name!r} of op {op!r} writes {one!r} and {other!r}, which lie in the same memory: it cannot hold"
            " both results. A graph that was made for tensors of their own is not made anew for such; donate copies,"
            " or call the op without donating.",
            op=op,
            name=name,
            parameters=self.parameters,
        )
