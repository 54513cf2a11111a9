"""The op: a meaning with a name, the implementations it has, and how it is tested.

Which of them runs is asked of an engine that stands above; an op knows neither priorities nor torch.library.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vllm_ir.declaration import native_implementation, unfused_implementation
from vllm_ir.errors import BadSignature, UnregisteredOp, WrongCall
from vllm_ir.implementation import IrOpImpl, caller
from vllm_ir.names import RESERVED
from vllm_ir.signature import Signature
from vllm_ir.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch._ops import OpOverload

    from vllm_ir.declaration import OpDeclaration
    from vllm_ir.engine import Engine
    from vllm_ir.overload import InplaceOverload
    from vllm_ir.tolerances import Tolerance
    from vllm_ir.verdict import Explanation, Unsupported


class IrOp:
    """An op; call it like its native function.

    Attributes:
        name: the op's name.
        allow_inplace: whether it has a `maybe_inplace`.
        batch_invariant: whether eager native guarantees batch invariance.
        torch_op: the `default` overload that tracers see.
        native_torch_op: a torch op that runs native whatever the priorities are; it has no gradient.
    """

    torch_op: OpOverload
    native_torch_op: OpOverload

    def __init__(self, declaration: OpDeclaration, engine: Engine, admit: Callable[[IrOp, IrOpImpl], IrOpImpl]) -> None:
        self.declaration = declaration
        self.name = declaration.name
        self.allow_inplace = declaration.allow_inplace
        self.batch_invariant = declaration.batch_invariant
        self._engine = engine
        self._admit = admit
        unfused = unfused_implementation(declaration)
        own = (native_implementation(declaration), *([unfused] if unfused is not None else []))
        self._impls: dict[str, IrOpImpl] = {impl.provider: impl for impl in own}
        self._fake: Callable[..., Any] = declaration.native
        self._trial = Trial(declaration.name)
        self.__doc__ = inspect.getdoc(declaration.native)
        self.__name__ = declaration.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - the generated one takes the op's own
        """Run the op without changing any input; each op has this generated with native's own signature."""
        raise UnregisteredOp(op=self.name)

    @property
    def impls(self) -> Mapping[str, IrOpImpl]:
        """The implementations by provider; `native` is the first."""
        return MappingProxyType(self._impls)

    @property
    def activations(self) -> list[str]:
        """Names of the tensors that `maybe_inplace` donates."""
        return list(self.declaration.activations)

    @property
    def activation_indices(self) -> list[int]:
        """Positions of the activations among the parameters."""
        return list(self.declaration.activation_indices)

    def register_impl(
        self,
        provider: str,
        *,
        supported: bool | Unsupported = True,
        supports_args: Callable[..., bool | Unsupported] | None = None,
        inplace: bool = False,
        functional: Callable[..., Any] | None = None,
        batch_invariant: bool = False,
    ) -> Callable[[Callable[..., Any]], IrOpImpl]:
        """Declare an implementation and register it at once.

        Args:
            provider: the provider's name.
            supported: whether this platform can run it at all; Unsupported(sentence) says why not.
            supports_args: called with the op's arguments; returns a bool or Unsupported(sentence).
            inplace: it may write to the activations and return them.
            functional: for an in-place implementation, a function that does the same and writes no input.
            batch_invariant: a row's result does not depend on the other rows, bit for bit.

        Returns:
            A decorator that registers a function and returns its `IrOpImpl`.

        Raises:
            DeclarationError: a part of the declaration does not fit; nothing is registered.
        """
        where = caller(2)

        def register(function: Callable[..., Any]) -> IrOpImpl:
            """Register the decorated function."""
            impl = IrOpImpl(
                op_name=self.name,
                provider=provider,
                impl_fn=function,
                supported=supported,
                predicate=supports_args,
                inplace=inplace,
                functional=functional,
                batch_invariant=batch_invariant,
                where=where,
            )
            return self._admit(self, impl)

        return register

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set what runs on fake and meta tensors instead of native; its result has native's shape, dtype and strides.

        Raises:
            BadSignature: its parameters are not those of the op.
        """
        got = Signature.read(function, f"fake of op {self.name!r}")
        if got != self.declaration.signature:
            raise BadSignature(
                who=f"fake of op {self.name!r}",
                problem=f"it takes {got}, wanted {self.declaration.signature}",
                fix="Use the op's parameters.",
            )
        self._fake = function
        return function

    def run_fake(self, *args: Any, **kwargs: Any) -> Any:
        """Return the op's result on fake or meta tensors: right in shape, dtype and strides, without values."""
        return self._fake(*args, **kwargs)

    @property
    def has_input_generator(self) -> bool:
        """Whether inputs can be generated."""
        return self._trial.generator is not None

    def register_input_generator(self, function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        """Set what makes inputs for tests and benchmarks.

        Args:
            function: takes `num_tokens` and keywords of its own; returns the op's arguments by position.

        Raises:
            BadSignature: it does not take `num_tokens`.
        """
        return self._trial.set_generator(function)

    def generate_inputs(self, **kwargs: Any) -> tuple[Any, ...]:
        """Return arguments for one call, by position.

        Args:
            kwargs: what the op's generator takes: `num_tokens`, and mostly `hidden_size`, `dtype` and `device`.

        Raises:
            MissingGenerator: the op has no generator.
            WrongCall: the generator does not take such keywords.
        """
        return self._trial.generate(**kwargs)

    def override_tolerance(self, dtype: torch.dtype, *, atol: float, rtol: float) -> None:
        """Set how far an implementation may be from native for a dtype: absolute and relative bounds."""
        self._trial.tolerances[dtype] = {"atol": atol, "rtol": rtol}

    def get_tolerance(self, dtype: torch.dtype) -> Tolerance:
        """Return the bounds for a dtype, as keywords of `torch.testing.assert_close`.

        Raises:
            MissingTolerance: neither the op nor the defaults have any for it.
        """
        return self._trial.tolerance(dtype)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, defaults filled in.

        Raises:
            WrongCall: they do not fit the signature.
        """
        signature = inspect.signature(self.declaration.native)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongCall(op=self.name, problem=str(error), signature=str(self.declaration.signature)) from None
        bound.apply_defaults()
        return bound.args

    def apply_arg_defaults(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return positional arguments with the defaults of those left out; slow, for passes and tests.

        Raises:
            WrongCall: they do not fit the signature.
        """
        return self.bind(args, {})

    def dispatch(self, *args: Any, **kwargs: Any) -> IrOpImpl:
        """Return the implementation that a call with these arguments would run; real or fake tensors.

        Raises:
            WrongCall: the arguments do not fit the signature.
            NoImplementation: every candidate refuses.
            ConfigurationError: a provider that a user named cannot run here.
        """
        return self._engine.dispatch(self, self.bind(args, kwargs))

    def explain(self, *args: Any, compiling: bool = False, **kwargs: Any) -> Explanation:
        """Return every candidate in order with its layer, and why it is refused.

        Args:
            args: the op's arguments; without any, only what holds for every call is judged.
            compiling: whether to answer for a graph that Inductor compiles.
            kwargs: the op's arguments by name.

        Raises:
            WrongCall: the arguments do not fit the signature.
        """
        asked = self.bind(args, kwargs) if args or kwargs else None
        return self._engine.explain(self, asked, compiling=compiling)

    def get_priority(self) -> list[str]:
        """Return the providers that may be reached in the current context, in order.

        Raises:
            ConfigurationError: a layer names what does not exist or cannot run.
        """
        return self._engine.priority(self)

    def set_priority(self, providers: str | Sequence[str]) -> AbstractContextManager[None]:
        """Put providers first while the returned context manager is open, in the current context only.

        Args:
            providers: names in order, as a list or as "a,b"; the rest of the order follows behind them.

        Raises:
            UnknownProvider, ProviderLacksOp, UnusableProvider: on entering, for a name that cannot run.
        """
        return self._engine.set_priority(self, providers)

    def set_default(self, providers: str | Sequence[str]) -> None:
        """Put providers first for the whole process, in place of what an earlier call put there.

        Args:
            providers: names in order, as a list or as "a,b"; the rest of the order follows behind them.

        Raises:
            UnknownProvider, ProviderLacksOp, UnusableProvider: a name that cannot run.
        """
        self._engine.set_default(self, providers)

    def supported_providers(self) -> list[str]:
        """Return the providers whose implementation can run on this platform."""
        return [provider for provider, impl in self._impls.items() if impl.supported]

    def save(self) -> tuple[dict[str, IrOpImpl], Callable[..., Any], Trial]:
        """Return what `load` takes: implementations, fake, generator and tolerances."""
        return dict(self._impls), self._fake, replace(self._trial, tolerances=dict(self._trial.tolerances))

    def load(self, saved: tuple[dict[str, IrOpImpl], Callable[..., Any], Trial]) -> None:
        """Put back what `save` returned."""
        self._impls, self._fake, self._trial = saved

    def strip(self) -> None:
        """Forget every implementation but those that the op itself has."""
        self._impls = {name: self._impls[name] for name in RESERVED if name in self._impls}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as the name, so that a model that holds an op can be copied and sent."""
        return (self._engine.finder, (self.name,))

    def __deepcopy__(self, memo: dict[int, Any]) -> IrOp:
        """Return the op itself; there is one per process."""
        return self

    def __repr__(self) -> str:
        """Return the name and the first sentence of its meaning."""
        first = (self.__doc__ or "").strip().splitlines()
        return f"<op {self.name}{self.declaration.signature}{': ' + first[0] if first else ''}>"


class IrOpInplace(IrOp):
    """An op with a `maybe_inplace` overload.

    Attributes:
        maybe_inplace: the overload that donates the activations.
    """

    maybe_inplace: InplaceOverload
