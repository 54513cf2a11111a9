"""Random small programs of ops, views, copies, writes and donations: compiled, they do what eager does.

`IR_TEST_GRAPHS` says how many programs are tried through `lower_to`, `IR_TEST_INDUCTOR_GRAPHS` how many through
Inductor.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from vllm_ir import ops, register_op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


GRAPHS: Final = int(os.environ.get("IR_TEST_GRAPHS", "150"))
INDUCTOR_GRAPHS: Final = int(os.environ.get("IR_TEST_INDUCTOR_GRAPHS", "3"))
WIDTH: Final = 8
PARTS: Final = 4
"""Into how many groups of columns memory is divided for telling what overlaps."""

INPUTS: Final = 3
DONATED: Final = 0.6
"""How often an op that can be donated its activations is."""

fused: Any = ops.fused_add_rms_norm


@dataclass(frozen=True)
class Variable:
    """A tensor of a program: its name, its memory, which columns of it, and how it lies there."""

    name: str
    memory: int
    parts: frozenset[int]
    written: bool = True

    @property
    def width(self) -> int:
        """How many columns it has."""
        return WIDTH * len(self.parts) // PARTS

    def overlaps(self, other: Variable) -> bool:
        """Tell whether both have an element in common."""
        return self.memory == other.memory and bool(self.parts & other.parts)


WHOLE: Final = frozenset(range(PARTS))


@dataclass
class Program:
    """The text of a function of `x0` to `x2` [tokens, 8] and `w` [8], made at random.

    Attributes:
        random: what decides.
        lines: the statements.
        alive: what may be read.
        donated: columns of inputs that were donated, by the input's number.
    """

    random: Random
    lines: list[str] = field(default_factory=list)
    alive: list[Variable] = field(default_factory=list)
    donated: dict[int, frozenset[int]] = field(default_factory=dict)
    count: int = 0

    def make(self, steps: int) -> str:
        """Return the function's source."""
        self.alive = [Variable(f"x{i}", i, WHOLE) for i in range(INPUTS)]
        self.count = INPUTS
        kinds = [self.compute, self.copy, self.view, self.halves, self.write, self.join]
        donating = [self.norm, self.turn, self.scale]
        for _ in range(steps):
            self.random.choice((*kinds, *donating, *donating))()
        picked = self.random.sample(self.alive, min(len(self.alive), self.random.randint(1, 3)))
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def program(x0, x1, x2, w):\n{body}\n    return [{', '.join(v.name for v in picked)}]\n"

    def pick(self, width: int | None = None) -> Variable | None:
        """Return a variable that may be read, of a width."""
        found = [v for v in self.alive if width is None or v.width == width]
        return self.random.choice(found) if found else None

    def new(self, text: str, source: Variable | None = None, width: int = WIDTH, **facts: Any) -> Variable:
        """Add a statement that makes a variable: of its own memory, or a view of another one."""
        name = f"v{self.count}"
        if source is None:
            found = Variable(name, self.count, WHOLE if width == WIDTH else frozenset({0, 1}), **facts)
        else:
            facts.setdefault("parts", source.parts)
            facts.setdefault("written", source.written)
            found = Variable(name, source.memory, **facts)
        self.count += 1
        self.lines.append(f"{name} = {text}")
        self.alive.append(found)
        return found

    def compute(self) -> None:
        """Compute a new tensor."""
        a = self.pick()
        b = None if a is None else self.pick(a.width)
        if a is not None and b is not None:
            form = self.random.choice(("{a} * 0.5", "{a} + {b}", "torch.tanh({a})", "{a} - 1", "{b} * {a}"))
            self.new(form.format(a=a.name, b=b.name), width=a.width)

    def copy(self) -> None:
        """Copy a tensor, lying as before, in rows, or in columns."""
        a = self.pick()
        if a is not None:
            forms = (
                "{a}.clone()",
                "{a}.clone(memory_format=torch.contiguous_format)",
                "{a}.t().contiguous().t()",
                "{a} * 1",
            )
            self.new(self.random.choice(forms).format(a=a.name), width=a.width)

    def view(self) -> None:
        """Look at a tensor in another way."""
        a = self.pick()
        if a is not None:
            forms: tuple[str, ...] = (
                "{a}.t().t()",
                "{a}.unsqueeze(0).squeeze(0)",
                "{a}[:]",
                "{a}.unflatten(-1, (2, -1)).flatten(1)",
            )
            if a.parts != WHOLE or not a.written:
                forms = forms[:3]
            self.new(self.random.choice(forms).format(a=a.name), a)

    def halves(self) -> None:
        """Divide a tensor into columns."""
        a = self.pick(WIDTH)
        if a is not None and a.parts == WHOLE and a.written:
            for number, parts in enumerate(({0, 1}, {2, 3})):
                self.new(f"{a.name}.chunk(2, -1)[{number}]", a, parts=frozenset(parts))

    def write(self) -> None:
        """Write to a tensor."""
        a = self.pick()
        if a is None or not a.written:
            return
        b = self.pick(a.width)
        forms = ["{a}.add_(1)", "{a}.mul_(0.5)", "{a}[1:] = 0.25", "{a}[:, 1] = {a}[:, 0]", "{a}[[0, 1]] = 2.0"]
        if b is not None and not a.overlaps(b):
            forms += ["{a}.copy_({b})", "{a}.add_({b})", "{a}[:2] = {b}[:2]"]
        self.lines.append(self.random.choice(forms).format(a=a.name, b=b.name if b else ""))

    def join(self) -> None:
        """Pass tensors through an operation on lists."""
        a = self.pick()
        b = None if a is None else self.pick(a.width)
        if a is not None and b is not None:
            forms = (
                "torch.cat(({a}, {b})).chunk(2)",
                "torch.stack(({a}, {b})).unbind(0)",
                "torch._foreach_mul([{a}, {b}], 0.5)",
            )
            text = self.random.choice(forms).format(a=a.name, b=b.name)
            memory = self.count
            self.lines.append(f"l{memory} = {text}")
            for number in range(2):
                # Rows of one tensor have nothing in common, so each counts as memory of its own.
                self.new(f"l{memory}[{number}]", width=a.width, written=True)

    def norm(self) -> None:
        """Normalise a sum, and sometimes donate both parts of it."""
        a = self.pick()
        b = None if a is None else self.pick(a.width)
        if a is None or b is None:
            return
        donate = not a.overlaps(b) and a.written and b.written and self.random.random() < DONATED
        weight = self.random.choice(("w" if a.width == WIDTH else "w[:4]", "None"))
        self.call(f"fused{'.maybe_inplace' * donate}({a.name}, {b.name}, {weight}, 1e-5)", (a, b), donate=donate)

    def turn(self) -> None:
        """Add and subtract two tensors, and sometimes donate both."""
        a = self.pick()
        b = None if a is None else self.pick(a.width)
        if a is None or b is None:
            return
        donate = not a.overlaps(b) and a.written and b.written and self.random.random() < DONATED
        self.call(f"twist{'.maybe_inplace' * donate}({a.name}, {b.name})", (a, b), donate=donate)

    def scale(self) -> None:
        """Multiply a tensor, and sometimes donate it."""
        a = self.pick()
        if a is None:
            return
        donate = a.written and self.random.random() < DONATED
        text = f"scale{'.maybe_inplace' * donate}({a.name}, 0.5)"
        self.take((a,), donate=donate)
        self.new(text, width=a.width)

    def take(self, activations: tuple[Variable, ...], *, donate: bool) -> None:
        """Let nobody read what was donated."""
        for each in activations if donate else ():
            if each.memory < INPUTS:
                self.donated[each.memory] = self.donated.get(each.memory, frozenset()) | each.parts
            self.alive = [v for v in self.alive if not v.overlaps(each)]

    def call(self, text: str, activations: tuple[Variable, Variable], *, donate: bool) -> None:
        """Call an op with two results."""
        self.take(activations, donate=donate)
        width = activations[0].width
        memory = self.count
        self.lines.append(f"l{memory} = {text}")
        for number in range(2):
            self.new(f"l{memory}[{number}]", width=width)


