"""A policy where it acts: what loads, what dispatch runs and what files foretell, over many policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from hypothesis import strategies as st  # noqa: E402 - after the check for torch
from torch import Tensor  # noqa: E402, TC002 - torch reads the annotations
from vllm_ir import ops  # noqa: E402
from vllm_ir.config import IrOpPriorityConfig  # noqa: E402
from vllm_ir.environment import Environment  # noqa: E402
from vllm_ir.errors import NoImplementation, RefusedArguments, UnusableProvider  # noqa: E402
from vllm_ir.isolation import isolated  # noqa: E402
from vllm_ir.landscape import Landscape  # noqa: E402
from vllm_ir.platforms import detect  # noqa: E402
from vllm_ir.plugins import discovery, load_providers  # noqa: E402
from vllm_ir.plugins.distributions import scan  # noqa: E402
from vllm_ir.plugins.forecast import forecast  # noqa: E402
from vllm_ir.plugins.static import survey  # noqa: E402
from vllm_ir.preferences import Preferences  # noqa: E402
from vllm_ir.settings import Settings  # noqa: E402
from vllm_ir.verdict import Unsupported  # noqa: E402

if TYPE_CHECKING:
    from core.tests.plugins.conftest import Site

FILE = Path("policy.toml")
X = torch.zeros(2, 4)
MANIFEST = """
schema = 1
provider-api = "1"
summary = "A distribution made by hand."
[providers.{name}]
batch-invariant = {invariant}
[providers.{name}.platforms]
cpu = {{}}
[providers.{name}.ops]
rms_norm = {{}}
silu_and_mul = {{}}
[providers.{name}.default.eager]
rms_norm = ["cpu"]
silu_and_mul = ["cpu"]
"""
BOTH = ("rms_norm", "silu_and_mul")
NAMES = ("one", "two", "three")
BOMB = "raise SystemExit('a denied distribution was imported')\n"


def add(site: Site, name: str, *, invariant: bool = False, hooks: str | None = None) -> str:
    """Write a distribution that wants to serve two ops, and return its package."""
    text = MANIFEST.format(name=name, invariant=str(invariant).lower())
    kernels = KERNELS.format(name=name, invariant=invariant)
    return site.provider(f"dist-{name}", provider=name, ops=BOTH, text=text, hooks=hooks, kernels=kernels)


KERNELS = """
from torch import Tensor
from vllm_ir import implements

@implements("rms_norm", provider={name!r}, batch_invariant={invariant})
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return x + 1

