"""Random graphs of what decoder layers are made of, with every fusion on: the bits are eager's.

`IR_TEST_GRAPHS` says how many are tried through `lower_to`, `IR_TEST_INDUCTOR_GRAPHS` how many through Inductor.
"""

from __future__ import annotations

import collections
import logging
import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch
import vllm_ir
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from vllm_ir import ops
from vllm_ir.compile import lower_graph

from core.tests.compile.passes.conftest import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GRAPHS: Final = int(os.environ.get("IR_TEST_GRAPHS", "150"))
INDUCTOR_GRAPHS: Final = int(os.environ.get("IR_TEST_INDUCTOR_GRAPHS", "3"))
WIDTH, HEAD, HEADS = 32, 8, 4
DYNAMIC: Final = 0.1
"""How often the number of tokens is left open."""

LOWERED: Final = 0.25
"""How often ops are lowered, which takes as long as all the rest; else they dispatch when they run."""

TEMPTING: Final = 0.35
"""How often something reads a value between two parts, so that they must stay apart."""


@dataclass
class Program:
    """The text of a function of decoder-like steps, made at random.

    Attributes:
        random: what decides.
        lines: the statements.
        rows: variables of one row of 32 elements a token.
        packed: variables of one row of 64 elements a token.
        results: what is returned besides.
    """

    random: Random
    lines: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=lambda: ["x", "r"])
    packed: list[str] = field(default_factory=lambda: ["p"])
    results: list[str] = field(default_factory=list)
    count: int = 0

    def make(self, steps: int) -> str:
        """Return the function's source."""
        kinds = [self.add_norm, self.add_norm, self.fused, self.norm, self.gate, self.heads, self.noop, self.scatter]
        for _ in range(steps):
            self.random.choice(kinds)()
        kept = self.random.sample(self.rows, min(2, len(self.rows)))
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def program(x, r, p, w, h, s, c, pos, a):\n{body}\n    return ({', '.join([*self.results, *kept])},)\n"

    def add(self, text: str, names: int = 1) -> list[str]:
        """Add a statement that makes some variables and return their names."""
        made = [f"v{self.count + place}" for place in range(names)]
        self.count += names
        self.lines.append(f"{', '.join(made)} = {text}")
        return made

    def row(self) -> str:
        """Return a variable of one row a token."""
        return self.random.choice(self.rows)

    def weight(self) -> str:
        """Return a weight: mostly one of x's dtype."""
        return self.random.choice(("w", "w", "w", "w.float()", "None"))

    def epsilon(self) -> str:
        """Return an epsilon, by position or by name."""
        return self.random.choice(("1e-5", "1e-6", "epsilon=1e-6"))

    def tempt(self, name: str) -> None:
        """Read a value that a fusion would do without."""
        if self.random.random() < TEMPTING:
            self.results.append(*self.add(self.random.choice((f"{name}.cos()", f"{name} * 2", f"{name}.clone()"))))

    def add_norm(self) -> None:
        """Add and normalise, in one dtype or in float32; sometimes a part of the row is measured."""
        one, other, size = self.row(), self.row(), self.random.choice(("", "", ", variance_size=16"))
        if self.random.random() < 0.5:
            (total,) = self.add(f"{one} + {other}")
            (normal,) = self.add(f"ops.rms_norm({total}, {self.weight()}, {self.epsilon()}{size})")
            self.rows.append(total)
        else:
            (total,) = self.add(f"{one}.float() + {other}.float()")
            (normal,) = self.add(f"ops.rms_norm({total}, {self.weight()}, {self.epsilon()}{size}).to(x.dtype)")
            self.rows += self.add(f"{total}.to(x.dtype)")
            self.tempt(total)
        self.quantise(normal)

    def fused(self) -> None:
        """Add and normalise as one op, sometimes with both parts given away."""
        one, other = self.row(), self.row()
        if self.random.random() < 0.4:
            text = f"ops.fused_add_rms_norm.maybe_inplace({one} * 1, {other} + 1, {self.weight()}, 1e-6)"
        else:
            text = f"ops.fused_add_rms_norm({one}, {other}, {self.weight()}, {self.epsilon()})"
        normal, total = self.add(text, 2)
        self.rows.append(total)
        self.quantise(self.random.choice((normal, normal, normal, total)))

    def norm(self) -> None:
        """Normalise."""
        (normal,) = self.add(f"ops.rms_norm({self.row()}, {self.weight()}, {self.epsilon()})")
        self.quantise(normal)

    def gate(self) -> None:
        """Gate what is packed, or a slice or a reordering of it."""
        source = self.random.choice(self.packed)
        form = self.random.choice(("{0}", "{0}", "{0}[:, :32]", "{0}.flip(-1)", "{0}.t().contiguous().t()"))
        (gated,) = self.add(f"ops.silu_and_mul({form.format(source)})")
        if "[:" in form:
            self.results += self.add(f"ops.static_quant_fp8({gated}, s)")
        else:
            self.quantise(gated)

    def quantise(self, name: str) -> None:
        """Quantise a row in one of many ways, or leave it as it is."""
        form = self.random.choice(
            ("none", "static", "static", "channel", "token", "tensor", "bound", "group", "columns")
        )
        dtype = self.random.choice(("", ", dtype=torch.float8_e5m2"))
        self.tempt(name) if form != "none" else self.rows.append(name)
        texts = {
            "static": (f"ops.static_quant_fp8({name}, s{dtype})", 1),
            "channel": (f"ops.static_quant_fp8({name}, c{dtype})", 1),
            "token": (f"ops.dynamic_quant_fp8({name}{dtype})", 2),
            "tensor": (f"ops.dynamic_quant_fp8({name}, False{dtype})", 2),
            "bound": (f"ops.dynamic_quant_fp8({name}, scale_ub=s{dtype})", 2),
            "group": (f"ops.dynamic_group_quant_fp8({name}, 8{dtype})", 2),
            "columns": (f"ops.dynamic_group_quant_fp8({name}, 16, True, True{dtype})", 2),
        }
        if form in texts:
            self.results += self.add(*texts[form])

    def heads(self) -> None:
        """Normalise heads in one of three ways, and turn them."""
        query, key = self.row(), self.row()
        weight, other = (self.random.choice(("h", "h", "None")) for _ in range(2))
        epsilons = self.random.choice((("1e-6", "1e-6"), ("1e-6", "1e-6"), ("1e-6", "1e-5")))
        way = self.random.choice(("apart", "rows", "given"))
        normal = []
        for name, own, epsilon in ((query, weight, epsilons[0]), (key, other, epsilons[1])):
            shaped = {"apart": f"{name}.view(-1, {HEADS}, {HEAD})", "rows": f"{name}.view(-1, {HEAD})"}
            form = shaped.get(way, f"{name}.unflatten(-1, ({HEADS}, {HEAD}))")
            back = "" if way == "given" else f".view({name}.shape)"
            normal += self.add(f"ops.rms_norm({form}, {own}, {epsilon}){back}")
        style, size = self.random.choice(("True", "False")), self.random.choice((HEAD, 4))
        turned = self.add(
            f"ops.rotary_embedding(pos, {normal[0]}, {normal[1]}, {HEAD}, {size}, a[:, :{size}].contiguous(), {style})",
            2,
        )
        if way == "given":
            self.results += turned
        else:
            self.rows += turned

    def noop(self) -> None:
        """Look at a row in ways that change nothing."""
        name = self.row()
        forms = (
            "{0}.view({0}.shape)",
            "{0}.reshape(-1, 4, 8).view(-1, 32)",
            "{0}[:]",
            "{0}.expand(-1, 32)",
            "{0}.unflatten(-1, (2, 16)).flatten(-2)",
            "{0}.permute(0, 1)",
        )
        self.rows += self.add(self.random.choice(forms).format(name))

    def scatter(self) -> None:
        """Write a part of a row back where it was read, or over all of another, or somewhere else."""
        one, other = self.row(), self.row()
        (made,) = self.add(f"{one}.clone()")
        forms = ("{0}[:, 4:] = {0}[:, 4:]", "{0}[:] = {1}", "{0}[:, :8] = {1}[:, 8:16]", "{0}[:, 8:] = {1}[:, 8:]")
        self.lines.append(self.random.choice(forms).format(made, other))
        self.rows += self.add(f"{made}[:, 8:].sin().repeat(1, 2)[:, :32].contiguous()")
        self.rows.append(made)


