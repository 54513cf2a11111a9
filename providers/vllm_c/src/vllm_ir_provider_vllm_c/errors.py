"""What is read when a kernel cannot be compiled, kept or loaded: which kernel, for which GPU, and what to do."""

from __future__ import annotations

from vllm_ir.errors import IrError

__all__ = [
    "CannotCompile",
    "CannotLoad",
    "CannotStart",
    "CannotWrite",
    "CompilerMissing",
    "KernelError",
    "NotWarm",
]


class KernelError(IrError, RuntimeError):
    """A kernel of vllm_c that cannot run."""


class CompilerMissing(KernelError):
    """NVRTC, or a header that it reads, is not there."""

    def __init__(self, *, program: str, arch: str, missing: str) -> None:
        self.program, self.arch, self.missing = program, arch, missing
        super().__init__(
            f"vllm_c cannot compile {program} for {arch}: {missing}. Install what brings it:"
            " pip install 'vllm-ir-provider-vllm-c[cuda13]' (or [cuda12] with CuPy for CUDA 12), or bring cubins along:"
            f" python -m vllm_ir_provider_vllm_c build --arch {arch}.",
            program=program,
            arch=arch,
            missing=missing,
        )


class CannotCompile(KernelError):
    """NVRTC refused a program; the first lines of what it said are in the message, all of them in `log`."""

    LINES = 12

    def __init__(self, *, program: str, arch: str, compiler: str, log: str) -> None:
        self.program, self.arch, self.compiler, self.log = program, arch, compiler, log
        lines = [line for line in log.splitlines() if line.strip()][: self.LINES]
        shown = "\n".join(f"    {line}" for line in lines) or "    (the compiler said nothing)"
        super().__init__(
            f"vllm_c: {compiler} does not compile {program} for {arch}:\n{shown}\n"
            f"{self._advice(log, arch)}, or deny the provider: VLLM_IR_PROVIDERS_DISABLED=vllm_c.",
            program=program,
            arch=arch,
            compiler=compiler,
            log=log,
        )

    @staticmethod
    def _advice(log: str, arch: str) -> str:
        """Return what helps against what the compiler said, as the beginning of a sentence."""
        if "--gpu-architecture" in log:
            return f"Use an NVRTC that knows {arch}"
        if "open source file" in log:
            return (
                "Install CUDA's headers: pip install 'vllm-ir-provider-vllm-c[cuda13]' (or [cuda12] with CuPy for"
                " CUDA 12)"
            )
        return "This compiler and these sources do not fit: report it with this log, use another NVRTC"


class CannotLoad(KernelError):
    """The driver refused a cubin, or has no such kernel in it."""

    def __init__(self, *, program: str, arch: str, cause: str) -> None:
        self.program, self.arch, self.cause = program, arch, cause
        super().__init__(
            f"vllm_c: the driver does not load {program} for {arch}: {cause}."
            " Update the driver, or use the NVRTC of an older CUDA.",
            program=program,
            arch=arch,
            cause=cause,
        )


class CannotStart(KernelError):
    """The driver refused a launch; CUDA may report here what an earlier kernel did."""

    def __init__(self, *, kernel: str, arch: str, blocks: int, threads: tuple[int, int], cause: str) -> None:
        self.kernel, self.arch, self.blocks, self.threads, self.cause = kernel, arch, blocks, threads, cause
        super().__init__(
            f"vllm_c: the driver does not start {kernel} for {arch} with {blocks} blocks of {threads[0]} x {threads[1]}"
            f" threads: {cause}. If an earlier kernel is to blame, CUDA_LAUNCH_BLOCKING=1 shows which; to do without"
            " these kernels: VLLM_IR_PROVIDERS_DISABLED=vllm_c.",
            kernel=kernel,
            arch=arch,
            blocks=blocks,
            threads=threads,
            cause=cause,
        )


class CannotWrite(KernelError):
    """A cubin built ahead of time could not be written."""

    def __init__(self, *, path: str, cause: str) -> None:
        self.path, self.cause = path, cause
        super().__init__(
            f"vllm_c cannot write {path}: {cause}. Name a folder that you can write, with room in it: --out FOLDER.",
            path=path,
            cause=cause,
        )


class NotWarm(KernelError):
    """A kernel that is not loaded was called while a CUDA graph is being captured."""

    def __init__(self, *, program: str, device: str) -> None:
        self.program, self.device = program, device
        super().__init__(
            f"vllm_c: {program} is not loaded on {device}, and nothing is compiled or loaded while a CUDA graph is"
            f" captured. Call vllm_ir.warm_up({device!r}) in this process before the capture; what another process did"
            " is compiled, but not loaded here.",
            program=program,
            device=device,
        )
