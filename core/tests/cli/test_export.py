"""`vllm-ir export requirements`: pinned lines and nothing else on stdout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site


def test_a_lock_is_printed_as_requirements(locked: Site) -> None:
    """Whatever is installed by now."""
    locked.add_provider("more")
    done = locked.run_alone("export", "requirements")
    assert (done.returncode, done.stdout) == (0, "dist-fast==1.0\nvllm-ir==1.0\n")
    assert done.stderr == "vllm-ir: from vllm-ir.lock.\n"


def test_without_a_lock_it_is_what_is_installed(locked: Site) -> None:
    """And says so."""
    (locked.folder / "vllm-ir.lock").unlink()
    locked.add_provider("more")
    done = locked.run_alone("export", "requirements", "--json")
    told = json.loads(done.stdout)
    assert told == {
        "version": "1",
        "source": None,
        "requirements": {"dist-fast": "1.0", "dist-more": "1.0", "vllm-ir": "1.0"},
    }
    assert "since there is no lock here" in locked.run_alone("export", "requirements").stderr
    assert locked.run_alone("export", "requirements", "--lock", "gone.lock").returncode == 2


def test_nothing_else_can_be_exported(locked: Site) -> None:
    """A word that means nothing is a mistake of usage."""
    assert locked.run_alone("export", "wheels").returncode == 2
