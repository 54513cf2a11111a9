"""What does not load: a record of its kind, and nothing else of it, whatever a distribution does wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import errors, ops, plugins  # noqa: E402 - after the check for torch

if TYPE_CHECKING:
    from vllm_ir.plugins.records import ProviderRecord

    from core.tests.plugins.conftest import Site

X = torch.zeros(2, 4)


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
