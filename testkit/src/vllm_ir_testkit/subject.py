"""One op by one provider, as a check sees it: which calls it takes, and how they are run.

What is demanded of a result is the checks' business.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vllm_ir.dispatch import judge
from vllm_ir.names import NATIVE
from vllm_ir.op import IrOpInplace

from vllm_ir_testkit.batch import results
from vllm_ir_testkit.curated import cases_of, unusual_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch
    from vllm_ir import IrOp, IrOpImpl
    from vllm_ir.plugins.records import ProviderRecord

    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes

Arguments = tuple[Any, ...]


def take(op: IrOp, case: Case, device: torch.device | str) -> Arguments | None:
    """Return the arguments of a case that is legal for an op, or None."""
    try:
        args = case.build(op, device)
        op.impls[NATIVE].impl_fn(*args)
    except Exception:  # noqa: BLE001 - whatever native or the generator raises, the call means nothing
        return None
    return args


@functools.lru_cache(maxsize=64)
def legal_cases(op: IrOp, device: str) -> tuple[Case, ...]:
    """Return the curated cases that mean something for an op, whoever implements it."""
    return tuple(case for case in cases_of(op) if take(op, case, device) is not None)


@dataclass(frozen=True, slots=True)
class Subject:
    """One op by one provider on one device.

    Attributes:
        op: the op.
        impl: the provider's implementation.
        device: where the tensors are.
        record: what discovery knows of the provider; None for one that a program registered.
    """

    op: IrOp
    impl: IrOpImpl
    device: torch.device
    record: ProviderRecord | None = None

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self.impl.provider

    def build(self, case: Case) -> Arguments:
        """Return the arguments of a case, on the device."""
        return case.build(self.op, self.device)

    def native(self, args: Arguments) -> tuple[Any, ...]:
        """Return what the op means for these arguments."""
        return results(self.op.impls[NATIVE].impl_fn(*args))

    def run(self, args: Arguments) -> tuple[Any, ...]:
        """Run the provider as a program would; the scope that the engine opened puts it first."""
        return results(self.op(*args))

    def attempt(self, args: Arguments) -> tuple[Any, ...] | None:
        """Run the provider, or return None where it raises, which is the refusal check's fault to report."""
        try:
            return self.run(args)
        except Exception:  # noqa: BLE001 - whatever a provider raises
            return None

    def donate(self, args: Arguments) -> tuple[Any, ...]:
        """Run `maybe_inplace`; only for an op that has it."""
        if not isinstance(self.op, IrOpInplace):
            message = f"op {self.op.name!r} has no maybe_inplace"
            raise TypeError(message)
        return results(self.op.maybe_inplace(*args))

    @property
    def ways(self) -> Mapping[str, Callable[[Arguments], tuple[Any, ...]]]:
        """One overload for each function that the implementation has, by name; a functional form is one of its own."""
        found: dict[str, Callable[[Arguments], tuple[Any, ...]]] = {"default": self.run}
        return found if self.impl.functional is None else {**found, "maybe_inplace": self.donate}

    @property
    def forms(self) -> Mapping[str, Callable[..., Any]]:
        """Each function that the implementation has, by name, so that it writes no input."""
        copying = replace(self.impl, functional=None).func_impl_fn
        if self.impl.functional is None:
            return {"the implementation": copying}
        return {"the in-place form": copying, "the functional form": self.impl.functional}

    def take(self, case: Case) -> Arguments | None:
        """Return the arguments of a case that is legal for the op, or None."""
        return take(self.op, case, self.device)

    def legal(self) -> tuple[Case, ...]:
        """Return the curated cases that mean something for the op."""
        return legal_cases(self.op, str(self.device))

    def unusual(self) -> Iterator[tuple[Case, Arguments]]:
        """Yield legal calls with dtypes that few kernels take."""
        for case in unusual_cases():
            args = self.take(case)
            if args is not None:
                yield case, args

    def accepted(self, cases: Iterable[Case] | None = None) -> Iterator[tuple[Case, Arguments]]:
        """Yield the legal calls that the provider takes.

        Args:
            cases: legal ones; the curated ones when None.
        """
        for case in self.legal() if cases is None else cases:
            args = self.build(case)
            if judge(self.impl, args) is None:
                yield case, args

    def runs(
        self, notes: Notes, cases: Iterable[Case] | None = None
    ) -> Iterator[tuple[Case, Arguments, Sequence[Any]]]:
        """Yield the calls that the provider takes with its results; one that raises is the refusal check's fault."""
        for case, args in self.accepted(cases):
            outputs = self.attempt(args)
            if outputs is not None:
                notes.tried()
                yield case, args, outputs

    def plain(self, *, dtypes: Sequence[str] = ()) -> list[Case]:
        """Return the first plain legal case of each dtype that the provider takes."""
        plain = (c for c in self.legal() if c.plain and c.hidden is None and (not dtypes or c.dtype in dtypes))
        return list({case.dtype: case for case, _ in self.accepted(plain)}.values())