@implements("silu_and_mul", provider={name!r}, batch_invariant={invariant})
def silu_and_mul(x: Tensor) -> Tensor:
    return x[..., : x.shape[-1] // 2] + 1

ALL = {{"rms_norm": rms_norm, "silu_and_mul": silu_and_mul}}
"""


def rules() -> st.SearchStrategy[tuple[str, ...]]:
    """Return lists of rules about the three distributions."""
    name = st.sampled_from([*NAMES, "dist-two", "*", "elsewhere"])
    op = st.sampled_from(["", ":rms_norm", ":silu_and_mul"])
    return st.lists(st.tuples(name, op).map("".join), max_size=3, unique=True).map(tuple)


POLICIES = st.builds(
    Settings,
    file=st.just(FILE),
    allow=st.none() | rules(),
    deny=rules(),
    require=st.sampled_from([(), (), ("batch_invariant",)]),
)


@pytest.fixture
def three(site: Site) -> Site:
    """Give three distributions, one of them batch-invariant."""
    add(site, "one")
    add(site, "two", invariant=True)
    add(site, "three")
    return site


@pytest.mark.usefixtures("three")
@hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    settings=POLICIES,
    op=st.sampled_from(BOTH),
    denied=st.sampled_from(["", "one", "three:rms_norm"]),
    compiling=st.booleans(),
)
def test_what_files_foretell_under_a_policy_is_what_happens(
    settings: Settings, op: str, denied: str, compiling: bool
) -> None:
    """Every candidate stands where it was foretold, is refused for the reason foretold, and the call runs the first."""
    elsewhere = [each.name for each in scan() if each.providers and each.name.startswith("vllm-ir-")]
    variables = {"VLLM_IR_PROVIDERS_DISABLED": ",".join([*elsewhere, denied])}
    environment = Environment.read(variables)
    preferences = Preferences(environment, settings)
    found = survey(environment, detect(), policy=preferences.policy)
    told = {each.provider: each for each in forecast(op, found, preferences, compiling=compiling).explanation.verdicts}
    with isolated(variables, settings, loader=load_providers):
        called = getattr(ops, op)
        args = (X, None, 1e-6) if op == "rms_norm" else (X,)
        explained = called.explain(*args, compiling=compiling)
        usable = {each.name: each.usable for each in found.providers}
        loaded = {each.name for each in (discovery.load_providers() or found).providers if each.state == "loaded"}
    mine = [each for each in explained.verdicts if each.provider in (*NAMES, "native")]
    assert explained.selected == next((each.provider for each in told.values() if each.selected), None)
    for each in mine:
        assert (each.layer, each.accepted) == (told[each.provider].layer, told[each.provider].accepted), each
        if not each.accepted:
            assert each.reason == told[each.provider].reason
    assert {name for name in NAMES if usable[name]} == loaded & set(NAMES)


def test_nothing_of_a_denied_distribution_is_imported(site: Site) -> None:
    """By either of its names, for all its ops, or because another one is allowed."""
    add(site, "denied", hooks=BOMB)
    every_op = ("denied:rms_norm", "denied:silu_and_mul")
    policies = (
        Settings(FILE, deny=("denied",)),
        Settings(FILE, deny=("Dist.Denied",)),
        Settings(FILE, deny=every_op),
        Settings(FILE, deny=("*",)),
        Settings(FILE, allow=("another",)),
        Settings(FILE, allow=("denied:gelu_and_mul",)),
    )
    for settings in policies:
        with isolated({}, settings, loader=load_providers):
            assert torch.equal(ops.rms_norm(X, None, 1e-5), X)
            assert site.imported() == []
            (record,) = [each for each in load_providers().providers if each.name == "denied"]  # type: ignore[union-attr]
            assert record.failure is not None
            assert record.failure.kind == "denied by policy"
            assert str(FILE) in record.failure.reason


def test_an_op_is_denied_while_the_other_runs(site: Site) -> None:
    """The provider loads for the other, and its record says of which op it is left out, and by whom."""
    add(site, "half")
    with isolated({}, Settings(FILE, deny=("half:rms_norm",), allow=("half",)), loader=load_providers):
        assert torch.equal(ops.rms_norm(X, None, 1e-5), X)
        assert torch.equal(ops.silu_and_mul(X), X[..., :2] + 1)
        (record,) = [each for each in load_providers().providers if each.name == "half"]  # type: ignore[union-attr]
        said = (
            "Provider 'half' of dist-half is denied for op 'rms_norm':"
            ' deny = ["half:rms_norm"] in policy.toml denies it.'
        )
        assert (record.state, record.refused_ops) == ("loaded", (("rms_norm", said),))
        assert ops.rms_norm.get_priority() == ["native"]
        assert ops.silu_and_mul.get_priority() == ["half"]


@pytest.mark.parametrize("deny", ["named", "named:rms_norm", "*:rms_norm"])
def test_a_denied_provider_that_a_user_names_is_an_error_that_names_the_file(site: Site, deny: str) -> None:
    """By every way of naming one; the other op is not disturbed."""
    add(site, "named")
    said = rf"provider 'named' cannot run op 'rms_norm' here: Provider 'named' of dist-named is denied.* in {FILE}"
    with isolated({}, Settings(FILE, deny=(deny,)), loader=load_providers):
        with pytest.raises(UnusableProvider, match=f"^set_default: {said}"):
            ops.rms_norm.set_default(["named"])
        with pytest.raises(UnusableProvider, match=f"^set_priority: {said}"), ops.rms_norm.set_priority(["named"]):
            pass
        with pytest.raises(UnusableProvider, match=f"^KernelConfig: {said}"):
            IrOpPriorityConfig(rms_norm="named").apply()
        assert torch.equal(ops.rms_norm(X, None, 1e-5), X)
    with isolated({"VLLM_IR_OP_PRIORITY": "rms_norm=named"}, Settings(FILE, deny=(deny,)), loader=load_providers):
        with pytest.raises(UnusableProvider, match=f"^VLLM_IR_OP_PRIORITY: {said}"):
            ops.rms_norm(X, None, 1e-5)
        ops.silu_and_mul(X)


def test_a_variable_tightens_and_never_widens(site: Site) -> None:
    """Allowing by a variable what a file denies leaves it denied, and the other way round."""
    add(site, "one")
    add(site, "two", invariant=True)
    variables = {"VLLM_IR_PROVIDERS": "one,two,native"}
    with isolated(variables, Settings(FILE, deny=("one",)), loader=load_providers):
        assert ops.rms_norm.get_priority() == ["two"]
    with isolated({"VLLM_IR_PROVIDERS": "one"}, Settings(FILE, allow=("two",)), loader=load_providers):
        assert ops.rms_norm.get_priority() == ["native"]
    with isolated({"VLLM_IR_STRICT": "0"}, Settings(FILE, strict=True)) as state:
        assert state.mode.strict
    with isolated({"VLLM_BATCH_INVARIANT": "0"}, Settings(FILE, require=("batch_invariant",)), loader=load_providers):
        told = ops.rms_norm.explain(X, None, 1e-5)
        assert told.selected == "two"
        reasons = {each.provider: each.reason for each in told.verdicts}
        assert reasons["one"] == reasons["native"]
        assert reasons["one"] == (
            f'it is not declared batch-invariant, which require = ["batch_invariant"] in {FILE} asks for'
        )


def test_what_a_program_registers_itself_is_held_to_the_lists(site: Site) -> None:
    """A list of what may run is one for everybody: for the program's own kernels, too, and for one op of them."""
    del site

    def doubled(x: Tensor) -> Tensor:
        """Return more than native."""
        result: Tensor = x[..., : x.shape[-1] // 2] + 2
        return result

    order = Landscape(provider_defaults={False: {"silu_and_mul": ("mine",)}})
    for settings, runs in (
        (Settings(), True),
        (Settings(FILE, allow=("mine",)), True),
        (Settings(FILE, allow=("mine:silu_and_mul",)), True),
        (Settings(FILE, allow=("mine:rms_norm",)), False),
        (Settings(FILE, deny=("mine",)), False),
        (Settings(FILE, deny=("*:silu_and_mul",)), False),
        (Settings(FILE, deny=("mine:rms_norm",)), True),
    ):
        with isolated({}, settings, order):
            ops.silu_and_mul.register_impl("mine")(doubled)
            assert torch.equal(ops.silu_and_mul(X), X[..., :2] + 2) == runs, settings
            reason = next(each.reason for each in ops.silu_and_mul.explain(X).verdicts if each.provider == "mine")
            assert (reason is None) == runs
            assert runs or f"in {FILE}" in str(reason)


def test_a_policy_that_is_strict_raises_where_a_named_provider_refuses() -> None:
    """As the variable does, and the sentence says how it ends."""

    def never(x: Tensor) -> Any:  # noqa: ARG001 - a predicate takes the op's parameters
        """Refuse."""
        return Unsupported("never")

    def kernel(x: Tensor) -> Tensor:
        """Return nothing new."""
        return x

    with isolated({}, Settings(FILE, strict=True)):
        ops.silu_and_mul.register_impl("mine", supports_args=never)(kernel)
        ops.silu_and_mul.set_default(["mine"])
        with pytest.raises(RefusedArguments, match=r"never. Strict mode does not fall back; unset VLLM_IR_STRICT, or"):
            ops.silu_and_mul(X)


def test_what_is_required_of_everybody_leaves_nobody() -> None:
    """No admissible candidate is an error that says who asks."""
    with isolated({}, Settings(FILE, require=("batch_invariant",))), pytest.raises(NoImplementation) as caught:
        ops.silu_and_mul(X)
    assert f'native: it is not declared batch-invariant, which require = ["batch_invariant"] in {FILE} asks for' in str(
        caught.value
    )
