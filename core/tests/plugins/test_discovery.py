"""Loading what is installed: whole or not at all, once, behind walls, and told to the runtime."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import errors, ops, plugins  # noqa: E402 - after the check for torch
from vllm_ir.environment import Environment  # noqa: E402
from vllm_ir.isolation import isolated  # noqa: E402
from vllm_ir.plugins import discovery  # noqa: E402

if TYPE_CHECKING:
    from vllm_ir.plugins.outcome import Discovery
    from vllm_ir.plugins.records import ProviderRecord
    from vllm_ir.runtime import Runtime

    from core.tests.plugins.conftest import Site

X = torch.zeros(2, 4)
ASKS = '[providers.fake.default.eager]\nrms_norm = ["cpu"]\n'


def load() -> Discovery:
    """Load what is on the path and return what came of it."""
    found = discovery.load_providers()
    assert found is not None
    return found


def find(name: str = "fake") -> ProviderRecord:
    """Return the record of one provider after loading."""
    (record,) = [each for each in plugins.providers() if each.name == name]
    return record


def installed_here() -> set[str]:
    """Return the providers of the environment that runs the tests, such as the example that a reader installed."""
    made = "vllm-ir-provider-fake", "synthetic-good"
    return {each.name for each in plugins.providers() if each.distribution not in made} - {"native"}


def manifest(more: str = "", *, top: str = "", ops: str = "rms_norm = {}", provider: str = "fake") -> str:
    """Return the text of a manifest with one provider for the CPU."""
    return (
        f'schema = 1\nprovider-api = "1"\nsummary = "x"\n{top}\n'
        f"[providers.{provider}.platforms]\ncpu = {{}}\n[providers.{provider}.ops]\n{ops}\n{more}"
    )


def test_a_provider_is_loaded_at_the_first_call_and_serves_it(site: Site, discovering: Runtime) -> None:
    """Nothing is imported before; the default order of its manifest holds; the call reaches its kernel."""
    site.provider(text=manifest(ASKS))
    assert site.imported() == []
    assert torch.equal(ops.rms_norm(X, None, 1e-5), X + 1)
    assert site.imported() == ["vllm_ir_provider_fake"]
    record = find()
    assert (record.state, record.ops, record.reason) == ("loaded", ("rms_norm",), None)
    assert discovering.landscape.distributions["fake"] == "vllm-ir-provider-fake"
    impl = ops.rms_norm.impls["fake"]
    assert (impl.distribution, impl.devices) == ("vllm-ir-provider-fake", frozenset({"cpu"}))


def test_native_enters_by_the_same_hook(site: Site, discovering: Runtime) -> None:
    """It is a record like any other, with all of the core's ops, and without a provider of anybody else."""
    del site
    record = find("native")
    assert (record.distribution, record.state) == ("vllm-ir", "loaded")
    assert set(record.ops) == set(ops.__all__)
    assert discovering.landscape.distributions["native"] == "vllm-ir"
    assert torch.equal(ops.rms_norm(X, None, 1e-5), X)


@pytest.mark.usefixtures("discovering")
def test_loading_twice_is_loading_once(site: Site) -> None:
    """The same value comes back, and hooks are called once."""
    site.provider(
        hooks=(
            "from vllm_ir import hookimpl\nimport sys\n"
            "@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels\n"
            "    sys.synthetic_calls = getattr(sys, 'synthetic_calls', 0) + 1\n"
            "    return [kernels.rms_norm]\n"
        )
    )
    try:
        assert load() is load()
        assert sys.synthetic_calls == 1  # type: ignore[attr-defined]
    finally:
        del sys.synthetic_calls  # type: ignore[attr-defined]


SOMEBODY = (
    "from vllm_ir import implements\nfrom torch import Tensor\n"
    "@implements('rms_norm', provider='somebody')\n"
    "def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:\n"
    "    return x\nALL = {'rms_norm': rms_norm}\n"
)


@pytest.mark.usefixtures("discovering")
def test_implementations_registered_at_once_count_like_returned_ones(site: Site) -> None:
    """The specification's way of declaring works inside a distribution, and is held against the manifest."""
    site.provider(
        text=manifest(ASKS),
        hooks=(
            "from torch import Tensor\nfrom vllm_ir import hookimpl, ops\n"
            "@ops.rms_norm.register_impl('fake')\n"
            "def one(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:\n"
            "    return x + 1\n"
            "@hookimpl\ndef vllm_ir_implementations(platform):\n    return []\n"
        ),
    )
    assert find().state == "loaded"
    assert torch.equal(ops.rms_norm(X, None, 1e-5), X + 1)
    assert ops.rms_norm.impls["fake"].devices == frozenset({"cpu"})


