"""Loading what is installed: whole or not at all, once, behind walls, and told to the runtime."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import errors, ops, platforms, plugins  # noqa: E402 - after the check for torch
from vllm_ir.environment import Environment  # noqa: E402
from vllm_ir.isolation import isolated  # noqa: E402
from vllm_ir.plugins import discovery  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

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


BROKEN = [
    (
        "module raises",
        {"hooks": "raise OSError('libfast.so.1 is missing')\n"},
        "broken import",
        "libfast.so.1 is missing",
    ),
    ("module exits", {"hooks": "raise SystemExit(0)\n"}, "broken import", "raised SystemExit"),
    (
        "module misses another",
        {"hooks": "import absent_library\n"},
        "broken import",
        "No module named 'absent_library'",
    ),
    ("kernels raise", {"kernels": "raise ImportError('half installed')\n"}, "broken import", "half installed"),
    (
        "no module",
        {"entry_point": "fake = vllm_ir_provider_fake.hook"},
        "broken import",
        "fake.hook', which does not exist",
    ),
    (
        "no attribute",
        {"entry_point": "fake = vllm_ir_provider_fake.hooks:plugin"},
        "broken import",
        "names 'plugin' in module",
    ),
    (
        "misspelt hook",
        {"hooks": "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementatons(platform): return []\n"},
        "misspelt hook",
        "Did you mean 'vllm_ir_implementations'",
    ),
    (
        "strange argument",
        {"hooks": "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementations(machine): return []\n"},
        "bad declaration",
        "machine",
    ),
    ("no hook", {"hooks": ""}, "manifest disagreeing", "hook vllm_ir_implementations"),
    (
        "op missing",
        {"text": manifest(ops="rms_norm = {}\nsilu_and_mul = {}")},
        "manifest disagreeing",
        "op 'silu_and_mul'",
    ),
    (
        "op too many",
        {"ops": ("rms_norm", "silu_and_mul"), "text": manifest()},
        "manifest disagreeing",
        "op 'silu_and_mul'",
    ),
    ("another provider", {"kernels": None, "provider": "fake"}, "manifest disagreeing", "of provider 'somebody'"),
    (
        "flag",
        {"text": manifest(ops="rms_norm = { batch-invariant = true }")},
        "manifest disagreeing",
        "batch-invariant of op",
    ),
    ("announced ops", {"text": manifest(top='adds-ops = ["an_op"]')}, "manifest disagreeing", "hook vllm_ir_ops"),
    ("announced defaults", {"text": manifest(top="defaults-at-run-time = true")}, "manifest disagreeing", "priorities"),
    ("announced platform", {"text": manifest(top='platform = "npu"')}, "manifest disagreeing", "hook vllm_ir_platform"),
]

SOMEBODY = (
    "from vllm_ir import implements\nfrom torch import Tensor\n"
    "@implements('rms_norm', provider='somebody')\n"
    "def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:\n"
    "    return x\nALL = {'rms_norm': rms_norm}\n"
)


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize(("change", "kind", "said"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_does_not_load_is_a_record_and_leaves_nothing(
    site: Site, change: dict[str, Any], kind: str, said: str
) -> None:
    """Each is a record of its kind; the others work, and nothing of it is registered."""
    if change.get("kernels", "") is None:
        change = {**change, "kernels": SOMEBODY}
    site.provider(**change)
    site.provider("synthetic-good", package="synthetic_good", provider="good")
    record = find()
    assert record.failure is not None
    assert (record.failure.kind, record.failure.fault, record.state) == (kind, True, "not usable")
    assert said in record.failure.reason
    assert "vllm-ir-provider-fake" in record.failure.reason
    assert find("good").state == "loaded"
    assert set(ops.rms_norm.impls) - installed_here() == {"native", "good"}
    assert torch.equal(ops.rms_norm(X, None, 1e-5), X)


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize("where", ["hooks", "kernels"])
def test_a_foreign_exception_keeps_its_traceback(site: Site, where: str) -> None:
    """The author finds the line that raised."""
    site.provider(**{where: "def deep():\n    raise ImportError('half installed')\ndeep()\n"})  # type: ignore[arg-type]
    record = find()
    assert record.failure is not None
    told = str(record.failure.traceback)
    assert told.startswith("Traceback")
    assert f'vllm_ir_provider_fake/{where}.py", line 2, in deep' in told
    assert told.endswith("ImportError: half installed\n")


GARBAGE = ["None", "3", "'rms_norm'", "{'rms_norm': 1}", "[1]", "[lambda x: x]", "[None]", "iter([object()])"]


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize("hook", ["vllm_ir_implementations(platform)", "vllm_ir_ops()"])
def test_garbage_out_of_a_hook_is_a_bad_declaration(site: Site, hook: str, value: str) -> None:
    """Whatever is returned, the sentence says what it was and what was wanted."""
    site.provider(
        text=manifest(top='adds-ops = ["an_op"]') if "ops" in hook else manifest(),
        hooks=(
            f"from vllm_ir import hookimpl\n@hookimpl\ndef {hook}:\n    return {value}\n"
            + ("@hookimpl\ndef vllm_ir_implementations(platform): return []\n" if "ops" in hook else "")
        ),
    )
    record = find()
    assert record.failure is not None
    assert record.failure.kind == "bad declaration"
    assert f"hook {hook.partition('(')[0]} returned" in record.failure.reason
    assert "wanted a list of" in record.failure.reason


@pytest.mark.usefixtures("discovering")
def test_a_declaration_that_the_core_refuses_is_a_bad_declaration(site: Site) -> None:
    """The core's own sentence is inside."""
    site.provider(
        kernels=(
            "from vllm_ir import implements\nfrom torch import Tensor\n"
            "@implements('rms_norm', provider='fake')\n"
            "def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:\n    return x\n"
            "ALL = {'rms_norm': rms_norm}\n"
        )
    )
    record = find()
    assert record.failure is not None
    assert record.failure.kind == "bad declaration"
    assert "has the schema" in record.failure.reason
    assert "Nothing of it was registered" in record.failure.reason


