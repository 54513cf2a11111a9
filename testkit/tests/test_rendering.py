"""How a report looks."""

from __future__ import annotations

from vllm_ir_testkit import Finding, Outcome, Report, rendering
from vllm_ir_testkit.outcome import FAILED, KNOWN, PASSED, SKIPPED

FIGURES = {"bfloat16": {"elements": 20_000, "differing": 1, "share": 5e-5, "worst_units": 1}}
REPORT = Report(
    provider="some",
    distribution="dist-some",
    version="1.0",
    platform="cpu, a CPU",
    torch="2.13",
    outcomes=(
        Outcome("rms_norm", "values", PASSED, cases=3, figures=FIGURES),
        Outcome("rms_norm", "layout", FAILED, findings=tuple(Finding(f"case {i}", "strided") for i in range(5))),
        Outcome("rms_norm", "cuda_graph", SKIPPED, reason="needs a CUDA device"),
        Outcome("silu_and_mul", "values", KNOWN, findings=(Finding("float16 5", "off", known="tail"),)),
        Outcome("silu_and_mul", "cuda_graph", SKIPPED, reason="needs a CUDA device"),
    ),
    refused={"gelu_and_mul": "no kernel"},
    seconds=2.4,
)


def test_a_row_per_op() -> None:
    """Counts, and how far results are from native's."""
    assert rendering.rows(REPORT) == [
        ("rms_norm", "1", "1", "0", "1", "bfloat16 1 in 20,000 by 1 unit"),
        ("silu_and_mul", "0", "0", "1", "1", ""),
    ]


def test_markdown_for_a_readme() -> None:
    """A table of checks by ops, then everything that is not green with its reason."""
    page = rendering.markdown(REPORT)
    assert page.startswith("**some (dist-some 1.0): 1 passed, 1 failed, 1 known to fail, 2 skipped on cpu, a CPU")
    assert "| check | rms_norm | silu_and_mul |\n|---|---|---|\n| values | ✓ | known |\n| layout | ✗ |  |" in page
    assert "- skipped: cuda_graph: needs a CUDA device" in page
    assert "- gelu_and_mul is refused here: no kernel" in page
    assert "- rms_norm, layout: and 2 more" in page
    assert "- silu_and_mul, values: float16 5: off [known: tail]" in page


def test_json_says_everything() -> None:
    """The keys that programs read."""
    content = REPORT.describe()
    assert content["counts"] == {"passed": 1, "failed": 1, "known failure": 1, "skipped": 2}
    assert content["outcomes"][1]["findings"][0] == {"case": "case 0", "what": "strided", "known": None}
    assert REPORT.exit_code == 1
