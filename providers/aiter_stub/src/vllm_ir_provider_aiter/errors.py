"""What is read when AITER is there, and still cannot be called: which function, why, and what to do."""

from __future__ import annotations

from vllm_ir.errors import IrError

__all__ = ["AiterError", "CannotBuild", "CannotImport", "WrongTokens"]


class AiterError(IrError, RuntimeError):
    """A call of AITER that cannot be made."""


class CannotImport(AiterError):
    """AITER is installed, and importing it fails or does not bring the function."""

    def __init__(self, *, function: str, version: str, cause: str) -> None:
        self.function, self.version, self.cause = function, version, cause
        super().__init__(
            f"Provider 'aiter' cannot import {function} from amd-aiter {version}: {cause}."
            " Mend that installation, or deny the provider: VLLM_IR_PROVIDERS_DISABLED=aiter.",
            function=function,
            version=version,
            cause=cause,
        )


class CannotBuild(AiterError):
    """AITER, which compiles its kernels when they are first called, gave up; it would have ended the process."""

    def __init__(self, *, function: str, version: str, cause: str) -> None:
        self.function, self.version, self.cause = function, version, cause
        super().__init__(
            f"amd-aiter {version} cannot build what its {function} needs: {cause}. The compiler's output is above;"
            " ROCm's compiler has to be installed, and AITER's folder writable (AITER_JIT_DIR names another)."
            " Until then deny the provider: VLLM_IR_PROVIDERS_DISABLED=aiter.",
            function=function,
            version=version,
            cause=cause,
        )


class WrongTokens(AiterError, ValueError):
    """Tensors of one call that are not of as many tokens; AITER would read or write beyond one of them."""

    def __init__(self, *, op: str, parameter: str, got: int, wanted: str) -> None:
        self.op, self.parameter, self.got, self.wanted = op, parameter, got, wanted
        super().__init__(
            f"{op}: {parameter} is of {got} tokens, wanted {wanted}.",
            op=op,
            parameter=parameter,
            got=got,
            wanted=wanted,
        )
