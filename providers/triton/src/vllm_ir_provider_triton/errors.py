"""What is read when a kernel cannot be compiled or loaded, or a table of launches not used: which, why, what to do."""

from __future__ import annotations

from vllm_ir.errors import IrError

__all__ = ["CannotCompile", "KernelError", "NotWarm", "TooManyRows", "UnusableTable"]


class KernelError(IrError, RuntimeError):
    """A Triton kernel that cannot run."""


class CannotCompile(KernelError):
    """Triton refused a program, or the driver what came of it."""

    def __init__(self, *, program: str, arch: str, compiler: str, cause: str) -> None:
        self.program, self.arch, self.compiler, self.cause = program, arch, compiler, cause
        super().__init__(
            f"triton: {compiler} does not compile or load {program} for {arch}: {cause}. Use a Triton that knows"
            f" {arch} (pip install 'vllm-ir-provider-triton[triton]'), or deny the provider:"
            " VLLM_IR_PROVIDERS_DISABLED=triton,triton_batch_invariant.",
            program=program,
            arch=arch,
            compiler=compiler,
            cause=cause,
        )


class NotWarm(KernelError):
    """A kernel that is not loaded was called while a graph is being captured."""

    def __init__(self, *, program: str, device: str) -> None:
        self.program, self.device = program, device
        super().__init__(
            f"triton: {program} is not loaded on {device}, and nothing is compiled or loaded while a graph is captured."
            f" Call vllm_ir.warm_up({device!r}) in this process before the capture, and the op itself once where its"
            " sizes are unusual.",
            program=program,
            device=device,
        )


class TooManyRows(KernelError):
    """A launch of more programs than a grid has."""

    def __init__(self, *, program: str, blocks: int, most: int) -> None:
        self.program, self.blocks, self.most = program, blocks, most
        super().__init__(
            f"triton: {program} needs {blocks} blocks for so many rows; a grid has {most}. Call it for parts of them.",
            program=program,
            blocks=blocks,
            most=most,
        )


class UnusableTable(IrError, ValueError):
    """A table of launches that cannot be used, so that the built-in rule stands; logged, not raised."""

    def __init__(self, *, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"triton: the table of launches {path} is not used, since {problem}. The built-in rule stands; remove the"
            " file, or write it again with vllm-ir bench --tune.",
            path=path,
            problem=problem,
        )