@pytest.mark.usefixtures("discovering")
def test_five_providers_of_which_two_work(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is broken, one is for another machine, one is denied: two are loaded, and all five are explained."""
    for name in ("a", "b", "broken", "denied"):
        site.provider(
            f"synthetic-{name}",
            package=f"synthetic_{name}",
            provider=name,
            hooks="raise RuntimeError('boom')\n" if name == "broken" else None,
        )
    site.provider(
        "synthetic-elsewhere",
        package="synthetic_elsewhere",
        provider="elsewhere",
        text=manifest(provider="elsewhere").replace("cpu = {}", "npu = {}"),
    )
    monkeypatch.setenv("VLLM_IR_PROVIDERS_DISABLED", "denied")
    with isolated({"VLLM_IR_PROVIDERS_DISABLED": "denied"}, loader=plugins.load_providers):
        found = {each.name: each for each in plugins.providers() if each.distribution.startswith("synthetic-")}
    states = {name: each.failure.kind if each.failure else each.state for name, each in found.items()}
    assert states == {
        "a": "loaded",
        "b": "loaded",
        "broken": "broken import",
        "denied": "denied by policy",
        "elsewhere": "wrong platform",
    }
    assert set(site.imported()) == {"synthetic_a", "synthetic_b", "synthetic_broken"}


@pytest.mark.usefixtures("discovering")
def test_two_distributions_with_one_provider_stop_it(site: Site) -> None:
    """An error that names both, at every call until it is settled; nothing was imported."""
    site.provider("synthetic-a", package="synthetic_a")
    site.provider("synthetic-b", package="synthetic_b")
    for _ in range(2):
        with pytest.raises(errors.DuplicateProvider, match="'synthetic-a', 'synthetic-b'"):
            ops.rms_norm(X, None, 1e-5)
    assert site.imported() == []


def test_an_unknown_name_in_the_allow_list_stops_it(site: Site) -> None:
    """Strict or not."""
    site.provider()
    with (
        isolated({"VLLM_IR_PROVIDERS": "fakee"}, loader=plugins.load_providers),
        pytest.raises(errors.UnknownAllowed, match="Did you mean 'fake'"),
    ):
        ops.rms_norm(X, None, 1e-5)


def test_strict_mode_leaves_merely_installed_failures_as_records(site: Site) -> None:
    """Strict is about predicates and about what the user named; a broken neighbour is neither."""
    site.provider(hooks="raise RuntimeError('boom')\n")
    with isolated({"VLLM_IR_STRICT": "1"}, loader=plugins.load_providers):
        assert torch.equal(ops.rms_norm(X, None, 1e-5), X)
        assert find().failure is not None


def test_a_named_provider_that_does_not_run_is_an_error_with_the_reason(site: Site) -> None:
    """What the user asked for is never skipped in silence."""
    site.provider(hooks="raise RuntimeError('boom')\n")
    with (
        isolated({"VLLM_IR_OP_PRIORITY": "rms_norm=fake"}, loader=plugins.load_providers),
        pytest.raises(errors.UnusableProvider, match="raised RuntimeError: boom"),
    ):
        ops.rms_norm(X, None, 1e-5)


@pytest.mark.usefixtures("discovering")
def test_a_denied_neighbour_in_one_distribution_is_left_out(site: Site) -> None:
    """A distribution may bring two providers; the one that is denied registers nothing, the other all."""
    two = manifest(ASKS) + "[providers.second.platforms]\ncpu = {}\n[providers.second.ops]\nrms_norm = {}\n"
    second = SOMEBODY.replace("'somebody'", "'second'").replace("ALL = {'rms_norm': rms_norm}", "SECOND = rms_norm")
    site.provider(
        text=two,
        files={"second.py": second},
        hooks=(
            "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels, second\n    return [kernels.rms_norm, second.SECOND]\n"
        ),
    )
    with isolated({"VLLM_IR_PROVIDERS_DISABLED": "second"}, loader=plugins.load_providers):
        assert find().state == "loaded"
        assert find("second").failure is not None
        assert set(ops.rms_norm.impls) - installed_here() == {"native", "fake"}


@pytest.mark.usefixtures("discovering")
def test_a_provider_that_calls_an_op_while_it_is_imported(site: Site) -> None:
    """The provider imports the host that imports vllm_ir and calls an op: it sees the process without the provider."""
    site.write(
        "synthetic_host.py",
        """
        import torch
        from vllm_ir import ops, plugins, register_op
        from torch import Tensor

        SEEN = ops.rms_norm(torch.zeros(2, 4), None, 1e-5)
        ORDER = list(ops.rms_norm.impls)
        RECORDS = plugins.providers()

        @register_op
        def synthetic_host_op(x: Tensor) -> Tensor:
            return x * 5
        """,
    )
    site.packages.append("synthetic_host")
    site.provider(
        text=manifest(ASKS),
        hooks=(
            "import synthetic_host\nfrom vllm_ir import hookimpl\n@hookimpl\n"
            "def vllm_ir_implementations(platform):\n    from vllm_ir_provider_fake import kernels\n"
            "    return [kernels.rms_norm]\n"
        ),
    )
    assert torch.equal(ops.rms_norm(X, None, 1e-5), X + 1)
    host = sys.modules["synthetic_host"]
    assert torch.equal(host.SEEN, X)
    assert host.ORDER == ["native"]
    assert host.RECORDS == ()
    assert torch.equal(ops.synthetic_host_op(X + 1), (X + 1) * 5)


@pytest.mark.parametrize("place", ["hooks", "kernels"])
def test_a_provider_that_is_named_and_calls_an_op_while_it_is_loaded_is_told_so(site: Site, place: str) -> None:
    """It is installed, and not there yet: the sentence says which of the two, and what its author may do."""
    call = "import torch\nfrom vllm_ir import ops\nops.rms_norm(torch.zeros(2, 4), None, 1e-5)\n"
    site.provider(hooks=call if place == "hooks" else None, kernels=call if place == "kernels" else None)
    variables = {"VLLM_IR_OP_PRIORITY": "rms_norm=fake", "VLLM_IR_PROVIDERS": "fake"}
    with isolated(variables, loader=discovery.load_providers):
        record = find()
        assert record.failure is not None
        assert record.failure.kind == "bad declaration"
        assert "'fake', which VLLM_IR_OP_PRIORITY names for it, is not there yet" in record.failure.reason
        assert "may not call ops" in record.failure.reason
        with pytest.raises(errors.UnusableProvider, match="while providers are still being loaded") as caught:
            ops.rms_norm(X, None, 1e-5)
        assert "not installed" not in str(caught.value)


@pytest.mark.usefixtures("discovering")
def test_a_provider_that_configures_every_op_while_it_is_loaded_is_told_so(site: Site) -> None:
    """Its own name is not unknown, only not there yet."""
    site.provider(
        hooks="from vllm_ir import IrOpPriorityConfig\nIrOpPriorityConfig.with_default(['fake', 'native']).apply()\n"
    )
    reason = str(find().reason)
    assert "Every op was configured while providers are still being loaded, so 'fake'" in reason
    assert "not installed" not in reason


@pytest.mark.usefixtures("discovering")
def test_what_a_host_declared_survives_the_failure_of_who_imported_it(site: Site) -> None:
    """A module is imported once, so what it registered must not go down with a provider that breaks."""
    site.write(
        "synthetic_host.py",
        "from torch import Tensor\nfrom vllm_ir import register_op\n"
        "@register_op\ndef synthetic_host_op(x: Tensor) -> Tensor:\n    return x * 5\n",
    )
    site.packages.append("synthetic_host")
    site.provider(hooks="import synthetic_host\nraise RuntimeError('boom')\n")
    assert find().failure is not None
    assert torch.equal(ops.synthetic_host_op(X + 1), (X + 1) * 5)


def test_without_its_native_functions_the_core_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, discovering: Runtime
) -> None:
    """Everything falls back on them, so their failure is an inner fault."""
    from vllm_ir.plugins import native

    monkeypatch.setattr(native, "vllm_ir_ops", list)
    with pytest.raises(errors.InternalError, match="Provider 'native' did not load"):
        discovery.discover(Environment.read({}), discovering.platform, installed=[])
