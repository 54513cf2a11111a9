"""The default orders that all manifests of this repository make together: platform by op, eager and compiling.

Files decide them, so this test asks the files, whatever is installed. A new op, platform or provider changes the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from vllm_ir.environment import Environment
from vllm_ir.platforms import BUILT_IN, named_platform
from vllm_ir.plugins.distributions import EntryPoint, Installed
from vllm_ir.plugins.forecast import declared_ops, forecast
from vllm_ir.plugins.static import Survey, survey
from vllm_ir.preferences import Preferences
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.verdict import Explanation

    from tests.conftest import Workspace

NORM, FUSED, SILU, GELU, ROTARY = "rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding"
INVARIANT = ("triton", "triton_batch_invariant")
QUANTISED = (
    "static_quant_fp8",
    "dynamic_quant_fp8",
    "dynamic_group_quant_fp8",
    "rms_norm_static_quant_fp8",
    "fused_add_rms_norm_static_quant_fp8",
    "rms_norm_dynamic_quant_fp8",
    "fused_add_rms_norm_dynamic_quant_fp8",
    "silu_and_mul_static_quant_fp8",
    "silu_and_mul_dynamic_quant_fp8",
    "silu_and_mul_group_quant_fp8",
)
TURNED = "fused_qk_norm_rope"

# Who has a place in the default list before native, for eager calls.
EAGER = {
    ("cpu", NORM): ("cpu_c",),
    ("cpu", FUSED): ("cpu_c",),
    ("cpu", SILU): ("cpu_c",),
    ("cpu", GELU): ("cpu_c",),
    ("cpu", ROTARY): ("cpu_c",),
    ("cuda:9.0", NORM): ("vllm_c", *INVARIANT),
    ("cuda:9.0", FUSED): ("vllm_c", *INVARIANT),
    ("cuda:9.0", SILU): ("vllm_c", *INVARIANT),
    ("cuda:9.0", GELU): ("vllm_c", *INVARIANT),
    ("cuda:9.0", ROTARY): ("vllm_c", *INVARIANT),
    ("rocm:gfx942", NORM): ("aiter", *INVARIANT),
    ("rocm:gfx942", FUSED): INVARIANT,
    ("rocm:gfx942", SILU): INVARIANT,
    ("rocm:gfx942", GELU): INVARIANT,
    ("rocm:gfx942", ROTARY): ("aiter", *INVARIANT),
    ("rocm:gfx90a", NORM): INVARIANT,
    ("rocm:gfx90a", ROTARY): INVARIANT,
    ("rocm:gfx1201", NORM): INVARIANT,
    ("rocm:gfx1201", ROTARY): INVARIANT,
    ("xpu", NORM): ("xpu_kernels",),
    ("xpu", FUSED): ("xpu_kernels",),
    ("xpu", SILU): (),
    ("xpu", GELU): (),
    ("xpu", ROTARY): (),
}
for _op in (*QUANTISED, TURNED):
    EAGER |= {
        ("cpu", _op): ("cpu_c",),
        ("cuda:9.0", _op): ("vllm_c", *INVARIANT),
        ("rocm:gfx942", _op): INVARIANT,
        ("xpu", _op): (),
    }
# Who runs where VLLM_BATCH_INVARIANT=1 admits only what is declared so; None: a run stops.
BATCH_INVARIANT = {
    ("cpu", NORM): "cpu_c",
    ("cpu", "static_quant_fp8"): "cpu_c",
    ("cpu", "dynamic_group_quant_fp8"): "cpu_c",
    ("cpu", TURNED): "cpu_c",
    ("cpu", "dynamic_quant_fp8"): None,
    ("cuda:9.0", NORM): "vllm_c",
    ("rocm:gfx942", NORM): "triton_batch_invariant",
    ("rocm:gfx942", FUSED): "triton_batch_invariant",
    ("rocm:gfx942", SILU): "triton_batch_invariant",
    ("rocm:gfx942", GELU): "triton_batch_invariant",
    ("rocm:gfx942", ROTARY): "triton_batch_invariant",
    ("rocm:gfx1201", NORM): "triton_batch_invariant",
    ("xpu", NORM): None,
}


@pytest.fixture
def ask(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Explanation]:
    """Give a function that forecasts an op on a named platform, with every provider of this repository installed."""
    found = []
    for one in workspace.distributions:
        points = one.project.get("entry-points", {}).get("vllm_ir.providers", {})
        source = one.folder / "src"
        if points and one.folder.parent.name == "providers":
            monkeypatch.syspath_prepend(str(source))
            entries = tuple(EntryPoint(name, module, None) for name, module in points.items())
            found.append(Installed(one.project["name"], "0.1.0", str(source), entries, (), ()))

    def run(
        platform: str, op: str, *, compiling: bool = False, without: str = "", invariant: bool = False
    ) -> Explanation:
        """Return every candidate in order, one provider denied if it is named."""
        told = installed(platform, without=without, invariant=invariant)
        environment = Environment(batch_invariant=invariant)
        return forecast(op, told, Preferences(environment, Settings()), compiling=compiling).explanation

    def installed(platform: str, *, without: str = "", invariant: bool = False) -> Survey:
        """Return what is installed, judged for a platform."""
        environment = Environment(disabled=(without,) if without else (), batch_invariant=invariant)
        return survey(environment, named_platform(platform), found)

    return run


def listed(told: Explanation) -> list[str]:
    """Return the providers that have a place in the order."""
    return [each.provider for each in told.verdicts if each.layer]


@pytest.mark.parametrize(("platform", "op"), EAGER)
def test_the_table_of_eager_orders(ask: Callable[..., Explanation], platform: str, op: str) -> None:
    """In the order of the ranks, then native."""
    assert listed(ask(platform, op)) == [*EAGER[platform, op], "native"]


@pytest.mark.parametrize(("platform", "op"), EAGER)
def test_native_is_first_where_inductor_compiles(ask: Callable[..., Explanation], platform: str, op: str) -> None:
    """On every built-in platform, whoever else asks to be there."""
    told = ask(platform, op, compiling=True)
    assert listed(told)[0] == "native"
    assert told.selected == "native"


def test_the_table_has_every_platform_and_op(workspace: Workspace) -> None:
    """An op or a platform that is added without its row fails here."""
    assert workspace.root.is_dir()
    ops = declared_ops(survey(Environment(), named_platform("cpu"), []))
    assert set(BUILT_IN) == {platform.partition(":")[0] for platform, _ in EAGER}
    for platform in ("cpu", "cuda:9.0", "rocm:gfx942", "xpu"):
        assert {op for where, op in EAGER if where == platform} == set(ops), platform


@pytest.mark.parametrize(("platform", "op"), BATCH_INVARIANT)
def test_only_what_is_declared_runs_in_batch_invariant_mode(
    ask: Callable[..., Explanation], platform: str, op: str
) -> None:
    """The first that is declared so runs, nothing that is not is accepted, and nobody is silently replaced."""
    told = ask(platform, op, invariant=True)
    assert told.selected == BATCH_INVARIANT[platform, op]
    accepted = {each.provider for each in told.verdicts if each.accepted}
    assert accepted <= {"cpu_c", "vllm_c", "triton_batch_invariant", "native"}


@pytest.mark.parametrize("platform", ["cpu", "cuda:9.0", "rocm:gfx942"])
def test_a_graph_in_batch_invariant_mode_has_a_kernel(ask: Callable[..., Explanation], platform: str) -> None:
    """Compiled native is not batch-invariant, so the providers that are stand behind it, and no start-up stops."""
    told = ask(platform, NORM, compiling=True, invariant=True)
    assert listed(told)[0] == "native"
    assert told.selected == BATCH_INVARIANT[platform, NORM]


@pytest.mark.parametrize("op", [NORM, FUSED, SILU, GELU, ROTARY])
def test_without_kernels_for_nvidia_alone_triton_serves_batch_invariance(
    ask: Callable[..., Explanation], op: str
) -> None:
    """Before anything that is not declared so, native and the faster Triton kernels included."""
    told = ask("cuda:9.0", op, without="vllm_c", invariant=True)
    assert told.selected == "triton_batch_invariant"
    assert ask("cuda:9.0", op, without="vllm_c").selected == "triton"


@pytest.mark.parametrize("op", [NORM, FUSED])
def test_what_nobody_provides_is_absent_and_no_error(ask: Callable[..., Explanation], op: str) -> None:
    """On an Intel GPU the name has its place and its reason, and native runs."""
    told = ask("xpu", op)
    first = told.verdicts[0]
    assert (first.provider, first.layer, first.accepted) == ("xpu_kernels", "provider default", False)
    assert first.reason == "it is not installed"
    assert told.selected == "native"
    assert "xpu_kernels" not in listed(ask("xpu", op, without="aiter"))


SHOWN = """
import sys
from vllm_ir.cli.main import main
code = main(["explain", "rms_norm", "--static", "--platform", "rocm:gfx942", "--json"])
sys.exit(code if "torch" not in sys.modules else 99)
"""


@pytest.mark.skipif(
    any(find_spec(f"vllm_ir_provider_{each}") is None for each in ("triton", "aiter")),
    reason="needs vllm-ir-provider-triton and vllm-ir-provider-aiter installed",
)
def test_the_command_shows_who_is_batch_invariant_for_a_named_platform() -> None:
    """`VLLM_BATCH_INVARIANT=1 vllm-ir explain rms_norm --static --platform rocm:gfx942`, anywhere, without torch."""
    environment = {"VLLM_BATCH_INVARIANT": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", SHOWN], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["selected"] == "triton_batch_invariant"
    refused = [
        each["provider"] for each in shown["candidates"] if "not declared batch-invariant" in (each["reason"] or "")
    ]
    assert {"aiter", "triton", "native"} <= set(refused)
