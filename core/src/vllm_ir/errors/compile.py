"""What a user or an author reads when a graph cannot be compiled as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors.base import ConfigurationError, DeclarationError, SelectionError, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Sequence


class UsedAfterDonation(DeclarationError):
    """A tensor that was given to `maybe_inplace` is read afterwards."""

    def __init__(self, *, op: str, argument: str, node: str, user: str, where: str, used: str) -> None:
        self.op, self.argument, self.node, self.user, self.where, self.used = op, argument, node, user, where, used
        at = f" (at {where})" if where else ""
        later = f" (at {used})" if used else ""
        super().__init__(
            f"{op}.maybe_inplace{at} donates its argument {argument!r} (graph node {node!r}), and {user!r} reads that"
            f" memory afterwards{later}. A kernel may have written to it by then: call {op}(...) instead, or donate a"
            " copy of it, made with .clone().",
            op=op,
            argument=argument,
            node=node,
            user=user,
            where=where,
            used=used,
        )


class BatchGuard(DeclarationError):
    """A predicate wants to know a size that changes from call to call."""

    def __init__(self, *, op: str, provider: str, guard: str, where: str) -> None:
        self.op, self.provider, self.guard, self.where = op, provider, guard, where
        super().__init__(
            f"supports_args of op {op!r} by provider {provider!r}{f' ({where})' if where else ''} asks for a size that"
            f" changes from call to call: {guard}. One graph serves all batches, so the answer cannot depend on them;"
            " look at dtypes, trailing sizes and strides only.",
            op=op,
            provider=provider,
            guard=guard,
            where=where,
        )


class UntraceableImplementation(SelectionError):
    """An implementation that a user named cannot be run on fake tensors."""

    def __init__(self, *, op: str, provider: str, cause: str, where: str) -> None:
        self.op, self.provider, self.cause, self.where = op, provider, cause, where
        super().__init__(
            f"Op {op!r} by provider {provider!r}{f' ({where})' if where else ''} cannot be put into a graph: {cause}."
            " Wrap the kernel as a torch.library.custom_op with a fake; eager calls need none.",
            op=op,
            provider=provider,
            cause=cause,
            where=where,
        )


class WrongResults(DeclarationError):
    """An implementation whose results are of another kind than native's."""

    def __init__(self, *, got: Sequence[str], wanted: Sequence[str]) -> None:
        self.got, self.wanted = tuple(got), tuple(wanted)
        super().__init__(
            f"Its results are {', '.join(got) or 'none'}, native's are {', '.join(wanted)}.",
            got=self.got,
            wanted=self.wanted,
        )


class UndeclaredWrite(DeclarationError):
    """An implementation that writes to an argument which it did not say it would."""

    def __init__(self, *, argument: str, functional: bool) -> None:
        self.argument, self.functional = argument, functional
        fix = (
            "Its functional form may write to none, its in-place form to activations alone"
            if functional
            else "Declare it with inplace=True if this is an activation, or write to a tensor of its own"
        )
        super().__init__(
            f"It writes to its argument {argument!r}, which its declaration does not say. {fix}.",
            argument=argument,
            functional=functional,
        )


class EndlessLowering(SelectionError):
    """Implementations that call ops which lead back to them."""

    def __init__(self, *, op: str, chain: Sequence[str]) -> None:
        self.op, self.chain = op, tuple(chain)
        super().__init__(
            f"Lowering op {op!r} does not end: its implementations call each other, {' -> '.join(chain)}."
            " Name another provider for one of them.",
            op=op,
            chain=tuple(chain),
        )


class UnknownCompileOption(ConfigurationError):
    """An option that neither this backend nor Inductor knows."""

    def __init__(self, *, option: str, known: Sequence[str], others: Sequence[str] = ()) -> None:
        self.option, self.known, self.others = option, tuple(known), tuple(others)
        super().__init__(
            f"Compile option {option!r} is unknown to the backend vllm_ir and to Inductor;"
            f" the backend's own are {listed(known)}.{did_you_mean(option, (*known, *others))}",
            option=option,
            known=tuple(known),
            others=tuple(others),
        )


class BadCompileOption(ConfigurationError):
    """An option with a value that it cannot have."""

    def __init__(self, *, option: str, got: str, wanted: str) -> None:
        self.option, self.got, self.wanted = option, got, wanted
        super().__init__(f"Compile option {option!r} is {got}, wanted {wanted}.", option=option, got=got, wanted=wanted)


class BrokenPass(DeclarationError):
    """A graph pass raised, or left a graph that does not hold together."""

    def __init__(self, *, name: str, cause: str, distribution: str | None = None) -> None:
        self.name, self.cause, self.distribution = name, cause, distribution
        whose = "" if distribution is None else f" of {distribution}"
        mend = "leave it out of passes=[...]" if distribution is None else f"deny {distribution}"
        super().__init__(
            f"Graph pass {name!r}{whose} failed: {cause}. Mend it, or {mend}.",
            name=name,
            cause=cause,
            distribution=distribution,
        )
