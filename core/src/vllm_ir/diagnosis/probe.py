"""Running one provider in a process of its own: `python -m vllm_ir.diagnosis.probe FILE DISTRIBUTION PROVIDER`.

What happens is written to the file line by line as it happens, so that whoever waits knows how far a process came that
did not survive. Who is run, and how long that may take, is left to `children`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.outcome import Discovery
    from vllm_ir.plugins.records import ProviderRecord

    Teller = Callable[[dict[str, Any]], None]

DTYPES: Final = ("float32", "bfloat16", "float16")
"""The dtypes of the activations that are tried, where a provider's manifest has them."""

TOKENS: Final = 16
"""How many tokens the example inputs have."""

DONE: Final = "done"
AGREES: Final = "agrees"
DIFFERS: Final = "differs"
REFUSES: Final = "refuses"
RAISES: Final = "raises"
UNTRIED: Final = "not tried"
"""What can come of warming up, and of running one op with one dtype."""


def run(distribution: str, provider: str, tell: Teller) -> None:
    """Load a distribution, warm it up and run every op of one of its providers, and tell each step.

    Args:
        distribution: the one to load.
        provider: the one of its providers to run.
        tell: takes `{"step": what begins}`, `{"failure": why it is not usable}`, and `{"result": what came of a part}`.
    """
    from vllm_ir.plugins import discovery

    tell({"step": "importing torch"})
    import torch

    tell({"step": "loading"})
    found = discovery.load_around_conflicts()
    if found is None:
        tell({"failure": {"kind": "failed", "reason": "Discovery did not come to an end.", "traceback": None}})
        return
    each = next(
        one
        for record in found.distributions
        if record.name == distribution
        for one in record.providers
        if one.name == provider
    )
    if each.failure is not None:
        tell({"failure": each.failure.describe()})
        return
    dtypes = [name for name in DTYPES if each.dtypes is None or name in each.dtypes]
    _warm_up(distribution, found, [getattr(torch, name) for name in dtypes], tell)
    for op, reason in each.refused_ops:
        tell({"result": _result(op, None, REFUSES, reason)})
    refused = dict(each.refused_ops)
    for op in each.ops:
        if op not in refused:
            _run_op(op, each, found.platform, tell)


def _result(what: str, dtype: str | None, outcome: str, reason: str | None = None, trace: str | None = None) -> Any:
    """Return what came of one part."""
    return {"what": what, "dtype": dtype, "outcome": outcome, "reason": reason, "traceback": trace}


def _raised(what: str, dtype: str | None, error: BaseException) -> Any:
    """Return that one part raised."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    said = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return _result(what, dtype, RAISES, reason, "".join(lines))


def _warm_up(distribution: str, found: Discovery, dtypes: Sequence[torch.dtype], tell: Teller) -> None:
    """Call the hook that compiles and loads, a dtype at a time, so that no step takes long."""
    from vllm_ir.plugins import agreement, hooks

    for each in found.hooks:
        if each.distribution != distribution or not each.has(hooks.WARM_UP):
            continue
        for dtype in dtypes:
            name = str(dtype).removeprefix("torch.")
            tell({"step": f"warming up, {name}"})
            try:
                answer = each.call(hooks.WARM_UP, platform=found.platform, device=None, dtypes=(dtype,))
                agreement.check_warm_up(each, answer)
            except Exception as error:  # noqa: BLE001 - whatever a hook raises is what the report is for
                tell({"result": _raised("warm-up", name, error.__cause__ or error)})
            else:
                tell({"result": _result("warm-up", name, DONE)})


def _run_op(name: str, each: ProviderRecord, platform: Platform, tell: Teller) -> None:
    """Run one op with each dtype that the provider has."""
    import torch

    from vllm_ir.runtime import find

    op = find(name)
    if not op.has_input_generator:
        tell({"result": _result(name, None, UNTRIED, "the op has no example inputs")})
        return
    manifest = each.manifest
    has = manifest.dtypes_of(name) if manifest is not None and name in manifest.ops else each.dtypes
    dtypes = [dtype for dtype in DTYPES if has is None or dtype in has]
    if not dtypes:
        tell({"result": _result(name, None, UNTRIED, f"it is for none of {', '.join(DTYPES)}")})
    for dtype in dtypes:
        tell({"step": f"running {name}, {dtype}"})
        impl = op.impls[each.name]
        try:
            with torch.no_grad():
                tell({"result": _try(op, impl, dtype, _place(impl, platform))})
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a kernel raises is what the report is for
            tell({"result": _raised(name, dtype, error)})


def _place(impl: IrOpImpl, platform: Platform) -> str:
    """Return the torch device type of the inputs: the platform's, or the first that the implementation takes."""
    if impl.devices is None or platform.device_type in impl.devices:
        return platform.device_type
    return min(impl.devices)


