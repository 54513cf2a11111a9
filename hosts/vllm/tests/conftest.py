"""A vLLM in miniature, for what can be told without the real one; tests that need that one lie in `real`.

It has what this host touches, with the behaviour that the host goes by: ops that register implementations by
signature, layers that vLLM chooses by the exact name of a class, a platform that is asked for defaults.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field, make_dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import Unsupported
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.ops import layernorm
from vllm_ir.platforms import Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.runtime import Runtime


class FakeImpl:
    """An implementation as vLLM keeps it."""

    def __init__(self, run: Callable[..., Any], accepts: Callable[..., Any] | None, *, inplace: bool) -> None:
        self.impl_fn = run
        self.supported = True
        self.inplace = inplace
        self.accepts = accepts

    def uuid(self) -> str:
        """Return what vLLM hashes: the file of the function."""
        return inspect.getfile(self.impl_fn)

    def func_impl_fn(self, *args: Any) -> Any:
        """Run on copies of all tensors."""
        return self.impl_fn(*(each.clone() if isinstance(each, torch.Tensor) else each for each in args))


class FakeOp:
    """An op as vLLM keeps it."""

    def __init__(self, native: Callable[..., Any], *, allow_inplace: bool = False) -> None:
        self.allow_inplace = allow_inplace
        self.native = native
        self.impls: dict[str, FakeImpl] = {"native": FakeImpl(native, None, inplace=False)}

    def register_impl(
        self, provider: str, *, supports_args: Callable[..., Any] | None = None, inplace: bool = False
    ) -> Callable[[Callable[..., Any]], FakeImpl]:
        """Register a function whose parameters are native's, as vLLM does."""

        def register(function: Callable[..., Any]) -> FakeImpl:
            """Compare the parameters, and keep it."""
            for asked in filter(None, (function, supports_args)):
                if list(inspect.signature(asked).parameters) != list(inspect.signature(self.native).parameters):
                    raise ValueError(f"schema of {provider} does not match")
            self.impls[provider] = FakeImpl(function, supports_args, inplace=inplace)
            return self.impls[provider]

        return register


class FakePlatform:
    """vLLM's platform: which one it is, its defaults, and what it checks."""

    def __init__(self) -> None:
        self.kind = "cpu"
        self.checked: list[Any] = []

    def import_ir_kernels(self) -> None:
        """Import vLLM's own implementations; there are none."""

    def get_default_ir_op_priority(self, vllm_config: Any) -> Any:
        """Return native for every op."""
        return type(vllm_config.kernel_config.ir_op_priority)(["native"], ["native"], ["native"])

    def check_and_update_config(self, vllm_config: Any) -> None:
        """Take note of a configuration."""
        self.checked.append(vllm_config)


@dataclass
class FakeVllm:
    """The modules of a vLLM in miniature."""

    ops: dict[str, FakeOp]
    layers: dict[str, Any]
    platform: FakePlatform
    environment_variables: dict[str, Callable[[], Any]]
    layernorm: ModuleType
    activation: ModuleType
    rotary: ModuleType
    loader: type
    custom_op: type
    config: Callable[..., Any] = field(repr=False)


