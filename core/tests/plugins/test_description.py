"""One distribution as its own files describe it, and each way in which they may fail to."""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

import pytest
from vllm_ir.environment import Environment
from vllm_ir.platforms import Platform
from vllm_ir.plugins import description
from vllm_ir.plugins.description import CORE, with_core
from vllm_ir.plugins.distributions import EntryPoint, Installed
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.static import survey

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vllm_ir.plugins.records import DistributionRecord

    from core.tests.plugins.conftest import Site

CPU = Platform(name="cpu", device_type="cpu")


def manifest(provider: str = "fake", api: str = "1") -> str:
    """Return the text of a right manifest."""
    return (
        f'schema = 1\nprovider-api = "{api}"\nsummary = "x"\n'
        f"[providers.{provider}]\nplatforms = {{ cpu = {{}} }}\nops = {{ rms_norm = {{}} }}\n"
    )


def describe(name: str = "vllm-ir-provider-fake") -> DistributionRecord:
    """Return the record of one installed distribution."""
    found = survey(Environment.read({}), CPU)
    (record,) = [each for each in found.distributions if each.name == name]
    return record


FAILURES = [
    ({"text": None}, "manifest missing", "has no vllm_ir_provider.toml in its package 'vllm_ir_provider_fake'"),
    ({"text": "schema = ["}, "manifest malformed", "vllm_ir_provider.toml: the file is not readable"),
    ({"text": f"schema = {'9' * 5000}"}, "manifest malformed", "vllm_ir_provider.toml: the file is not readable"),
    ({"text": "schema = 7\nnew = 1"}, "manifest newer", "schema is 7, wanted at most 1"),
    ({"text": "schema = 1"}, "manifest malformed", "provider-api is missing"),
    ({"text": manifest(api="9")}, "wrong provider API", "is written for provider API '9'; this vllm-ir has '1'"),
    ({"text": manifest("native")}, "manifest malformed", "are reserved"),
    (
        {"entry_point": "fake = absent_package.hooks"},
        "broken import",
        "names module 'absent_package.hooks', which does",
    ),
    ({"entry_point": "fake = not a module"}, "broken import", "names module 'not a module', which does not exist"),
    ({"entry_point": "fake ="}, "broken import", "names module '', which does not exist"),
    ({"entry_point": "a = b\nfake = c"}, "bad declaration", "are 'a', 'fake', wanted exactly one"),
    ({"text": manifest("other")}, "bad declaration", "are 'fake', wanted named after one of the providers"),
]


@pytest.mark.parametrize(("change", "kind", "said"), FAILURES, ids=[f"{case[1]}: {case[2]}"[:50] for case in FAILURES])
def test_what_cannot_be_read_is_a_record_of_its_kind(
    site: Site, change: dict[str, str | None], kind: str, said: str
) -> None:
    """The distribution and each provider known of it carry the failure; all of these are somebody's fault."""
    site.provider(**change)  # type: ignore[arg-type]
    record = describe()
    assert record.failure is not None
    assert (record.failure.kind, record.failure.fault) == (kind, True)
    assert said in record.failure.reason
    assert record.providers
    assert {each.failure for each in record.providers} == {record.failure}
    assert site.imported() == []


def is_a_pipe(file: Path) -> None:
    """Nobody writes to it, so that whoever reads it waits for ever."""
    os.mkfifo(file)


def is_endless(file: Path) -> None:
    """It is a link to a device that never ends."""
    file.symlink_to("/dev/zero")


def is_huge(file: Path) -> None:
    """It takes no room on the disk, and all of the memory."""
    with file.open("wb") as stream:
        stream.truncate(1 << 40)


def is_too_long(file: Path) -> None:
    """It is right, but for one byte more than any manifest has."""
    text = manifest()
    file.write_text(text + "#" * (description.LIMIT + 1 - len(text)), encoding="utf-8")


def is_a_folder(file: Path) -> None:
    """It is no file."""
    file.mkdir()


def is_a_circle(file: Path) -> None:
    """It is a link to itself."""
    file.symlink_to(file)


