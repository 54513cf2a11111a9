"""This machine as a lock holds it: from files alone, for platforms that need not be here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from vllm_ir.lock.document import Place
from vllm_ir.lock.files import Depth
from vllm_ir.lock.lock_file import to_text
from vllm_ir.lock.taking import describe_platform, platform_key
from vllm_ir.platforms import Device, Platform, named_platform

if TYPE_CHECKING:
    from core.tests.lock.conftest import House

CPU = Platform(name="cpu", device_type="cpu")
NATIVE = Place("native", "built-in")


def test_distributions_have_version_manifest_and_digest(house: House) -> None:
    """The core among them, under the names that installers compare."""
    house.install(name="Dist_Fast", files={"lib.so": b"\x7fELF"})
    taken = house.take()
    assert sorted(taken.lock.distributions) == ["dist-fast", "vllm-ir"]
    found = taken.lock.distributions["dist-fast"]
    assert (found.version, found.providers) == ("1.0", ("fast",))
    assert found.manifest.startswith("sha256:")
    assert found.digest is not None
    assert taken.lock.distributions["vllm-ir"].digest is not None
    assert [seen.faults for seen in taken.inspected.values()] == [(), ()]
    assert taken.lock.recorded["python"] == ".".join(map(str, sys.version_info[:3]))


def test_orders_have_the_layer_of_each_place(house: House) -> None:
    """For calls and for graphs, up to native, which takes every call."""
    house.install()
    taken = house.take(variables={"VLLM_IR_OP_PRIORITY": "silu_and_mul=native"})
    cpu = taken.lock.platforms["cpu"]
    assert cpu.eager["rms_norm"] == (Place("fast", "provider default"), NATIVE)
    assert cpu.compiling["rms_norm"] == (Place("native", "platform default"),)
    assert cpu.eager["silu_and_mul"] == (Place("native", "VLLM_IR_OP_PRIORITY"),)
    assert sorted(cpu.eager) == sorted(cpu.compiling)


def test_platforms_that_are_not_here(house: House) -> None:
    """Each has a section with what its devices are, and the order that is right there."""
    house.install()
    names = ("cuda:9.0", "cuda:7.5", "rocm:gfx942", "cpu", "xpu")
    taken = house.take(*map(named_platform, names))
    assert sorted(taken.lock.platforms) == sorted(names)
    first = {key: each.eager["rms_norm"][0].provider for key, each in taken.lock.platforms.items()}
    # A need of the CPU is met on every machine, but a default is for the platform that it names.
    assert first == {"cuda:9.0": "fast", "cpu": "fast", "cuda:7.5": "native", "rocm:gfx942": "native", "xpu": "native"}
    assert taken.lock.platforms["cuda:9.0"].architectures == ("9.0",)
    assert all(each.recorded == {} for each in taken.lock.platforms.values())


def test_driver_and_toolkit_are_recorded_where_they_are_known() -> None:
    """Of this machine; several devices of one kind are one architecture."""
    devices = [Device("a", capability=(9, 0)), Device("b", capability=(8, 0)), Device("c", capability=(9, 0))]
    here = Platform(
        name="cuda", device_type="cuda", devices=devices, torch_build="2.13.0+cu129 (CUDA 12.9)", driver="570.86"
    )
    found = describe_platform(here, {}, {})
    assert (found.key, found.architectures) == ("cuda:8.0,9.0", ("8.0", "9.0"))
    assert found.recorded == {"driver": "570.86", "toolkit": "CUDA 12.9"}
    assert platform_key(named_platform("rocm:gfx942")) == "rocm:gfx942"
    assert describe_platform(CPU, {}, {}).recorded == {}


def test_two_environments_with_the_same_files_are_the_same_lock(house: House) -> None:
    """Nothing of where it is, when it was, or who installed it."""
    house.install(files={"lib.so": bytes(5000)})
    one = to_text(house.take().lock)
    assert str(house.path) not in one
    house.uninstall()
    house.install(files={"lib.so": bytes(5000)}, more=["../../../bin/fast,sha256=abc,1", "x/__pycache__/y.pyc,,"])
    (house.record().parent / "INSTALLER").write_text("another\n", encoding="utf-8")
    assert to_text(house.take().lock) == one


def test_an_installation_without_record_has_no_digest(house: House) -> None:
    """And says why."""
    house.install()
    house.record().unlink()
    taken = house.take()
    assert taken.lock.distributions["dist-fast"].digest is None
    assert taken.inspected["dist-fast"].reason == "its installer left no RECORD"


def test_an_editable_installation_has_no_digest(house: House) -> None:
    """Whether its installer said so or RECORD only names a path file."""
    package = house.install()
    record = house.record()
    lines = record.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(package.name + "/")]
    record.write_text("\n".join(kept), encoding="utf-8")
    reason = f"it is installed editable: its RECORD has no file of package {package.name}"
    assert house.take().inspected["dist-fast"].reason == reason


@pytest.mark.parametrize(
    "line", ["../../../etc/passwd,sha256={hash},5", "/etc/passwd,sha256={hash},5", "dist_fast/x.py,,"]
)
def test_what_no_digest_can_cover_is_a_finding(house: House, line: str) -> None:
    """A path out of the folder is never opened, whatever lies there."""
    house.install(more=[line.format(hash="A" * 43)])
    (fault,) = house.take().inspected["dist-fast"].faults
    name = line.partition(",")[0]
    assert str(fault).startswith(f"distribution dist-fast, file {name} in RECORD: locked a file of the package, found ")
    assert "Its wheel is not to be trusted, or was altered. Reinstall it: pip install" in str(fault)


def test_a_package_that_python_takes_from_elsewhere_is_a_finding(
    house: House, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest would be of files that do not run."""
    package = house.install()
    other = house.path.parent / "other"
    (other / package.name).mkdir(parents=True)
    for file in package.iterdir():
        (other / package.name / file.name).write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(str(other))
    (fault,) = house.take().inspected["dist-fast"].faults
    assert fault.found == f"that Python imports it from {os.path.realpath(other / package.name)}"
    assert tmp_path