def make_custom_op(platform: FakePlatform, taken: dict[str, Any]) -> type:
    """Return vLLM's base of layers: a class of its own for each name in a table, a method for each platform."""

    class CustomOp(torch.nn.Module):
        """A layer."""

        custom_ops: tuple[str, ...] = ("all",)
        name: str

        def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
            """Make the class that is registered for the name of this one."""
            return super().__new__(taken.get(cls.__name__, cls))

        def __init__(self) -> None:
            super().__init__()
            enabled = f"-{type(self).name}" not in self.custom_ops and (
                "all" in self.custom_ops or f"+{type(self).name}" in self.custom_ops
            )
            self.chosen = f"forward_{platform.kind}" if enabled else "forward_native"
            self._forward_method: Any = getattr(self, self.chosen)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            """Run the chosen method."""
            return self._forward_method(*args, **kwargs)

        def forward_hip(self, *args: Any, **kwargs: Any) -> Any:
            """Run what CUDA runs."""
            cuda: Any = self.forward_cuda
            return cuda(*args, **kwargs)

        @classmethod
        def register_oot(cls, made: Any) -> Any:
            """Put a class into the table under the name of this one, and the name into the class."""
            if cls.__name__ in taken:
                raise AssertionError(cls.__name__)
            made.name = cls.__name__
            taken[cls.__name__] = made
            return made

    def refuse(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Fail: the layer of vLLM ran."""
        raise NotImplementedError(type(self).__name__)

    for method in ("native", "cuda", "xpu", "cpu", "oot"):
        setattr(CustomOp, f"forward_{method}", refuse)
    return CustomOp


def make_layers(base: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the classes of vLLM's three modules of layers."""

    class RMSNorm(base):  # type: ignore[misc]  # made above
        """A norm; `hidden` is the size of its rows."""

        name = "rms_norm"

        def __init__(self, hidden: int, *, has_weight: bool = True, dtype: torch.dtype = torch.float32) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, hidden, dtype=dtype))
            self.variance_epsilon = 1e-6
            self.variance_size_override: int | None = None
            self.pass_weight = self.pass_weight_add = has_weight

    class GemmaRMSNorm(base):  # type: ignore[misc]  # made above
        """A norm with one plus its weight."""

        name = "gemma_rms_norm"

        def __init__(self, hidden: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-0.5, 0.5, hidden, dtype=torch.bfloat16))
            self.variance_epsilon = 1e-6

    class SiluAndMul(base):  # type: ignore[misc]  # made above
        """A gated activation."""

        name = "silu_and_mul"

    class GeluAndMul(base):  # type: ignore[misc]  # made above
        """A gated activation with an approximation."""

        name = "gelu_and_mul"

        def __init__(self, approximate: str = "none") -> None:
            super().__init__()
            self.approximate = approximate

    class RotaryEmbedding(base):  # type: ignore[misc]  # made above
        """A rotary embedding."""

        name = "rotary_embedding"

        def __init__(self, head_size: int = 8) -> None:
            super().__init__()
            self.head_size = self.rotary_dim = head_size
            self.is_neox_style = True
            angles = torch.outer(torch.arange(32.0), torch.linspace(1, 0.1, head_size // 2))
            self.register_buffer("cos_sin_cache", torch.cat((angles.cos(), angles.sin()), dim=-1))

        def _match_cos_sin_cache_dtype(self, query: torch.Tensor) -> torch.Tensor:
            """Return the cache in the dtype of the query."""
            found: torch.Tensor = self.cos_sin_cache.to(query.dtype)
            return found

        @staticmethod
        def forward_static(*_args: Any) -> str:
            """Tell that vLLM's own code ran."""
            return "vLLM's own"

    class Llama3RotaryEmbedding(RotaryEmbedding):
        """One that differs in its angles alone."""

    class FourierRotaryEmbedding(RotaryEmbedding):
        """One with a computation of its own."""

        def forward_native(self, *_args: Any) -> str:
            """Compute otherwise."""
            return "another computation"

    norms = {each.__name__: each for each in (RMSNorm, GemmaRMSNorm)}
    gates = {each.__name__: each for each in (SiluAndMul, GeluAndMul)}
    rotary = {each.__name__: each for each in (RotaryEmbedding, Llama3RotaryEmbedding, FourierRotaryEmbedding)}
    return norms, gates, rotary


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> FakeVllm:
    """Put a vLLM in miniature where Python finds the real one, for one test."""
    platform, taken = FakePlatform(), dict[str, Any]()
    norm = layernorm.rms_norm.declaration.native
    fused = layernorm.fused_add_rms_norm.declaration.native
    ops = {
        "rms_norm": FakeOp(norm),
        "fused_add_rms_norm": FakeOp(fused, allow_inplace=True),
        "gelu_and_mul_sparse": FakeOp(lambda x: x),
    }
    custom_op = make_custom_op(platform, taken)
    norms, gates, rotary = make_layers(custom_op)

    class BaseModelLoader:
        """What loads a model in a worker."""

        def load_model(self, vllm_config: Any) -> str:
            """Load."""
            return f"loaded {vllm_config.name}"

    variables: dict[str, Callable[[], Any]] = {"VLLM_PLUGINS": lambda: None}
    priorities = make_dataclass("IrOpPriorityConfig", [(name, list) for name in ops])

    def config(additional: Any = None, *, compiling: bool = False, **lists: list[str]) -> Any:
        """Return a configuration of vLLM."""
        return SimpleNamespace(
            name="model",
            additional_config=additional or {},
            kernel_config=SimpleNamespace(ir_op_priority=priorities(*(lists.get(name, []) for name in ops))),
            compilation_config=SimpleNamespace(backend="inductor", mode=3 if compiling else 0),
        )

    def install(name: str, **attributes: Any) -> ModuleType:
        """Make one module."""
        module = ModuleType(f"vllm.{name}" if name else "vllm")
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    def no_group() -> Any:
        """Refuse, as vLLM does before it is initialised."""
        raise AssertionError("world group is not initialized")

    install("", __version__="0.32.0", __path__=[])
    install("envs", environment_variables=variables)
    install("platforms", current_platform=platform)
    install("distributed", get_world_group=no_group)
    install("ir", __path__=[])
    install("ir.op", IrOp=SimpleNamespace(registry=ops))
    for package in ("model_executor", "model_executor.layers", "model_executor.model_loader"):
        install(package, __path__=[])
    install("model_executor.custom_op", op_registry_oot=taken, CustomOp=custom_op)
    install("model_executor.model_loader.base_loader", BaseModelLoader=BaseModelLoader)
    return FakeVllm(
        ops=ops,
        layers=taken,
        platform=platform,
        environment_variables=variables,
        layernorm=install("model_executor.layers.layernorm", **norms),
        activation=install("model_executor.layers.activation", **gates),
        rotary=install("model_executor.layers.rotary_embedding", **rotary),
        loader=BaseModelLoader,
        custom_op=custom_op,
        config=config,
    )


def fast_accepts(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | Unsupported:
    """Take float32 alone."""
    del weight, epsilon, variance_size
    return x.dtype == torch.float32 or Unsupported(f"needs float32, got {x.dtype}")


def declare(state: Runtime) -> None:
    """Register a provider `fast` of two norms, one of them in place, and one `broken` that cannot run here."""
    norm, fused = state.registry.get("rms_norm"), state.registry.get("fused_add_rms_norm")
    norm.register_impl("fast", supports_args=fast_accepts)(norm.declaration.native)

    def fused_in_place(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write both results where the inputs were."""
        out, total = fused.declaration.native(x, x_residual, weight, epsilon, variance_size)
        return x.copy_(out), x_residual.copy_(total)

    fused.register_impl("fast", inplace=True, functional=fused.declaration.native)(fused_in_place)
    norm.register_impl("broken", supported=Unsupported("it needs a moon"))(norm.declaration.native)


@pytest.fixture
def state() -> Iterator[Runtime]:
    """Give a process with the provider `fast`, which is in no default list, and `broken`, which cannot run."""
    from vllm_ir import ops  # noqa: F401 - the core's ops are there before the state is taken apart

    found = Landscape(platform=Platform(name="cpu", device_type="cpu"), unusable={"gone": "its wheel is damaged"})
    with isolated({}, landscape=found) as fresh:
        declare(fresh)
        yield fresh
