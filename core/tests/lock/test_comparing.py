"""A machine held against a lock: each difference a line with what, locked, found and how it is mended."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from vllm_ir.lock.anew import write_command
from vllm_ir.lock.comparing import compare
from vllm_ir.lock.document import FILE, Place
from vllm_ir.lock.files import Depth
from vllm_ir.platforms import Device, Platform, named_platform

if TYPE_CHECKING:
    from vllm_ir.errors import Difference

    from core.tests.lock.conftest import House


ANEW = "or write the lock anew: vllm-ir lock."
EXPLAIN = "See who put it there: vllm-ir explain rms_norm --static"


def lines(found: tuple[Difference, ...], *, pinned: bool = True) -> list[str]:
    """Return the differences that fail, or those that do not."""
    return [str(each) for each in found if each.pinned is pinned]


def test_the_same_machine_has_no_difference(house: House) -> None:
    """Whichever way it is looked at."""
    house.install(files={"lib.so": bytes(100)})
    locked = house.take().lock
    for depth in Depth:
        assert compare(locked, house.take(depth=depth)) == ()
        assert compare(locked, house.take(depth=depth), enforced=True) == ()


def test_an_uninstalled_provider(house: House) -> None:
    """The distribution is missed, and the order that follows."""
    house.install()
    locked = house.take().lock
    house.uninstall()
    assert lines(compare(locked, house.take())) == [
        f"distribution dist-fast: locked 1.0, found not installed. Install it: pip install dist-fast==1.0; {ANEW}",
        f"op rms_norm, eager, on cpu: locked fast, native, found native. {EXPLAIN}; {ANEW}",
    ]


def test_an_upgraded_provider(house: House) -> None:
    """Of another version everything is another, so only the version is said."""
    house.install()
    locked = house.take().lock
    house.uninstall()
    house.install(version="1.1", files={"more.py": b""})
    assert lines(compare(locked, house.take())) == [
        f"distribution dist-fast: locked 1.0, found 1.1. Install it: pip install dist-fast==1.0; {ANEW}",
    ]


def test_another_wheel_of_the_same_version(house: House) -> None:
    """RECORD and files agree with each other and not with the lock; a new manifest is said, too."""
    house.install()
    locked = house.take().lock
    manifest = (house.path / "dist_fast" / "vllm_ir_provider.toml").read_bytes()
    house.uninstall()
    house.install(files={"vllm_ir_provider.toml": manifest + b"\n"})
    found = lines(compare(locked, house.take(depth=Depth.GLANCE)))
    assert [each.partition(":")[0] for each in found] == [
        "distribution dist-fast, RECORD",
        "distribution dist-fast, manifest",
    ]
    assert ", under the same version. Install the wheel that was locked: pip install --force-reinstall" in found[0]


def test_a_provider_that_was_not_locked(house: House) -> None:
    """To a process under the lock it is no difference: it is not loaded there."""
    locked = house.take().lock
    house.install()
    found = lines(compare(locked, house.take()))
    assert found[0] == (
        "distribution dist-fast: locked nothing, found 1.0. Uninstall it: pip uninstall dist-fast; or deny it:"
        " VLLM_IR_PROVIDERS_DISABLED=dist-fast; or write the lock anew: vllm-ir lock."
    )
    assert found[1].startswith("op rms_norm, eager, on cpu: locked native, found fast, native.")
    kept = [each for each in compare(locked, house.take(), enforced=True) if each.what.startswith("distribution")]
    assert kept == []


def test_a_core_that_was_not_locked_is_always_a_difference(house: House) -> None:
    """It is what enforces."""
    taken = house.take()
    found = compare(replace(taken.lock, distributions={}), taken, enforced=True)
    assert [each.what for each in found] == ["distribution vllm-ir"]


def test_a_provider_that_is_denied_now(house: House) -> None:
    """The reason is said."""
    house.install()
    locked = house.take().lock
    denied = ",".join(["fast", *house.take().unusable])
    found = lines(compare(locked, house.take(variables={"VLLM_IR_PROVIDERS_DISABLED": denied})))
    assert "found what does not load: Provider 'fast' of dist-fast is denied: VLLM_IR_PROVIDERS_DISABLED=" in found[0]
    assert f" denies it. It is installed: change the list that leaves it out; {ANEW}" in found[0]


def test_a_changed_file_is_named(house: House) -> None:
    """With the command that brings it back."""
    package = house.install(files={"lib.so": bytes(100)})
    locked = house.take().lock
    (package / "lib.so").write_bytes(bytes(99) + b"\1")
    os.utime(package / "lib.so")
    for depth in Depth:
        (found,) = lines(compare(locked, house.take(depth=depth)))
        assert found.startswith("distribution dist-fast, file dist_fast/lib.so: locked sha256:cd00e292c5970d3c, found ")
        assert found.endswith(" Reinstall it: pip install --force-reinstall --no-deps dist-fast==1.0.")


def test_a_digest_that_was_not_taken(house: House) -> None:
    """A lock with --allow-editable says so each time, and no process runs under it."""
    house.install()
    record = house.record().read_text(encoding="utf-8")
    house.record().unlink()
    without = house.take()
    assert lines(compare(without.lock, without)) == []
    (note,) = lines(compare(without.lock, without), pinned=False)
    assert note.startswith("distribution dist-fast: locked no digest, found none: its installer left no RECORD.")
    assert len(lines(compare(without.lock, without, enforced=True))) == 1
    (house.path / "dist_fast-1.0.dist-info" / "RECORD").write_text(record, encoding="utf-8")
    (now,) = lines(compare(without.lock, house.take()))
    assert "locked no digest, found files that a digest can be taken of" in now


def test_a_digest_that_cannot_be_taken_now(house: House) -> None:
    """An editable installation in place of the wheel."""
    house.install()
    locked = house.take().lock
    house.record().unlink()
    (found,) = lines(compare(locked, house.take()))
    assert ", found no digest: its installer left no RECORD. No installer removes it without a RECORD, so" in found
    folders = f"'{house.path}/dist_fast' '{house.path}/dist_fast-1.0.dist-info'"
    assert f" rm -r {folders} && pip install --no-deps dist-fast==1.0." in found


def test_a_layer_alone_is_told_and_does_not_fail(house: House) -> None:
    """The same providers in the same order run."""
    house.install()
    locked = house.take().lock
    found = compare(locked, house.take(variables={"VLLM_IR_OP_PRIORITY": "silu_and_mul=native"}))
    assert lines(found) == []
    eager, compiling = lines(found, pinned=False)
    assert "op silu_and_mul, eager, on cpu: locked native by built-in, found native by VLLM_IR_OP_PRIORITY." in eager
    assert "locked native by platform default, found native by VLLM_IR_OP_PRIORITY." in compiling


def test_a_refusal_is_the_reason_of_a_difference(house: House) -> None:
    """What was locked is installed and may not run."""
    house.install()
    locked = house.take().lock
    found = lines(compare(locked, house.take(variables={"VLLM_BATCH_INVARIANT": "1"})))
    (order,) = [each for each in found if each.startswith("op rms_norm, eager, on cpu")]
    assert "locked fast, native, found nothing that may run (fast: it is not declared batch-invariant, which" in order


def test_platforms_that_a_lock_does_not_have(house: House) -> None:
    """One of another kind, and one of the same kind whose devices are others: its orders are compared, too."""
    house.install()
    locked = house.take(named_platform("cuda:9.0"), named_platform("cpu")).lock
    (found,) = lines(compare(locked, house.take(named_platform("rocm:gfx942"))))
    assert found == (
        "platform: locked cpu, cuda:9.0, found rocm:gfx942. Write the lock with a section for it, too:"
        " vllm-ir lock --platform cpu --platform cuda:9.0 --platform rocm:gfx942."
    )
    (found,) = lines(compare(locked, house.take(named_platform("cuda:8.6"))))
    assert found.startswith("device architecture: locked cpu, cuda:9.0, found cuda:8.6.")
    found, order = lines(compare(locked, house.take(named_platform("cuda:7.5"))))
    assert order.startswith("op rms_norm, eager, on cuda:7.5: locked fast, native, found native (fast: ")


def test_what_is_recorded_is_told(house: House) -> None:
    """Driver, toolkit, torch and Python may differ; of a platform that was named there is nothing to compare."""
    here = Platform(
        name="cuda",
        device_type="cuda",
        devices=[Device("a", capability=(9, 0))],
        torch_build="2.13.0 (CUDA 12.9)",
        driver="570",
    )
    taken = house.take(here)
    old = replace(taken.lock.platforms["cuda:9.0"], recorded={"driver": "550", "toolkit": "CUDA 12.6"})
    locked = replace(
        taken.lock, platforms={"cuda:9.0": old}, recorded={**taken.lock.recorded, "python": "3.9.1", "gone": "1"}
    )
    found = compare(locked, taken)
    assert lines(found) == []
    assert [each.what for each in found] == [
        "platform cuda:9.0, driver",
        "platform cuda:9.0, toolkit",
        "python",
    ]
    assert [each.what for each in compare(locked, house.take(named_platform("cuda:9.0")))] == ["python"]


def test_another_core_and_provider_api(house: House) -> None:
    """Both are pinned."""
    taken = house.take()
    found = lines(compare(replace(taken.lock, core="9.9", provider_api=("7",)), taken))
    assert found[0].startswith("vllm-ir: locked 9.9, found 0.1.0. Install it: pip install vllm-ir==9.9; or write")
    assert found[1].startswith("provider API: locked 7, found 1.")


@pytest.mark.parametrize("compiling", [False, True])
def test_an_op_on_one_side_alone(house: House, compiling: bool) -> None:
    """A provider that was locked may add or lose one."""
    taken = house.take()
    cpu = taken.lock.platforms["cpu"]
    orders = {**cpu.orders(compiling=compiling), "new_op": (Place("native", "built-in"),)}
    del orders["rms_norm"]
    changed = replace(cpu, compiling=orders) if compiling else replace(cpu, eager=orders)
    locked = replace(taken.lock, platforms={"cpu": changed})
    found = lines(compare(locked, taken))
    assert "locked native, found no such op." in found[0]
    assert "locked no such op, found native." in found[1]


def test_a_core_of_another_version_is_said_once(house: House) -> None:
    """By its distribution, which has the same version."""
    taken = house.take()
    old = replace(taken.lock.distributions["vllm-ir"], version="0.0.9")
    locked = replace(taken.lock, core="0.0.9", distributions={"vllm-ir": old})
    (found,) = lines(compare(locked, taken))
    assert found.startswith("distribution vllm-ir: locked 0.0.9, found 0.1.0. Install it: pip install vllm-ir==0.0.9;")


def test_a_lock_is_written_anew_with_its_name_and_its_sections(house: House) -> None:
    """A command that drops them, or writes another file, mends nothing."""
    house.install()
    gpu = named_platform("cuda:9.0")
    locked = house.take(named_platform("cpu"), gpu).lock
    house.uninstall()
    flags = "--lock 'my fleet.lock' --platform cpu --platform cuda:9.0"
    found = lines(compare(locked, house.take(gpu), file="my fleet.lock"))
    assert found[0].endswith(f"; or write the lock anew: vllm-ir lock {flags}.")
    assert found[1].startswith("op rms_norm, eager, on cuda:9.0: ")
    assert "vllm-ir explain rms_norm --static --platform cuda:9.0; or " in found[1]


def test_an_installation_that_loads_no_more_and_an_editable_one(house: House) -> None:
    """What is there already is not installed over unless that is said, and what it depends on is left alone."""
    package = house.install()
    locked = house.take().lock
    point = house.path / "dist_fast-1.0.dist-info" / "direct_url.json"
    point.write_text('{"dir_info": {"editable": true}}', encoding="utf-8")
    forced = "pip install --force-reinstall --no-deps dist-fast==1.0"
    found = lines(compare(locked, house.take()))
    assert f"no digest: it is installed editable. Install the wheel: {forced}." in found[0]
    (package / "vllm_ir_provider.toml").write_text("x", encoding="utf-8")
    found = lines(compare(locked, house.take()))
    assert found[0].startswith("distribution dist-fast: locked 1.0, found what does not load: ")
    assert f". Install it: {forced}; {ANEW}" in found[0]


def test_what_is_recorded_has_a_way_out_where_it_fails(house: House) -> None:
    """Under --strict something has to be done."""
    taken = house.take()
    locked = replace(taken.lock, recorded={"python": "3.9.1"})
    (note,) = compare(locked, taken)
    assert note.mend == "Nothing has to be done: it is recorded, not pinned."
    (failing,) = compare(locked, taken, strict=True)
    assert failing.mend == f"It fails under --strict alone: bring back python 3.9.1; {ANEW}"


def test_devices_of_several_kinds_have_no_name(house: House) -> None:
    """A section for them is written on such a machine; the command does not pretend otherwise."""
    two = Platform(
        name="cuda", device_type="cuda", devices=[Device("a", capability=(8, 0)), Device("b", capability=(9, 0))]
    )
    locked = house.take(named_platform("cpu")).lock
    found = lines(compare(locked, house.take(two)))
    assert found[0].endswith("Write a lock of its own on that machine: vllm-ir lock --lock cuda.lock.")
    assert write_command(FILE, ["cuda:8.0,9.0"], "cuda:8.0,9.0", editable=True) == "vllm-ir lock --allow-editable"