def test_a_planted_file_is_a_finding(house: House) -> None:
    """Python prefers a library, and a package, to a module of the same name; a glance sees that, too."""
    package = house.install()
    planted = package / "hooks.cpython-311-x86_64-linux-gnu.so"
    planted.write_bytes(b"")
    (package / "hooks").mkdir()
    (package / "hooks" / "__init__.py").write_bytes(b"")
    for depth in Depth:
        beside, below = house.take(depth=depth).inspected["dist-fast"].faults
        assert below.what == "distribution dist-fast, file dist_fast/hooks/__init__.py"
        assert (beside.found, beside.mend) == ("a file that no RECORD names", f"Remove it: rm '{planted}'.")


def test_what_a_run_would_stop_with_is_said(house: House) -> None:
    """Two distributions with one provider, and a provider that is named and not there; each once."""
    house.install()
    (gone,) = house.take(variables={"VLLM_IR_OP_PRIORITY": "rms_norm=gone"}).problems
    assert "provider 'gone' for op 'rms_norm' is not installed" in str(gone)
    house.install(name="dist-twin")
    (twice,) = house.take().problems
    assert "Provider 'fast' is brought by 2 distributions: 'dist-fast', 'dist-twin'." in str(twice)


def test_what_is_denied_is_not_locked(house: House) -> None:
    """It does not load, so it is no part of the selection."""
    house.install()
    denied = ",".join(["fast", *house.take().unusable])
    taken = house.take(variables={"VLLM_IR_PROVIDERS_DISABLED": denied})
    assert "dist-fast" not in taken.lock.distributions
    assert taken.lock.platforms["cpu"].eager["rms_norm"] == (NATIVE,)