def twist(x: Tensor, x_other: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum and the difference: an op of two activations that costs next to nothing to trace."""
    return (x + x_other).contiguous(), (x - x_other).contiguous()


def scale(x: Tensor, factor: float) -> Tensor:
    """Return a product: an op of one activation and one result."""
    return (x * factor).contiguous()


def check(random: Random, compiled: Any, made: dict[str, Any], *, inductor: bool) -> None:
    """Fail unless a random program does compiled what it does in eager."""
    program = Program(random)
    source = program.make(random.randint(3, 9))
    scope: dict[str, Any] = {"torch": torch, "fused": fused, **made}
    exec(compile(source, "<program>", "exec"), scope)  # noqa: S102 - the program was made above
    function: Callable[..., Any] = scope["program"]
    tokens = random.choice((2, 3))
    torch._dynamo.reset()
    inputs = [*(torch.randn(tokens, WIDTH) for _ in range(INPUTS)), torch.rand(WIDTH) + 0.5]
    run = compiled(function, dynamic=random.random() < 0.1, inductor=inductor)
    mine, theirs = ([tensor.clone() for tensor in inputs] for _ in range(2))
    with torch.no_grad():
        wanted, got = function(*theirs), run(*mine)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True), f"{source}\nresult {number}"
    for number in range(INPUTS):
        kept = [part for part in range(PARTS) if part not in program.donated.get(number, ())]
        for part in kept:
            columns = slice(part * WIDTH // PARTS, (part + 1) * WIDTH // PARTS)
            was, one, other = (each[number][:, columns] for each in (inputs, mine, theirs))
            # What eager left alone has its bits; what it wrote may come out of a sum over rows of another layout.
            left = other == was
            assert torch.equal(one[left], was[left]), f"{source}\ninput {number}"
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True), f"{source}\ninput {number}"
        if number in program.donated:
            continue
        shared = [_memory(one) == _memory(mine[number]) for one in got]
        assert shared == [_memory(one) == _memory(theirs[number]) for one in wanted], f"{source}\nmemory of {number}"


def _memory(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run on one thread, since what is computed is small, and without the records that torch writes of each graph."""
    before, trace = torch.get_num_threads(), logging.getLogger("torch.__trace")
    handlers, trace.handlers = trace.handlers, []
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    trace.handlers = handlers


def run_many(provide: Any, compiled: Any, number: int, *, inductor: bool) -> None:
    """Try a number of programs."""
    declare: Any = register_op(allow_inplace=True)
    made: dict[str, Any] = {each.__name__: declare(each) for each in (twist, scale)}
    for op in (fused, *made.values()):
        provide(op, "inplace")

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    # A seed, and not draws one by one: those favour the rare, and dynamic graphs cost several times as much.
    @given(st.integers(0, 2**32 - 1))
    def each(seed: int) -> None:
        """Try one."""
        random = Random(seed)  # noqa: S311 - not for secrets
        torch.manual_seed(seed)
        compiled.graphs.clear()
        compiled.lowered.clear()
        check(random, compiled, made, inductor=inductor)

    each()


@pytest.mark.usefixtures("one_thread")
def test_lowered(provide: Any, compiled: Any) -> None:
    """Programs with in-place providers, lowered and run by torch itself, have eager's values and side effects."""
    run_many(provide, compiled, GRAPHS, inductor=False)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not INDUCTOR_GRAPHS, reason="IR_TEST_INDUCTOR_GRAPHS is 0")
def test_inductor(provide: Any, compiled: Any) -> None:
    """The same holds for what Inductor makes of them."""
    run_many(provide, compiled, INDUCTOR_GRAPHS, inductor=True)
