"""Whose a module is: the program's own, whose code has to be read, or installed, where its version says it all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from vllm_ir.plugins.walk import normalise, walk

_VERSIONED: Final = frozenset({"torch", "vllm_ir"})
"""Packages that a version identifies wherever they lie."""


class Origins:
    """Whose the modules are that one function reaches.

    Args:
        root: name of the function's own module; None where it has none.
    """

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._home = (root or "").partition(".")[0]
        self._installed: dict[str, bool] = {}
        self._versions: dict[str, str] = {}

    def is_own(self, module: str | None) -> bool:
        """Tell whether a module is the program's own: the function's, or one that was not installed."""
        if module is None or module in (self._root, "__main__"):
            return True
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or (top in _VERSIONED and top != self._home):
            return False
        if top not in self._installed:
            self._installed[top] = _is_installed(top)
        return not self._installed[top]

    def version(self, module: str | None) -> str:
        """Return the version of the package of a module; empty for the standard library and where nothing tells it."""
        top = (module or "").partition(".")[0]
        if not top or top in sys.stdlib_module_names:
            return ""
        if top not in self._versions:
            stated = getattr(sys.modules.get(top), "__version__", None)
            self._versions[top] = str(stated) if isinstance(stated, str) else _recorded_version(top)
        return self._versions[top]


def _is_installed(package: str) -> bool:
    """Tell whether an installer put a package where it is: metadata lie beside it."""
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    folders = [Path(folder) for folder in getattr(module, "__path__", ())] or ([Path(file)] if file else [])
    return any(any(folder.parent.glob("*.dist-info")) for folder in folders)


def _recorded_version(package: str) -> str:
    """Return the version of a distribution that is called like its package; empty where there is none."""
    key = normalise(package)
    return next((each.fact("Version") or "" for each in walk() if each.key == key), "")
