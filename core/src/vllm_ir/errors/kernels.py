"""What an author of a kernel reads who makes a torch op of it, or calls one."""

from __future__ import annotations

from vllm_ir.errors.base import DeclarationError


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
    """A kernel's result that is not like the activation which it is to lie in."""

    def __init__(self, *, op: str, name: str, parameter: str, got: str, wanted: str) -> None:
        self.op, self.name, self.parameter, self.got, self.wanted = op, name, parameter, got, wanted
        super().__init__(
            f"Torch op {name!r}: the kernel of op {op!r} returned {got} for {parameter!r}, which is {wanted}."
            " Name in writes=[...] the activations that its last results come to lie in.",
            op=op,
            name=name,
            parameter=parameter,
            got=got,
            wanted=wanted,
        )