def inputs(random: Random, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return what a program is called with."""
    tokens = random.choice((2, 3, 5))
    rows = [torch.randn(tokens, width).to(dtype) for width in (WIDTH, WIDTH, 2 * WIDTH)]
    weights = [(torch.rand(width) + 0.5).to(dtype) for width in (WIDTH, HEAD)]
    scales = [torch.rand(1) + 0.1, torch.rand(WIDTH) + 0.1]
    return (*rows, *weights, *scales, torch.randint(0, 6, (tokens,)), torch.randn(6, HEAD))


def steps_apart(one: Tensor, other: Tensor) -> int:
    """Return how many 8-bit floats lie between two tensors of them at most; NaN lies beside NaN alone."""

    def ranks(values: Tensor) -> Tensor:
        """Return the place of each in the order of all, the zeros at nought."""
        bits = values.view(torch.uint8).int()
        magnitude = bits & 0x7F
        return torch.where(bits > 0x7F, -magnitude, magnitude)

    differs = (one.view(torch.uint8) != other.view(torch.uint8)) & ~(one.isnan() & other.isnan())
    if bool((one.isnan() != other.isnan()).any()):
        return 0xFF
    return int(((ranks(one) - ranks(other)).abs() * differs).max()) if one.numel() else 0


def check(seed: int, fired: collections.Counter[str], *, inductor: bool) -> None:
    """Fail unless a random program does with fusions what it does in eager."""
    random = Random(seed)  # noqa: S311 - not for secrets
    torch.manual_seed(seed)
    source = Program(random).make(random.randint(1, 3))
    scope: dict[str, Any] = {"torch": torch, "ops": ops}
    exec(compile(source, "<program>", "exec"), scope)  # noqa: S102 - the program was made above
    function: Callable[..., Any] = scope["program"]
    args = inputs(random, random.choice((torch.float32, torch.bfloat16, torch.float16)))

    def lower(module: torch.fx.GraphModule, _: Any) -> Any:
        """Lower a graph or leave its ops in it, and let torch run it node by node."""
        if lowered:
            lower_graph(module)
        module.graph.lint()
        return module

    lowered = random.random() < LOWERED
    torch._dynamo.reset()
    options: dict[str, Any] = {"exact": True} if inductor else {"lower_to": lower}
    run = vllm_ir.compile(function, fusions="all", fullgraph=True, **options)
    if random.random() < DYNAMIC:
        for each in (*args[:3], args[7]):
            torch._dynamo.mark_dynamic(each, 0)
    given_away = [each.clone() for each in args]
    with torch.no_grad():
        wanted, got = function(*given_away), run(*args)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        same = same_bits(one, other)
        if inductor and not same:
            # Inductor has a cosine and a sum of its own.
            same = one.shape == other.shape and one.dtype == other.dtype
            close = torch.allclose(one.float(), other.float(), rtol=2e-2, atol=2e-2, equal_nan=True)
            same = same and (steps_apart(one, other) <= 1 if one.element_size() == 1 else close)
        assert same, f"{source}\nresult {number}"
    fired.update({each.name: each.changes for each in vllm_ir.report().graphs[-1].passes})


def run_many(number: int, *, inductor: bool) -> collections.Counter[str]:
    """Try a number of programs and return how often each fusion fired."""
    fired: collections.Counter[str] = collections.Counter()

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.integers(0, 2**32 - 1))
    def each(seed: int) -> None:
        """Try one."""
        check(seed, fired, inductor=inductor)

    each()
    return fired


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run on one thread, since what is computed is small, and without the records that torch writes of each graph."""
    before, trace = torch.get_num_threads(), logging.getLogger("torch.__trace")
    handlers, trace.handlers = trace.handlers, []
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    trace.handlers = handlers


@pytest.mark.usefixtures("state", "one_thread")
def test_every_fusion_keeps_the_bits_of_random_decoders() -> None:
    """Through torch's own interpreter; each of the fusions fires often enough to be tried."""
    fired = run_many(GRAPHS, inductor=False)
    for name in ("noop_removal", "add_norm", "norm_quant", "activation_quant", "qk_norm_rope"):
        assert fired[name] >= GRAPHS // 20, fired


@pytest.mark.usefixtures("state", "one_thread")
@pytest.mark.skipif(not INDUCTOR_GRAPHS, reason="IR_TEST_INDUCTOR_GRAPHS is 0")
def test_inductor_makes_the_same_of_them() -> None:
    """With eager's roundings kept; 16 and 32 bit results are close, since Inductor has a cosine of its own."""
    run_many(INDUCTOR_GRAPHS, inductor=True)
