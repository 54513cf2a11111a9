"""The plan: read once, in the context that compiles, and with a digest that changes with whatever graphs depend on."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import Platform, Unsupported, fingerprint, ops
from vllm_ir.compile.passes import GraphPass
from vllm_ir.compile.plan import Plan
from vllm_ir.errors import BrokenPass, UnknownProvider
from vllm_ir.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOp
    from vllm_ir.runtime import Runtime

NATIVE = ops.rms_norm.declaration.native


class Strength(GraphPass):
    """Has an attribute that its changes depend on."""

    def __init__(self, strength: int) -> None:
        self.strength = strength
        self._seen = 0

    def apply(self, graph: torch.fx.Graph) -> int:
        """Change nothing."""
        self._seen += len(graph.nodes)
        return 0


def provide(name: str = "probe", *, op: IrOp = ops.rms_norm, factor: int = 2, **how: Any) -> None:
    """Register a provider whose function closes over a number."""

    def kernel(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        """Compute something with it."""
        assert variance_size is None
        return (x if weight is None else x * weight) * (factor + epsilon)

    op.register_impl(name, **how)(kernel)


def only_float32(x: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> bool:
    """Take one dtype."""
    assert variance_size is None or weight is not None or epsilon
    return bool(x.dtype is torch.float32)


def digest(order: str = "probe", **how: Any) -> str:
    """Return the digest of the plan of a process in which a provider comes before native."""
    with ops.rms_norm.set_priority([order, "native"]):
        return Plan.take(**how).digest


def test_the_same_process_has_the_same_digest(state: Runtime) -> None:
    """A digest is 64 hexadecimal digits, and taking a plan again changes nothing."""
    assert state is not None
    provide()
    first = digest()
    assert first == digest()
    assert len(first) == len(fingerprint.device_architecture(state.platform))
    assert int(first, 16)


def test_scopes_and_what_the_user_names_are_in_the_orders(state: Runtime) -> None:
    """Scopes of the calling context count, and `priority` goes before them."""
    assert state is not None
    provide()
    provide("other")
    with ops.rms_norm.set_priority(["other"]):
        scoped = Plan.take()
    assert [c.entry.provider for c in scoped.orders["rms_norm"]][:2] == ["other", "native"]
    assert next(c.entry.provider for c in Plan.take().orders["rms_norm"]) == "native"
    assert scoped.digest != Plan.take().digest


def test_a_name_that_nobody_provides_is_an_error(state: Runtime) -> None:
    """As at every other place where a user may write one."""
    assert state is not None
    with pytest.raises(UnknownProvider, match="nope"), ops.rms_norm.set_priority(["nope"]):
        Plan.take()


def in_a_fresh_state(variables: dict[str, str], register: Callable[[], None], **how: Any) -> str:
    """Return the digest of a process that was started with variables and registered something."""
    with isolated(variables):
        register()
        return digest(**how)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("variables", "how", "options"),
    [
        ({}, {"factor": 3}, {}),
        ({}, {"supports_args": only_float32}, {}),
        ({}, {"batch_invariant": True}, {}),
        ({"VLLM_IR_STRICT": "1"}, {}, {}),
        ({}, {}, {"exact": True}),
        ({}, {}, {"passes": [Strength(1)]}),
        ({}, {}, {"passes": [Strength(2)]}),
        ({}, {}, {"passes": [Strength(1), Strength(2)]}),
        ({}, {}, {"passes": [Strength(2), Strength(1)]}),
    ],
)
def test_each_ingredient_alone_changes_the_digest(
    variables: dict[str, str], how: dict[str, Any], options: dict[str, Any]
) -> None:
    """Function, predicate, flags, strictness, exactness, and passes with their attributes and their order."""
    plain = in_a_fresh_state({}, provide)
    again = in_a_fresh_state({}, provide)
    assert plain == again
    assert in_a_fresh_state(variables, lambda: provide(**how), **options) != plain


@pytest.mark.usefixtures("state")
def test_passes_with_other_attributes_or_another_order_differ() -> None:
    """Private attributes do not count: a pass may remember what it likes."""
    lists: list[list[GraphPass]] = [
        [Strength(1)],
        [Strength(2)],
        [Strength(1), Strength(2)],
        [Strength(2), Strength(1)],
    ]
    digests = [Plan.take(passes=each).digest for each in lists]
    assert len(set(digests)) == len(digests)
    used = Strength(1)
    used.apply(torch.fx.Graph())
    used._seen = 7
    assert Plan.take(passes=[used]).digest == digests[0]


def test_the_architecture_counts(state: Runtime) -> None:
    """Another device is another digest; a second one of the same kind is not."""
    provide()
    first = digest()
    platform = copy.copy(state.platform)
    platform.devices = platform.devices * 2
    state.adopt(replace(state.landscape, platform=platform))
    assert digest() == first
    platform = copy.copy(platform)
    platform.devices = tuple(replace(device, name="another") for device in platform.devices)
    state.adopt(replace(state.landscape, platform=platform))
    assert digest() != first


def test_who_cannot_be_reached_does_not_count(state: Runtime) -> None:
    """Native takes every call, so nobody behind it matters; nor does who cannot run here."""
    assert state is not None
    before = Plan.take().digest
    provide()
    assert Plan.take().digest == before
    provide("absent", supported=Unsupported("needs another machine"))
    with ops.rms_norm.set_priority(["probe", "native"]):
        first = Plan.take().digest
        state.adopt(replace(state.landscape, provider_defaults={True: {"rms_norm": ("absent",)}}))
        assert Plan.take().digest == first


def test_who_may_have_to_step_in_counts(state: Runtime) -> None:
    """A provider that stands there by default and cannot be put into a graph makes room for the next one."""
    provide("first")
    provide("second", factor=5)

    class Vendors(Platform):
        """Puts native first for nobody."""

        @property
        def native_first_when_compiling(self) -> bool:
            """Return False, unlike the built-in ones."""
            return False

    platform = Vendors(name="vendors", device_type="cpu")
    order = {"rms_norm": ("first", "second")}
    state.adopt(replace(state.landscape, platform=platform, provider_defaults={True: order}))
    both = Plan.take().digest
    state.adopt(replace(state.landscape, provider_defaults={True: {"rms_norm": ("first",)}}))
    assert Plan.take().digest != both


def test_passes_of_distributions_come_behind_the_users(state: Runtime) -> None:
    """And each remembers who brought it."""
    brought = (("one", Strength(1)), ("two", Strength(1)))
    state.adopt(replace(state.landscape, passes=brought))
    mine = Strength(3)
    plan = Plan.take(passes=[mine])
    assert plan.passes == (mine, brought[0][1], brought[1][1])
    assert plan.bringers == (None, "one", "two")
    state.adopt(replace(state.landscape, passes=()))
    assert Plan.take(passes=[mine]).digest != plan.digest


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(("answer", "said"), [(3, "key returned 3, wanted a text"), (None, "key raised KeyError")])
def test_a_pass_without_a_key_is_an_error(answer: object, said: str) -> None:
    """Without one a cache would serve graphs of another pass."""

    class Keyless(Strength):
        """Gives no key."""

        def key(self) -> str:
            """Return something else, or raise."""
            if answer is None:
                raise KeyError(self.strength)
            return answer  # type: ignore[return-value]

    with pytest.raises(BrokenPass, match=said) as caught:
        Plan.take(passes=[Keyless(1)])
    assert caught.value.name == "Keyless"


def test_digests_are_worked_out_once(state: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second plan reads no function and no file, and neither does one for another selection of known providers."""
    assert state is not None
    provide()
    digest()
    for name in ("digest_code", "read_contents"):
        monkeypatch.setattr(fingerprint, name, lambda *_, **__: pytest.fail("worked out again"))
    assert digest() != Plan.take().digest