@pytest.mark.usefixtures("discovering")
def test_two_of_three_and_then_an_exception_leaves_none(site: Site) -> None:
    """Registered at once, at import or inside a hook: it is held back until all of it is there."""
    site.provider(
        text=manifest(ops="rms_norm = {}\nsilu_and_mul = {}"),
        hooks=(
            "from torch import Tensor\nfrom vllm_ir import hookimpl, ops, register_op\n"
            "@register_op\ndef synthetic_op(x: Tensor) -> Tensor:\n    return x\n"
            "@ops.rms_norm.register_impl('fake')\n"
            "def one(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:\n"
            "    return x + 1\n"
            "@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    @ops.silu_and_mul.register_impl('fake')\n"
            "    def two(x: Tensor) -> Tensor:\n        return x\n"
            "    raise RuntimeError('the third')\n"
        ),
    )
    record = find()
    assert record.failure is not None
    assert "the third" in str(record.failure.traceback)
    assert "fake" not in {*ops.rms_norm.impls, *ops.silu_and_mul.impls}
    with pytest.raises(errors.UnknownOp):
        _ = ops.synthetic_op


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


NEW_OP = (
    "from torch import Tensor\nfrom vllm_ir import hookimpl, implements, register_op\n"
    "@register_op\ndef synthetic_scale(x: Tensor) -> Tensor:\n    return x * 2\n"
    "@hookimpl\ndef vllm_ir_ops():\n    return [synthetic_scale]\n"
)
OPS_ONLY = 'schema = 1\nprovider-api = "1"\nsummary = "x"\nadds-ops = ["synthetic_scale"]\n'


