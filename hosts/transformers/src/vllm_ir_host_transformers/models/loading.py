"""Loading a model and its tokenizer by Transformers, silently, and without the network where there is a folder."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir_host_transformers.errors import AmbiguousModel, DeviceMissing, ModelNotFound, StrippedDocstrings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES: Final = ("float32", "bfloat16", "float16", "auto")
OFFLINE: Final = "HF_HUB_OFFLINE"
HUB_SECONDS: Final = 10
BARS: Final = "HF_HUB_DISABLE_PROGRESS_BARS"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to answer.

    Attributes:
        model: the model, in eval mode on its device.
        tokenizer: its tokenizer.
        name: what the user called it.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.device

    @property
    def dtype(self) -> str:
        """The dtype of the model's weights."""
        return str(self.model.dtype).removeprefix("torch.")


def load(source: str, *, dtype: str | None, device: str | None, name: str = "") -> Loaded:
    """Load a model.

    Args:
        source: a folder, a .gguf file, or an id of the Hugging Face hub.
        dtype: one of DTYPES; None means float32 on a CPU, else what the checkpoint says.
        device: a torch device; None means the first accelerator, else the CPU.
        name: what to call the model; the source when empty.

    Raises:
        ModelNotFound: there is no such model, or Transformers cannot load it.
        StrippedDocstrings: Transformers cannot load any in this process.
        AmbiguousModel: the folder holds several GGUF files.
        DeviceMissing: torch does not have the device.
    """
    import torch

    target = _device(device)
    chosen = dtype or ("float32" if target.type == "cpu" else "auto")
    path = Path(source).expanduser()
    options: dict[str, Any] = {"local_files_only": True}
    if path.exists() or _is_path(source):
        folder, gguf = _file_in(path)
        source = str(folder)
        options.update({"gguf_file": gguf} if gguf else {})
    elif not _is_cached(source):
        _need_hub(source)
        options = {}
    # Some of it goes past every switch, to stdout, where it would stand before the answer.
    with quiet(offline=bool(options)), contextlib.redirect_stdout(io.StringIO()):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model = AutoModelForCausalLM.from_pretrained(
                source, dtype=chosen if chosen == "auto" else getattr(torch, chosen), **options
            )
        except Exception as error:
            if sys.flags.optimize > 1 and not isinstance(error, OSError):
                raise StrippedDocstrings(cause=_first_sentence(error)) from error
            # Transformers and the hub raise a dozen kinds here; the first line says what is wrong.
            raise ModelNotFound(model=name or source, cause=_first_sentence(error)) from error
        move: Any = model.to  # Its wrapper hides the signature.
        move(target).train(mode=False)
    return Loaded(model, tokenizer, name or source)


def dequantise(file: Path, folder: Path) -> None:
    """Write what Transformers makes of a GGUF file into an empty folder, in float32, as a checkpoint of its own."""
    from safetensors.torch import save_file

    loaded = load(str(file), dtype="float32", device="cpu")
    model, weights = loaded.model, {}
    known: set[int] = set()
    for key, tensor in model.state_dict().items():
        # Tied weights are one tensor, and are written once.
        if tensor.data_ptr() not in known:
            known.add(tensor.data_ptr())
            weights[key] = tensor.contiguous()
    content = model.config.to_dict()
    content.pop("quantization_config", None)
    config = type(model.config).from_dict(content)
    config.architectures = [type(model).__name__]
    with quiet(offline=True):
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def quiet(*, offline: bool) -> Iterator[None]:
    """Keep Transformers and its libraries from writing to the terminal, and from the network if so wished."""
    before = {name: os.environ.get(name) for name in (OFFLINE, BARS)}
    # These are read when the libraries are imported, so they are set first of all.
    os.environ[BARS] = "1"
    if offline:
        os.environ[OFFLINE] = "1"
    try:
        from transformers.utils import logging as transformers_logging

        talk: Any = transformers_logging  # Half of it is not annotated.
        level, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
        hub = logging.getLogger("huggingface_hub")
        hub_level = hub.level
        hub.setLevel(logging.CRITICAL)
        talk.set_verbosity(logging.CRITICAL)
        talk.disable_progress_bar()
        try:
            # The reader of GGUF files draws a bar that no switch turns off once tqdm is imported.
            with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            talk.set_verbosity(level)
            hub.setLevel(hub_level)
            if bars:
                talk.enable_progress_bar()
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def _file_in(path: Path) -> tuple[Path, str | None]:
    """Return the folder to load from, and the GGUF file in it where the model is one."""
    if path.is_file():
        return path.parent, path.name
    if not path.is_dir():
        raise ModelNotFound(model=str(path), cause="there is no such file or folder")
    files = tuple(sorted(file.name for file in path.glob("*.gguf")))
    if (path / "config.json").is_file():
        return path, None
    if not files:
        raise ModelNotFound(model=str(path), cause="the folder has neither a config.json nor a .gguf file")
    if len(files) > 1:
        raise AmbiguousModel(folder=str(path), files=files)
    return path, files[0]


def _is_path(source: str) -> bool:
    """Tell whether a text can only be meant as a path: an id of the hub is `name` or `owner/name`."""
    return source.endswith(".gguf") or source.startswith(("/", ".", "~")) or source.count("/") > 1


def _is_cached(model: str) -> bool:
    """Tell whether the hub's own cache has a model's configuration."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except HFValidationError as error:
        raise ModelNotFound(model=model, cause=_first_sentence(error)) from error


def _need_hub(model: str) -> None:
    """Raise unless the hub answers; asked once, because its own library tries for most of a minute."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http as http

    if constants.HF_HUB_OFFLINE:
        raise ModelNotFound(model=model, cause=f"it is not in the cache and {OFFLINE} is set")
    try:
        http.get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except Exception as error:
        # The class depends on the library's version and on what stands in the way.
        raise ModelNotFound(model=model, cause=f"the hub cannot be reached ({_first_sentence(error)})") from error


def _device(name: str | None) -> torch.device:
    """Return the device a user named, or the first accelerator, or the CPU."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DeviceMissing(device=name, cause=_first_sentence(error)) from error
    return device


def _first_sentence(error: Exception) -> str:
    """Return the first line of what an exception says."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
