"""The page about sequence parallelism shows graphs that its program prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime

PAGE = Path(__file__).resolve().parents[4] / "docs" / "sequence_parallelism.md"


@pytest.mark.usefixtures("pretended")
def test_the_graphs_of_the_page_are_what_its_program_prints(state: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """On the second of four ranks, before and behind the pass; the last block compiles, too."""
    assert state is not None
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, names)  # noqa: S102 - that is what a page is for
    before, behind, _ = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert capsys.readouterr().out == before + behind