@pytest.mark.parametrize("become", [is_a_pipe, is_endless, is_huge, is_too_long, is_a_folder, is_a_circle])
def test_a_manifest_that_no_author_wrote_is_a_record(site: Site, become: Callable[[Path], None]) -> None:
    """It is told at once, in little memory, and nothing of its package is imported; the others are as they are."""
    site.provider("synthetic-good", package="synthetic_good", provider="good")
    package = site.provider(text=None)
    become(site.path / package / FILE)
    record = describe()
    assert record.failure is not None
    assert (record.failure.kind, record.failure.fault) == ("manifest malformed", True)
    assert "the file is not readable (" in record.failure.reason
    assert describe("synthetic-good").failure is None
    assert site.imported() == []


def test_the_longest_manifest_is_read(site: Site) -> None:
    """The limit is for what no author wrote."""
    text = manifest()
    site.provider(text=text + "#" * (description.LIMIT - len(text)))
    assert describe().failure is None


def test_a_module_that_is_no_package_has_no_place_for_a_manifest(site: Site) -> None:
    """The file lies in a package; a single module has no folder of its own."""
    site.provider(entry_point="fake = synthetic_single")
    site.write("synthetic_single.py", "")
    record = describe()
    assert record.failure is not None
    assert record.failure.kind == "manifest missing"


def test_a_package_without_an_init_file_is_read_too(site: Site) -> None:
    """A namespace package has its folders on the path as well."""
    site.provider()
    (site.path / "vllm_ir_provider_fake" / "__init__.py").unlink()
    assert describe().failure is None


def test_a_package_in_an_archive_is_read_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports from archives, so their manifests are read out of them."""
    site.metadata("synthetic-zipped", "1.0", "[vllm_ir.providers]\nfake = synthetic_zipped.hooks\n")
    archive = site.path / "zipped.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("synthetic_zipped/__init__.py", "")
        file.writestr("synthetic_zipped/vllm_ir_provider.toml", manifest())
    monkeypatch.syspath_prepend(str(archive))
    record = describe("synthetic-zipped")
    assert record.failure is None
    assert record.manifest is not None
    assert record.manifest.file.startswith(str(archive))


def test_an_attribute_of_the_module_is_kept(site: Site) -> None:
    """Hooks may be an object in the module."""
    site.provider(entry_point="fake = vllm_ir_provider_fake.hooks:plugin")
    assert describe().module == "vllm_ir_provider_fake.hooks:plugin"


def test_a_distribution_without_providers_is_described(site: Site) -> None:
    """One may bring only ops; its entry point's name stands for it in the lists."""
    site.provider(text='schema = 1\nprovider-api = "1"\nsummary = "x"\nadds-ops = ["an_op"]\n')
    record = describe()
    assert (record.failure, record.providers, record.entry_point) == (None, (), "fake")
    denied = survey(Environment.read({"VLLM_IR_PROVIDERS_DISABLED": "fake"}), CPU)
    (record,) = [each for each in denied.distributions if each.name == "vllm-ir-provider-fake"]
    assert record.failure is not None
    assert record.failure.kind == "denied by policy"


def test_the_core_comes_first_and_once() -> None:
    """Installed or not, wherever it is on the path."""
    other = Installed("other", "1", "/", (EntryPoint("other", "other", None),), (), ())
    core = Installed("VLLM_IR", "1", "/", (EntryPoint("native", "vllm_ir.plugins.native", None),), (), ())
    assert [each.name for each in with_core([other])] == [CORE, "other"]
    assert with_core([other, core]) == [core, other]


def test_nobody_else_may_claim_the_cores_hooks(site: Site) -> None:
    """A stranger whose entry point leads into the core meets the core's manifest, and `native` is reserved."""
    site.provider("synthetic-thief", entry_point="native = vllm_ir.plugins.native", package="synthetic_thief")
    record = describe("synthetic-thief")
    assert record.failure is not None
    assert record.failure.kind == "manifest malformed"