def _try(op: IrOp, impl: IrOpImpl, dtype: str, device: str) -> Any:
    """Run an implementation on the op's example inputs and hold what it returns against native's."""
    import torch

    from vllm_ir.dispatch import read_answer
    from vllm_ir.names import NATIVE

    torch.manual_seed(0)
    args = op.apply_arg_defaults(_inputs(op, getattr(torch, dtype), device))
    refusal = read_answer(impl.supports_args(*args))
    if refusal is not None:
        return _result(op.name, dtype, REFUSES, refusal.reason)
    wanted = op.impls[NATIVE].func_impl_fn(*args)
    problem = _difference(op, impl.func_impl_fn(*args), wanted)
    if problem is None and impl.inplace:
        given = [
            value.clone(memory_format=torch.contiguous_format) if place in op.activation_indices else value
            for place, value in enumerate(args)
        ]
        problem = _difference(op, impl.impl_fn(*given), wanted)
        problem = problem and f"writing to its inputs: {problem}"
    return _result(op.name, dtype, AGREES if problem is None else DIFFERS, problem)


def _inputs(op: IrOp, dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    """Return the op's example inputs; a generator need not know dtypes or devices."""
    import torch

    from vllm_ir.errors import WrongCall

    def moved(value: Any) -> Any:
        """Return a value where it is wanted."""
        return value.to(device) if isinstance(value, torch.Tensor) else value

    try:
        return op.generate_inputs(num_tokens=TOKENS, dtype=dtype, device=device)
    except WrongCall:
        return tuple(map(moved, op.generate_inputs(num_tokens=TOKENS)))


def _difference(op: IrOp, got: Any, wanted: Any) -> str | None:
    """Return in what a result differs from native's by more than the op's tolerance, or None."""
    import torch

    from vllm_ir.errors import MissingTolerance
    from vllm_ir.tolerances import comparable

    for one, other in _pairs(got, wanted):
        if not isinstance(one, torch.Tensor):
            return f"it returned {type(one).__name__}, wanted a tensor"
        try:
            bounds = op.get_tolerance(other.dtype)
        except MissingTolerance:
            bounds = {"atol": 0.0, "rtol": 0.0}
        try:
            same_dtype = one.dtype == other.dtype
            pair = (comparable(one), comparable(other)) if same_dtype else (one, other)
            torch.testing.assert_close(*pair, **bounds, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).replace("Tensor-likes are not close!", "").split())
    return None


def _pairs(got: Any, wanted: Any) -> Iterator[tuple[Any, Any]]:
    """Give each result with the one that is wanted; one that is missing is None."""
    many = wanted if isinstance(wanted, tuple) else (wanted,)
    ours = tuple(got) if isinstance(got, (tuple, list)) else (got,)
    for place, other in enumerate(many):
        yield (ours[place] if place < len(ours) else None), other


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments say and return the exit code of the process; 0 however the provider fares."""
    file, distribution, provider = arguments
    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    def tell(fact: dict[str, Any]) -> None:
        """Write one line at once."""
        os.write(out, json.dumps(fact).encode() + b"\n")

    run(distribution, provider, tell)
    tell({"step": "done"})
    return 0


if __name__ == "__main__":
    # Not sys.exit: a provider's threads must not keep the child alive, nor its atexit handlers crash it.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