@pytest.mark.usefixtures("discovering")
def test_a_distribution_may_add_an_op_that_another_implements(site: Site) -> None:
    """Ops come first, whatever the order of the path, and are found under `ops` by name."""
    site.provider("synthetic-zops", package="synthetic_zops", provider="zops", text=OPS_ONLY, hooks=NEW_OP)
    site.provider(
        text=manifest('[providers.fake.default.eager]\nsynthetic_scale = ["cpu"]\n', ops="synthetic_scale = {}"),
        kernels=(
            "from torch import Tensor\nfrom vllm_ir import implements\n"
            "@implements('synthetic_scale', provider='fake')\ndef scale(x: Tensor) -> Tensor:\n    return x * 3\n"
            "ALL = {'rms_norm': scale}\n"
        ),
    )
    assert torch.equal(ops.synthetic_scale(X + 1), (X + 1) * 3)
    assert find().ops == ("synthetic_scale",)
    assert "synthetic-zops" not in [each.distribution for each in plugins.providers()]


def test_an_op_of_a_distribution_that_does_not_load_is_left_out(site: Site) -> None:
    """The implementation of a missing neighbour's op is refused with the reason; the rest loads."""
    site.provider("synthetic-zops", package="synthetic_zops", provider="zops", text=OPS_ONLY, hooks=NEW_OP)
    site.provider(
        text=manifest(ops="rms_norm = {}\nsynthetic_scale = {}"),
        kernels=(
            SOMEBODY.replace("'somebody'", "'fake'")
            + "@implements('synthetic_scale', provider='fake')\ndef scale(x: Tensor) -> Tensor:\n    return x * 3\n"
        ),
        hooks=(
            "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels\n    return [kernels.rms_norm, kernels.scale]\n"
        ),
    )
    with isolated({"VLLM_IR_PROVIDERS_DISABLED": "zops"}, loader=plugins.load_providers):
        record = find()
        assert (record.state, record.ops) == ("loaded", ("rms_norm",))
        assert dict(record.refused_ops) == {"synthetic_scale": "synthetic-zops, which adds the op, is not loaded"}


PLATFORM = """
from vllm_ir import Platform, hookimpl, implements
from torch import Tensor

class Npu(Platform):
    name = "npu"
    device_type = "npu"
    def get_default_ir_op_priority(self, compiling=False):
        return {{"rms_norm": ["fake", "absent"]}}

@hookimpl
def vllm_ir_platform():
    return {answer}

@hookimpl
def vllm_ir_implementations(platform):
    from vllm_ir_provider_fake import kernels
    return [kernels.rms_norm]
"""
NPU_MANIFEST = manifest(top='platform = "npu"').replace("cpu = {}", "npu = {}")


def test_a_vendors_platform_is_that_of_the_process(site: Site, discovering: Runtime) -> None:
    """The hook decides, everybody is judged for it, and its order goes first; an absent name is dropped."""
    import vllm_ir

    site.provider(text=NPU_MANIFEST, hooks=PLATFORM.format(answer="Npu()"))
    found = load()
    assert found.platform.name == vllm_ir.current_platform.name == "npu"
    assert discovering.landscape.platform_defaults[False] == {"rms_norm": ("fake",)}
    assert [(each.provider, each.wanted_by) for each in found.dropped] == [("absent", "platform npu")]
    assert ops.rms_norm.impls["fake"].devices == frozenset({"npu"})
    assert (find().state, find("native").state) == ("loaded", "loaded")


