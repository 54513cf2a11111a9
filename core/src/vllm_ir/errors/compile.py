"""What a user or an author reads when a graph cannot be compiled as it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir.errors.base import (
    CallError,
    ConfigurationError,
    DeclarationError,
    SelectionError,
    did_you_mean,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class UsedAfterDonation(DeclarationError):
    """A tensor that was given to `maybe_inplace` is used afterwards."""

    def __init__(
        self, *, op: str, argument: str, node: str, user: str, where: str, used: str, expression: str = ""
    ) -> None:
        self.op, self.argument, self.node, self.user, self.where, self.used = op, argument, node, user, where, used
        self.expression = expression
        at = f" (at {where})" if where else ""
        later = f" (at {used})" if used else ""
        what = f"`{expression}` as" if expression else "its"
        # A node's name is quoted, other words are not.
        who = repr(user) if user.isidentifier() else user
        super().__init__(
            f"{op}.maybe_inplace{at} donates {what} argument {argument!r} (graph node {node!r}), and {who} uses that"
            f" memory afterwards{later}. A kernel may have written to it by then: call {op}(...) instead, or donate a"
            " copy of it, made with .clone().",
            op=op,
            argument=argument,
            node=node,
            user=user,
            where=where,
            used=used,
            expression=expression,
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


WRAP: Final = (
    "Make the kernel one node of it by vllm_ir.make_torch_op, for calls that are traced; eager calls need none."
)
"""What helps where a kernel cannot run on fake tensors."""


class UntraceableImplementation(SelectionError):
    """An implementation that a user named cannot be put into a graph."""

    def __init__(self, *, op: str, provider: str, cause: str, where: str, fix: str = WRAP) -> None:
        self.op, self.provider, self.cause, self.where, self.fix = op, provider, cause, where, fix
        super().__init__(
            f"Op {op!r} by provider {provider!r}{f' ({where})' if where else ''} cannot be put into a graph: {cause}."
            f" {fix}",
            op=op,
            provider=provider,
            cause=cause,
            where=where,
            fix=fix,
        )


class WrongResults(DeclarationError):
    """An implementation whose results are of another kind than native's.

    Args:
        got: each result as "dtype[sizes]", or the name of its type where it is no tensor.
        wanted: native's.
    """

    fix: Final = "Let it return what native returns: as many tensors, of the same shapes and dtypes, in its order."
    """What helps."""

    def __init__(self, *, got: Sequence[str], wanted: Sequence[str]) -> None:
        self.got, self.wanted = tuple(got), tuple(wanted)
        mine, theirs = ", ".join(got) or "none", ", ".join(wanted)
        super().__init__(
            f"Its results are {mine}, native's are {theirs}: {_differences(got, wanted)}.",
            got=self.got,
            wanted=self.wanted,
        )


def _differences(got: Sequence[str], wanted: Sequence[str]) -> str:
    """Return in what results differ."""
    if len(got) != len(wanted):
        return f"it returns {len(got)}, wanted {len(wanted)}"
    found: list[str] = []
    for place, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        which = f" of result {place}" if len(wanted) > 1 else ""
        (dtype, _, shape), (wanted_dtype, _, wanted_shape) = (each.partition("[") for each in (mine, theirs))
        if dtype != wanted_dtype:
            found.append(f"the {'dtype' if shape else 'type'}{which} is {dtype}, wanted {wanted_dtype}")
        if shape and shape != wanted_shape:
            found.append(f"the shape{which} is [{shape}, wanted [{wanted_shape}")
    return "; ".join(found)


class UndeclaredWrite(DeclarationError):
    """An implementation that writes to an argument which it did not say it would."""

    def __init__(self, *, argument: str, functional: bool) -> None:
        self.argument, self.functional = argument, functional
        self.fix = (
            "Its functional form may write to none, its in-place form to activations alone."
            if functional
            else "Declare it with inplace=True if this is an activation, or write to a tensor of its own."
        )
        super().__init__(
            f"It writes to its argument {argument!r}, which its declaration does not say.",
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


class UnknownCompileArgument(CallError):
    """A keyword that `vllm_ir.compile` does not have, or more by position than the model.

    Args:
        argument: the keyword, or what was given by position as text.
        known: the keywords.
        option: whether Inductor has an option of that name.
        positional: whether it was given by position.
    """

    def __init__(self, *, argument: str, known: Sequence[str], option: bool = False, positional: bool = False) -> None:
        self.argument, self.known, self.option, self.positional = argument, tuple(known), option, positional
        hint = did_you_mean(argument, known)
        if positional:
            hint = ""
        elif option:
            hint = f" It is an option of Inductor: write options={{{argument!r}: ...}}."
        problem = (
            f"takes the model alone by position, got {argument} behind it"
            if positional
            else f"has no argument {argument!r}"
        )
        super().__init__(
            f"vllm_ir.compile {problem}; its keywords are {listed(known)}.{hint}",
            argument=argument,
            known=tuple(known),
            option=option,
            positional=positional,
        )


class NoGraph(CallError):
    """Something that `lower_graph` cannot lower."""

    def __init__(self, *, argument: str, got: str) -> None:
        self.argument, self.got = argument, got
        super().__init__(
            f"lower_graph: {argument} is {got}, wanted a torch.fx.GraphModule with a fake result in the metadata of"
            ' each node (node.meta["val"]), as a lower_to function is given one and make_fx(..., tracing_mode="fake")'
            " makes one.",
            argument=argument,
            got=got,
        )


class NothingToPrint(CallError):
    """Something that `print_graph` cannot show."""

    def __init__(self, *, got: str) -> None:
        self.got = got
        super().__init__(
            f"print_graph: got {got}, wanted a torch.fx.Graph or GraphModule, as a pass or a lower_to function is given"
            ' one; of a function make_fx(function, tracing_mode="fake")(*arguments) makes one.',
            got=got,
        )


class BadFusion(DeclarationError):
    """A fusion that cannot be one."""

    def __init__(self, *, name: str, problem: str, fix: str) -> None:
        self.name, self.problem, self.fix = name, problem, fix
        super().__init__(f"Fusion {name}: {problem}. {fix}", name=name, problem=problem, fix=fix)


class UnknownFusion(ConfigurationError):
    """A name in `fusions` that no built-in fusion has."""

    def __init__(self, *, name: str, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(
            f"Compile option 'fusions' names {name!r}; there are {listed(known)}, and \"all\" for every one."
            f"{did_you_mean(name, (*known, 'all'))} A fusion of your own goes into passes=[...].",
            name=name,
            known=tuple(known),
        )


class PassesInCircle(ConfigurationError):
    """Passes each of which has to run before the next, and the last before the first."""

    def __init__(self, *, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(
            f"Graph passes cannot be put in order: {' before '.join(map(repr, names))}."
            " Take one of them out of another's `before` or `after`.",
            names=tuple(names),
        )


class PassesOfOneName(ConfigurationError):
    """Two graph passes that neither a report nor `before` and `after` could tell apart.

    Args:
        name: of both.
        first: what one of them is, and where it was asked for.
        second: the same of the other.
    """

    def __init__(self, *, name: str, first: str, second: str) -> None:
        self.name, self.first, self.second = name, first, second
        super().__init__(
            f"Two graph passes of one compilation are called {name!r}: {first}, and {second}."
            " Give one of them another name, or take one out.",
            name=name,
            first=first,
            second=second,
        )


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
