"""What a distribution may bring beside kernels: ops, a platform, and priorities that are decided when it loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import errors, ops, platforms, plugins  # noqa: E402 - after the check for torch
from vllm_ir.isolation import isolated  # noqa: E402
from vllm_ir.plugins import discovery  # noqa: E402

if TYPE_CHECKING:
    from vllm_ir.plugins.outcome import Discovery
    from vllm_ir.plugins.records import ProviderRecord
    from vllm_ir.runtime import Runtime

    from core.tests.plugins.conftest import Site

X = torch.zeros(2, 4)


def load() -> Discovery:
    """Load what is on the path and return what came of it."""
    found = discovery.load_providers()
    assert found is not None
    return found


def find(name: str = "fake") -> ProviderRecord:
    """Return the record of one provider after loading."""
    (record,) = [each for each in plugins.providers() if each.name == name]
    return record


def manifest(more: str = "", *, top: str = "", ops: str = "rms_norm = {}", provider: str = "fake") -> str:
    """Return the text of a manifest with one provider for the CPU."""
    return (
        f'schema = 1\nprovider-api = "1"\nsummary = "x"\n{top}\n'
        f"[providers.{provider}.platforms]\ncpu = {{}}\n[providers.{provider}.ops]\n{ops}\n{more}"
    )


SOMEBODY = (
    "from vllm_ir import implements\nfrom torch import Tensor\n"
    "@implements('rms_norm', provider='somebody')\n"
    "def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:\n"
    "    return x\nALL = {'rms_norm': rms_norm}\n"
)
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