@pytest.mark.usefixtures("discovering")
def test_a_vendors_platform_that_is_not_here_leaves_the_provider_out(site: Site) -> None:
    """The hook says None, so the machine is what it was, and the provider is for another."""
    site.provider(text=NPU_MANIFEST, hooks=PLATFORM.format(answer="None"))
    assert load().platform.name in platforms.BUILT_IN
    record = find()
    assert record.failure is not None
    assert record.failure.kind == "wrong platform"
    assert "fake" not in ops.rms_norm.impls


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ("'npu'", "bad declaration", "returned str 'npu', wanted a Platform or None"),
        ("Platform(name='other', device_type='npu')", "manifest disagreeing", "says 'npu', the hooks say 'other'"),
        ("1 / 0", "broken import", "ZeroDivisionError"),
        ("Platform(name='', device_type='npu')", "bad declaration", "Platform Platform: name is ''"),
    ],
)
def test_a_platform_that_is_none_is_a_record(site: Site, answer: str, kind: str, said: str) -> None:
    """The machine stays what it was, and the provider's failure is that of its hook, not the machine."""
    site.provider(text=NPU_MANIFEST, hooks=PLATFORM.format(answer=answer))
    record = find()
    assert record.failure is not None
    assert record.failure.kind == kind
    assert said in record.failure.reason
    assert load().platform.name in platforms.BUILT_IN


@pytest.mark.usefixtures("discovering")
def test_two_platforms_for_one_machine_stop_it(site: Site) -> None:
    """The operator says which of the two it is."""
    hooks = (
        "from vllm_ir import Platform, hookimpl\n"
        "@hookimpl\ndef vllm_ir_platform():\n    return Platform(name={0!r}, device_type='x')\n"
    )
    for name in ("npu", "tpu"):
        text = f'schema = 1\nprovider-api = "1"\nsummary = "x"\nplatform = "{name}"\n'
        site.provider(
            f"synthetic-{name}", package=f"synthetic_{name}", provider=name, text=text, hooks=hooks.format(name)
        )
    with pytest.raises(errors.DuplicatePlatform, match="each bring a platform for this machine"):
        load()
    found = discovery.load_around_conflicts()
    assert found is not None
    assert [each.kind for each in found.conflicts] == ["duplicate platform"]
    kinds = {each.name: each.failure.kind for each in found.distributions if each.failure}
    assert kinds.items() >= {"synthetic-npu": "duplicate platform", "synthetic-tpu": "duplicate platform"}.items()
    assert found.platform.name in platforms.BUILT_IN


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("{'rms_norm': ['fake']} if not compiling else {}", {"rms_norm": ("fake",)}),
        ("{'rms_norm': ('fake', 'fake'), 'absent_op': ['fake']}", {"rms_norm": ("fake",)}),
        ("{}", {}),
        ("None", {}),
    ],
)
def test_priorities_may_be_decided_at_run_time(site: Site, answer: str, wanted: dict[str, tuple[str, ...]]) -> None:
    """The hook's answer stands in place of the manifest's tables; what cannot stand there is dropped."""
    site.provider(
        text=manifest(top="defaults-at-run-time = true"),
        hooks=(
            "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels\n    return [kernels.rms_norm]\n"
            f"@hookimpl\ndef vllm_ir_default_priorities(platform, compiling):\n    return {answer}\n"
        ),
    )
    assert load().landscape.provider_defaults[False] == wanted


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize(
    "answer", ["3", "['rms_norm']", "{'rms_norm': 'fake'}", "{'rms_norm': ['native']}", "{1: ['fake']}"]
)
def test_priorities_that_are_no_table_of_its_own_providers_are_refused(site: Site, answer: str) -> None:
    """A distribution speaks for its own providers only."""
    site.provider(
        text=manifest(top="defaults-at-run-time = true"),
        hooks=(
            "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementations(platform): return []\n"
            f"@hookimpl\ndef vllm_ir_default_priorities(platform, compiling):\n    return {answer}\n"
        ),
    )
    record = find()
    assert record.failure is not None
    assert record.failure.kind == "bad declaration"
    assert "wanted a dict from op names to lists of its own providers ('fake')" in record.failure.reason


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


@pytest.mark.usefixtures("discovering")
def test_threads_that_call_at_once_all_get_the_loaded_provider(site: Site) -> None:
    """One of them loads, the others wait; none of them runs on native."""
    site.provider(
        text=manifest(ASKS),
        hooks=(
            "import time\ntime.sleep(0.2)\n"
            "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels\n    return [kernels.rms_norm]\n"
        ),
    )
    results: list[bool] = []
    start = threading.Barrier(6)

    def call() -> None:
        """Call the op together with the others."""
        start.wait()
        results.append(torch.equal(ops.rms_norm(X, None, 1e-5), X + 1))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 6


