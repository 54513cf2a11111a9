"""What was seen of an installed distribution: its digest, or why it has none, and every file that is not as installed.

Nothing is imported: where Python would import a package from is asked, and compared with where its files are.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import Difference
from vllm_ir.lock.files import Depth, check_files, strangers
from vllm_ir.lock.record import LostRecord, NoRecord, Record, read_record
from vllm_ir.names import normalise
from vllm_ir.plugins.walk import Folder, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.plugins.records import DistributionRecord
    from vllm_ir.plugins.walk import Metadata


FORCED: Final = "pip install --force-reinstall --no-deps"
"""What installs a distribution that is there already, and leaves alone what it depends on."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """What was seen of one distribution.

    Args:
        digest: of its files, as its RECORD names them; None where there is none.
        reason: why there is none, as the end of a sentence.
        faults: what is not as it was installed.
        install: where there is no digest, the beginning of a sentence that installs a wheel in its place; the wheel's
            name and version are its end.
    """

    digest: str | None
    reason: str = ""
    faults: tuple[Difference, ...] = ()
    install: str = ""


@dataclass(slots=True)
class Inspector:
    """Looks at the files of distributions.

    Args:
        depth: how closely.
        advance: is told how many bytes have been dealt with.
    """

    depth: Depth = Depth.GLANCE
    advance: Callable[[int], None] | None = None
    _metadata: dict[str, Metadata] = field(default_factory=dict)
    _records: dict[str, Record | NoRecord] = field(default_factory=dict)

    def inspect(self, record: DistributionRecord) -> Inspected:
        """Return what is seen of a distribution."""
        found = self.record(record)
        if isinstance(found, NoRecord):
            return Inspected(None, str(found), install=self._install(record, found))
        faults = [_outside(record, name, fault) for name, fault in found.faults]
        package = package_of(record)
        elsewhere = _elsewhere(package, record.location)
        if elsewhere is not None:
            faults.append(
                Difference(
                    f"distribution {normalise(record.name)}, package {package}",
                    "the installed files",
                    f"that Python imports it from {elsewhere}",
                    "Take that folder off the path (PYTHONPATH, a .pth file, the working folder).",
                )
            )
        installed = _time_of_record(self._metadata[normalise(record.name)])
        for name, locked, now in check_files(record.location, found, self.depth, installed, self.advance):
            faults.append(Difference(_file(record, name), locked, now, reinstall(record.name, record.version)))
        for name in strangers(record.location, found, package):
            now, mend = "a file that no RECORD names", f"Remove it: rm {_quoted(record, name)}."
            faults.append(Difference(_file(record, name), "nothing", now, mend))
        return Inspected(found.digest, faults=tuple(faults))

    def size(self, record: DistributionRecord) -> int:
        """Return how many bytes a close look at a distribution reads, as its RECORD says."""
        found = self.record(record)
        return 0 if isinstance(found, NoRecord) else sum(entry.size or 0 for entry in found.entries)

    def record(self, record: DistributionRecord) -> Record | NoRecord:
        """Return the RECORD of a distribution, or why there is none that counts; it is read once."""
        key = normalise(record.name)
        if key not in self._records:
            try:
                self._records[key] = self._read(key, package_of(record))
            except NoRecord as reason:
                self._records[key] = reason
        return self._records[key]

    def _install(self, record: DistributionRecord, why: NoRecord) -> str:
        """Return the beginning of the sentence that installs a wheel in place of what has no digest."""
        metadata = self._metadata.get(normalise(record.name))
        if metadata is None:
            return "Install the wheel: pip install"
        if not isinstance(why, LostRecord):
            return f"Install the wheel: {FORCED}"
        names = [package_of(record), *_metadata_folders(metadata)]
        paths = " ".join(_quoted(record, name) for name in names)
        return (
            f"No installer removes it without a RECORD, so install the wheel by: rm -r {paths} && pip install --no-deps"
        )

    def _read(self, key: str, package: str) -> Record:
        """Return the RECORD of a distribution.

        Raises:
            NoRecord: there is none that counts.
        """
        if not self._metadata:
            for each in walk():
                self._metadata.setdefault(each.key, each)
        metadata = self._metadata.get(key)
        if metadata is None:
            raise NoRecord("it runs from a source tree and is not installed")
        if not os.path.isdir(metadata.location):  # noqa: PTH112 - its neighbours take texts, too
            raise NoRecord("it lies in an archive")
        found = read_record(metadata)
        if not found.has_package(package) and not found.faults:
            raise NoRecord(f"it is installed editable: its RECORD has no file of package {package}")
        return found


def package_of(record: DistributionRecord) -> str:
    """Return the top-level package of a distribution's hooks."""
    return record.module.partition(":")[0].partition(".")[0]


def reinstall(name: str, version: str) -> str:
    """Return the sentence that brings a distribution's files back."""
    return f"Reinstall it: {FORCED} {normalise(name)}=={version}."


def _quoted(record: DistributionRecord, name: str) -> str:
    """Return the path of a file or a folder as a shell takes it, always in quotes, since a sentence may end with it."""
    path = os.path.join(record.location, *name.split("/"))  # noqa: PTH118 - its neighbours take texts, too
    return shlex.quote(path) if "'" in path else f"'{path}'"


def _metadata_folders(metadata: Metadata) -> list[str]:
    """Return the names of the folders with a distribution's metadata, in the folder that it is installed in."""
    if isinstance(metadata, Folder):
        return [metadata.name]
    found = [Folder(metadata.location, name) for name in sorted(os.listdir(metadata.location))]  # noqa: PTH208
    return [each.name for each in found if each.name.endswith(".dist-info") and each.key == metadata.key]


def _file(record: DistributionRecord, name: str) -> str:
    """Return the words for one file of a distribution."""
    return f"distribution {normalise(record.name)}, file {name}"


def _outside(record: DistributionRecord, name: str, fault: str) -> Difference:
    """Return what is said of an entry that no digest can cover; its file was not opened."""
    shown = name if name.isprintable() else repr(name)
    mend = f"Its wheel is not to be trusted, or was altered. {reinstall(record.name, record.version)}"
    return Difference(f"{_file(record, shown[:200])} in RECORD", "a file of the package", fault, mend)


def _elsewhere(package: str, location: str) -> str | None:
    """Return where Python would import a package from, where that is not the folder of its distribution."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return "nowhere" if spec is None else str(spec.origin)
    folders = [os.path.realpath(folder) for folder in spec.submodule_search_locations]
    # The first one alone: of a namespace, whose folders are several, the others bring further modules.
    return None if folders[0] == os.path.realpath(os.path.join(location, package)) else folders[0]  # noqa: PTH118


def _time_of_record(metadata: Metadata) -> int | None:
    """Return when RECORD was changed last, in nanoseconds; None where only a finder knows where it is."""
    if not isinstance(metadata, Folder):
        return None
    try:
        return os.stat(os.path.join(metadata.root, metadata.name, "RECORD")).st_mtime_ns  # noqa: PTH116, PTH118
    except OSError:
        return None
