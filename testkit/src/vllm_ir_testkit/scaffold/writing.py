"""Writing a distribution: the files of a template under the names of a provider, all of them or none."""

from __future__ import annotations

import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from vllm_ir_testkit.errors import CannotWrite, FolderExists

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from vllm_ir_testkit.scaffold.naming import Names

TEMPLATE: Final = "provider"
"""The folder below `templates` that is copied."""

SUFFIX: Final = ".in"
"""Ends the name of every file of a template, so that no tool takes it for what it is not yet."""

PACKAGE: Final = "__package__"
"""The folder of a template that gets the package's name."""


def write(names: Names, into: Path) -> Path:
    """Write a distribution and return its folder.

    Args:
        names: of the provider.
        into: an existing folder, in which one named as the distribution is made.

    Raises:
        FolderExists: there is one already.
        CannotWrite: the place does not exist or may not be written.
    """
    folder = into / names.distribution
    if folder.exists() or folder.is_symlink():
        raise FolderExists(folder=str(folder))
    if not into.is_dir():
        raise CannotWrite(folder=str(folder), reason=f"{into} is no folder")
    values = {
        "provider": names.provider,
        "distribution": names.distribution,
        "package": names.package,
        "title": names.title,
    }
    try:
        # Moved in one step at the end, so that an interrupt leaves no half of a distribution.
        with tempfile.TemporaryDirectory(prefix=".vllm-ir-new-", dir=into) as temporary:
            made = Path(temporary) / names.distribution
            _copy(files("vllm_ir_testkit") / "templates" / TEMPLATE, made, values)
            shutil.move(made, folder)
    except OSError as error:
        raise CannotWrite(folder=str(folder), reason=str(error)) from error
    return folder


def written(folder: Path) -> list[Path]:
    """Return the files of a distribution, each below its folder, in order."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def _copy(source: Traversable, target: Path, values: dict[str, str]) -> None:
    """Copy a folder of a template."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.is_dir():
            _copy(entry, target / (values["package"] if entry.name == PACKAGE else entry.name), values)
        elif entry.name.endswith(SUFFIX):
            text = Template(entry.read_text(encoding="utf-8")).substitute(values)
            (target / entry.name.removesuffix(SUFFIX)).write_text(text, encoding="utf-8")
