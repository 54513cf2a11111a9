"""Graph passes that a distribution brings: announced, in order, whole or not at all, and never of a denied one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import load_providers, ops, report  # noqa: E402 - after the check for torch
from vllm_ir.compile.backend import backend  # noqa: E402
from vllm_ir.compile.lower_to import lower_graph  # noqa: E402
from vllm_ir.compile.plan import Plan  # noqa: E402
from vllm_ir.isolation import isolated  # noqa: E402
from vllm_ir.plugins.discovery import load_providers as discover  # noqa: E402

if TYPE_CHECKING:
    from typing import Any

    from vllm_ir.runtime import Runtime

    from core.tests.plugins.conftest import Site

PASSES = """
from vllm_ir.compile.passes import GraphPass

class Fuse(GraphPass):
    def apply(self, graph):
        return 0

class Other(Fuse):
    pass
"""

HOOKS = """
from vllm_ir import hookimpl

@hookimpl
def vllm_ir_passes(platform):
    from {package}.passes import Fuse, Other
    return {answer}
"""

MANIFEST = """
schema = 1
provider-api = "1"
summary = "Passes only."
rank = {rank}
{adds}
"""


def install(
    site: Site,
    name: str = "graph-tools",
    *,
    answer: str = "[Fuse()]",
    adds: str = 'adds-passes = ["Fuse"]',
    rank: int = 0,
) -> str:
    """Write a distribution that brings nothing but passes, and return its package."""
    package = name.replace("-", "_")
    return site.provider(
        name,
        provider=name.replace("-", "_"),
        text=MANIFEST.format(adds=adds, rank=rank),
        hooks=HOOKS.format(package=package, answer=answer),
        files={"passes.py": PASSES},
    )


def record_of(name: str = "graph-tools") -> Any:
    """Return what became of a distribution."""
    found = discover()
    assert found is not None
    return next(each for each in found.distributions if each.name == name)


def test_passes_are_brought_by_a_hook(site: Site, discovering: Runtime) -> None:
    """They stand in every plan, after the distribution with the higher rank, ties by name, and run on graphs."""
    install(site, "b-tools", answer="[Other(), Fuse()]", adds='adds-passes = ["Fuse", "Other"]')
    install(site, "a-tools")
    install(site, "z-tools", rank=3)
    plan = Plan.take()
    assert plan.bringers == ("z-tools", "a-tools", "b-tools", "b-tools")
    assert [each.name for each in plan.passes] == ["Fuse", "Fuse", "Other", "Fuse"]

    def lower(module: Any, _: Any) -> Any:
        """Lower a graph and let torch run it."""
        lower_graph(module)
        return module

    x, weight = torch.ones(2, 8), torch.ones(8)
    torch.compile(lambda t: ops.rms_norm(t, weight, 1e-5), backend=backend, options={"lower_to": lower})(x)
    names = [each.name for each in report().graphs[-1].passes]
    assert names == ["functionalization", "Fuse", "Fuse", "Other", "Fuse", "lowering"]
    assert len(discovering.landscape.passes) == 4


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize(
    ("answer", "adds", "kind", "said"),
    [
        ("[3]", 'adds-passes = ["Fuse"]', "bad pass", "returned int 3"),
        ("Fuse()", 'adds-passes = ["Fuse"]', "", ""),
        ("[Fuse]", 'adds-passes = ["Fuse"]', "bad pass", "a class, Fuse; make an object of it"),
        ("None", 'adds-passes = ["Fuse"]', "bad pass", "returned NoneType None"),
        ("[Fuse(), Fuse()]", 'adds-passes = ["Fuse"]', "bad pass", "two passes named 'Fuse'"),
        ("[Fuse(), Other()]", 'adds-passes = ["Fuse"]', "manifest disagreeing", "the passes it adds"),
        ("[Fuse()]", "", "manifest disagreeing", "hook vllm_ir_passes"),
        ("1 / 0", 'adds-passes = ["Fuse"]', "broken import", "hook vllm_ir_passes raised ZeroDivisionError"),
    ],
)
def test_what_is_no_pass_is_a_record(site: Site, answer: str, adds: str, kind: str, said: str) -> None:
    """Of its own kind, and none of the distribution's passes runs; a single pass needs no list."""
    install(site, answer=answer, adds=adds)
    failure = record_of().failure
    if not kind:
        assert failure is None
        return
    assert (failure.kind, failure.fault) == (kind, True)
    assert said in failure.reason
    assert Plan.take().passes == ()


def test_passes_of_a_denied_distribution_never_load(site: Site) -> None:
    """Not even their module is imported, and the digest is that of a process without them."""
    package = install(site)
    with isolated({"VLLM_IR_PROVIDERS_DISABLED": "*"}, loader=load_providers):
        assert Plan.take().passes == ()
        assert f"{package}.hooks" not in sys.modules