@pytest.mark.usefixtures("discovering")
def test_the_summary_is_logged_once_and_can_be_shown_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A program that configures logging late asks for it again."""
    site.provider()
    site.provider("synthetic-broken", package="synthetic_broken", provider="broken", hooks="1 / 0\n")
    assert discovery.show_summary() is None
    with caplog.at_level(logging.INFO, logger="vllm_ir"):
        found = load()
        load()
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert lines == [found.summary]
    assert "native serves 5 ops" in found.summary
    assert "fake serves 1 op" in found.summary
    assert "broken (broken import)" in found.summary
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="vllm_ir"):
        assert discovery.show_summary() == found.summary
    assert [each.getMessage() for each in caplog.records] == [found.summary]


@pytest.mark.usefixtures("discovering")
def test_a_denied_name_that_looks_like_a_mistake_is_a_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt deny list lets the provider run, which nobody wanted."""
    site.provider()
    with isolated({"VLLM_IR_PROVIDERS_DISABLED": "fakee"}, loader=plugins.load_providers):
        load()
    assert "VLLM_IR_PROVIDERS_DISABLED names 'fakee', which nothing here has. Did you mean 'fake'?" in caplog.text


@pytest.mark.usefixtures("discovering")
def test_the_digest_tells_whether_processes_agree(make_site: Callable[[str], Site]) -> None:
    """The same wheels in another folder give the same digest; a break gives another."""
    digests: list[str] = []
    for name, broken in (("one", False), ("two", False), ("three", True)):
        site = make_site(name)
        for package in ("vllm_ir_provider_fake", *site.packages):
            for module in [each for each in sys.modules if each.split(".")[0] == package]:
                del sys.modules[module]
        site.provider(hooks="1 / 0\n" if broken else None)
        with isolated(loader=plugins.load_providers):
            found = load()
            assert [len(each.shadowed) for each in found.distributions if each.name.endswith("fake")] == [len(digests)]
            digests.append(found.digest)
    assert digests[0] == digests[1] != digests[2]


def test_spawned_and_forked_processes_agree(site: Site) -> None:
    """Each process discovers for itself, a forked one keeps what its parent found; one digest for all."""
    site.provider(
        hooks=(
            "import os\nfrom vllm_ir import hookimpl\nIMPORTED_IN = os.getpid()\n"
            "@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels\n    return [kernels.rms_norm]\n"
        )
    )
    site.write(
        "synthetic_workers.py",
        """
        import multiprocessing
        import os
        import sys

        def look(_):
            from vllm_ir.plugins import discovery
            found = discovery.load_providers()
            hooks = sys.modules["vllm_ir_provider_fake.hooks"]
            return found.digest, hooks.IMPORTED_IN == os.getpid()

        if __name__ == "__main__":
            print(*look(0))
            for way in ("spawn", "fork"):
                with multiprocessing.get_context(way).Pool(1) as pool:
                    print(*pool.map(look, [0])[0])
        """,
    )
    done = subprocess.run(
        [sys.executable, str(site.path / "synthetic_workers.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site.path), os.environ.get("PYTHONPATH", "")])},
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [own for _, own in rows] == ["True", "True", "False"], done.stderr
    assert len({digest for digest, _ in rows}) == 1


def test_without_its_native_functions_the_core_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, discovering: Runtime
) -> None:
    """Everything falls back on them, so their failure is an inner fault."""
    from vllm_ir.plugins import native

    monkeypatch.setattr(native, "vllm_ir_ops", list)
    with pytest.raises(errors.InternalError, match="Provider 'native' did not load"):
        discovery.discover(Environment.read({}), discovering.platform, installed=[])
