"""Whether a kernel returns what torch was told that it returns: compiled code reads its results by that alone.

How many they are is looked at in every call. Dtypes and layout are what the fake says at the first call of each
combination of dtypes: a fake takes milliseconds, and a kernel that is wrong in them is so for every size.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from vllm_ir.errors import UnfitResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BY_FAKE: Final = "Let it return what the op's fake promises, or tell make_torch_op by fake= what it returns."
_BY_WRITES: Final = "Name in writes=[...] the activations that its last results come to lie in."


class Promise(NamedTuple):
    """What one result is to be."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    contiguous: bool

    def __str__(self) -> str:
        """Return it as a sentence has it."""
        return f"{self.dtype} {list(self.sizes)}{', contiguous' if self.contiguous else ''}"


class Results:
    """What one kernel's results are held against."""

    def __init__(
        self, op: str, name: str, kernel: Callable[..., Any], outputs: Sequence[str], fake: Callable[..., Any]
    ) -> None:
        """Take what names the kernel in sentences, the types of the op's results, and what tells them for arguments.

        Args:
            op: the op's name.
            name: torch's name of the kernel.
            kernel: what is called.
            outputs: the types of results in the schema.
            fake: returns what results are like, from stand-ins without memory.
        """
        self._op, self._name, self._kernel, self._fake = op, name, kernel, fake
        self._count, self._checked = len(outputs), set(outputs) == {"Tensor"}
        self._held: set[tuple[torch.dtype, ...]] = set()

    def several(self, results: Any) -> tuple[Any, ...]:
        """Return one result or several as a tuple of as many as the op has.

        Raises:
            UnfitResult: they are more or fewer, or one is no tensor.
        """
        if not self._checked:
            return tuple(results) if isinstance(results, (tuple, list)) and self._count > 1 else (results,)
        found = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        if len(found) != self._count:
            got = _counted(len(found)) if results is not None else "None"
            raise self._unfit(got, _counted(self._count), _BY_FAKE)
        for place, result in enumerate(found):
            if not isinstance(result, torch.Tensor):
                raise self._unfit(f"{type(result).__name__}{self._which(place)}", "a tensor", _BY_FAKE)
        return found

    def check(self, results: Sequence[Any], args: tuple[Any, ...]) -> None:
        """Hold results against what torch was told of them; they may be fewer than all, the first ones then.

        Under autocast nothing is held against the fake, which does not know what is cast.

        Raises:
            UnfitResult: one is of another dtype, shape or device, or lies otherwise although it was to be contiguous.
        """
        if not results or not self._checked:
            return
        tensors = [each for each in _leaves(args) if isinstance(each, torch.Tensor)]
        dtypes = tuple([each.dtype for each in tensors])
        if dtypes in self._held or not all(_plain(each) for each in tensors):
            return
        device = tensors[0].device if tensors else None
        if device is not None and torch.is_autocast_enabled(device.type):
            return
        for place, (result, wanted) in enumerate(zip(results, self._promises(args), strict=False)):
            fits = (
                result.layout == torch.strided
                and (result.dtype, result.shape) == (wanted.dtype, wanted.sizes)
                and (not wanted.contiguous or result.is_contiguous())
                and (device is None or result.device == device)
            )
            if not fits:
                on = "" if device is None or result.device == device else f" on {device}"
                raise self._unfit(f"{_kind(result)}{self._which(place)}", f"{wanted}{on}", _BY_FAKE)
        self._held.add(dtypes)

    def check_place(self, place: int, result: torch.Tensor, parameter: str, target: torch.Tensor) -> None:
        """Hold a result against the activation that it is to lie in.

        Raises:
            UnfitResult: it is of another dtype, shape or device.
        """
        if (result.dtype, result.shape, result.device) != (target.dtype, target.shape, target.device):
            wanted = f"{target.dtype} {list(target.shape)} on {target.device} as {parameter!r} is"
            raise self._unfit(f"{_kind(result)}{self._which(place)}", wanted, _BY_WRITES)

    def _promises(self, args: tuple[Any, ...]) -> tuple[Promise, ...]:
        """Return what is promised of the results of a call; nothing where no fake can tell: no graph has it then."""
        try:
            told = self._fake(*args)
        except Exception:  # noqa: BLE001 - the fake is an author's; whoever traces hears of it
            return ()
        several = tuple(told) if isinstance(told, (tuple, list)) else (told,)
        if len(several) != self._count or not all(isinstance(each, torch.Tensor) for each in several):
            return ()
        return tuple(Promise(each.dtype, tuple(each.shape), each.is_contiguous()) for each in several)

    def _which(self, place: int) -> str:
        """Return which of several results is meant."""
        return f" as result {place + 1} of {self._count}" if self._count > 1 else ""

    def _unfit(self, got: str, wanted: str, fix: str) -> UnfitResult:
        """Return the error."""
        return UnfitResult(op=self._op, name=self._name, kernel=_named(self._kernel), got=got, wanted=wanted, fix=fix)


def _leaves(args: Sequence[Any]) -> list[Any]:
    """Return arguments with the members of lists in their place."""
    return [each for arg in args for each in (arg if isinstance(arg, (list, tuple)) else (arg,))]


def _plain(x: torch.Tensor) -> bool:
    """Tell whether a tensor is what it seems, and has strides."""
    return type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout == torch.strided


def _counted(count: int) -> str:
    """Return a number of results as text."""
    return f"{count} result{'' if count == 1 else 's'}"


def _kind(x: torch.Tensor) -> str:
    """Return a tensor as a sentence has it."""
    laid = "" if x.layout == torch.strided and x.is_contiguous() else ", not contiguous"
    return f"{x.dtype} {list(x.shape)} on {x.device}{laid}"


def _named(kernel: Callable[..., Any]) -> str:
    """Return what a kernel is called."""
    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    return str(getattr(kernel, "__name__", type(kernel).__name__))
