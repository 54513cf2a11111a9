"""What these tests need of a machine, decided in one place: `gpu` a GPU and Triton, `triton` Triton alone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "gpu: needs a GPU and what its provider launches with")
    config.addinivalue_line("markers", "triton: needs Triton, and no GPU")


def missing(marker: str) -> str | None:
    """Return why what a marker needs is not here, or None."""
    if find_spec("triton") is None:
        return "needs Triton: pip install 'vllm-ir-provider-triton[test]'"
    if marker == "gpu" and not torch.cuda.is_available():
        return f"needs a GPU; torch {torch.__version__} sees none"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say so."""
    here = Path(__file__).parent
    reasons = {marker: missing(marker) for marker in ("gpu", "triton")}
    for each in items:
        if here in each.path.parents:
            for marker, reason in reasons.items():
                if reason is not None and each.get_closest_marker(marker):
                    each.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Start every test from one seed."""
    torch.manual_seed(7)
