"""Loading: from a folder without the network, silently, in the dtype asked for; and mistakes as sentences."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from vllm_ir_host_transformers.errors import AmbiguousModel, DeviceMissing, ModelNotFound
from vllm_ir_host_transformers.models import loading

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no connection succeed, and give the hosts that were asked for."""
    asked: list[str] = []

    def refuse(host: str, *_: Any, **__: Any) -> Any:
        """Refuse to resolve a name."""
        asked.append(host)
        raise OSError(f"no network for {host}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: refuse(str(address)))
    return asked


def test_a_folder_is_loaded_without_the_network_or_a_word(
    tiny_folder: Path, calls: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """No host is asked for, nothing is written, and the environment is as it was."""
    before = dict(os.environ)
    loaded = loading.load(str(tiny_folder), dtype=None, device=None, name="tiny")
    assert calls == []
    assert capfd.readouterr() == ("", "")
    assert dict(os.environ) == before
    assert (loaded.name, loaded.dtype, loaded.model.training) == ("tiny", "float32", False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_weights_have_the_dtype_asked_for(tiny_folder: Path, dtype: str) -> None:
    """Each dtype of the command line."""
    assert loading.load(str(tiny_folder), dtype=dtype, device="cpu").dtype == dtype


def test_an_id_of_the_hub_without_a_network_is_one_sentence(calls: list[str]) -> None:
    """It fails at once instead of trying for a minute, and says what to do."""
    with pytest.raises(ModelNotFound, match=r"the hub cannot be reached .* Name a folder or a \.gguf file") as caught:
        loading.load("nobody/no-such-model-of-vllm-ir", dtype=None, device="cpu")
    assert "\n" not in str(caught.value)
    assert len(calls) <= 2


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("/no/such/folder", "there is no such file or folder"),
        ("./missing.gguf", "there is no such file or folder"),
        (".", "the folder has neither a config.json nor a .gguf file"),
        ("not an id", "Repo id must"),
    ],
)
def test_what_is_no_model_is_said(source: str, cause: str, calls: list[str]) -> None:
    """A path that is not there, a folder without a model, and what can be neither."""
    with pytest.raises(ModelNotFound, match=cause):
        loading.load(source, dtype=None, device="cpu")
    assert calls == []


def test_a_broken_checkpoint_is_said(tiny_folder: Path, tmp_path: Path) -> None:
    """Transformers' own error becomes the cause."""
    shutil.copytree(tiny_folder, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelNotFound, match="cannot be loaded: "):
        loading.load(str(tmp_path / "broken"), dtype=None, device="cpu")


@pytest.mark.parametrize(
    ("model", "said"), [("", "which removes the docstrings that it reads"), ("absent", "Name a folder or a .gguf file")]
)
def test_without_docstrings_it_is_said_that_they_are_missing(
    tiny_folder: Path, tmp_path: Path, model: str, said: str
) -> None:
    """`python -OO` takes away what Transformers reads, whatever is named; a folder that is no model still is none."""
    if model:
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.json").write_text("no JSON", encoding="utf-8")
    code = (
        "import sys\nfrom vllm_ir.errors import ConfigurationError\n"
        "from vllm_ir_host_transformers.models import loading\n"
        "try:\n    loading.load(sys.argv[1], dtype=None, device='cpu')\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    folder = tmp_path / model if model else tiny_folder
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert said in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
    assert ("--model" in done.stdout) is bool(model)


def test_several_gguf_files_are_ambiguous(tmp_path: Path) -> None:
    """The files are named."""
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(AmbiguousModel, match=r"a\.gguf, b\.gguf"):
        loading.load(str(tmp_path), dtype=None, device="cpu")


def test_a_gguf_file_is_found_in_its_folder(tmp_path: Path) -> None:
    """By its own path, or as the only one of a folder without a checkpoint."""
    (tmp_path / "a.gguf").touch()
    assert loading._file_in(tmp_path) == loading._file_in(tmp_path / "a.gguf") == (tmp_path, "a.gguf")
    (tmp_path / "config.json").touch()
    assert loading._file_in(tmp_path) == (tmp_path, None)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there_is_said(tiny_folder: Path, device: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(DeviceMissing, match="Leave --device out"):
        loading.load(str(tiny_folder), dtype=None, device=device)


def test_quiet_gives_everything_back(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbosity, progress bars, warnings and variables are those of before, also after an error."""
    import sys

    monkeypatch.setenv(loading.OFFLINE, "0")
    level = transformers.logging.get_verbosity()
    with pytest.raises(KeyError), loading.quiet(offline=True):
        assert os.environ[loading.OFFLINE] == "1"
        warnings.warn("unheard", stacklevel=1)
        sys.stderr.write("unheard")
        raise KeyError
    assert os.environ[loading.OFFLINE] == "0"
    assert transformers.logging.get_verbosity() == level
    assert transformers.logging.is_progress_bar_enabled()
    assert capsys.readouterr().err == ""


def test_a_checkpoint_made_of_a_loaded_model_is_the_same_model(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `dequantise` writes loads to the same weights, tied ones once, and the same tokenizer."""
    loaded = loading.load(str(tiny_folder), dtype="float32", device="cpu")
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
    loading.dequantise(tmp_path / "tiny.gguf", tmp_path)
    monkeypatch.undo()
    again = loading.load(str(tmp_path), dtype="float32", device="cpu")
    before, after = loaded.model.state_dict(), again.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert again.tokenizer.chat_template == loaded.tokenizer.chat_template
    assert again.tokenizer("hello")["input_ids"] == loaded.tokenizer("hello")["input_ids"]
