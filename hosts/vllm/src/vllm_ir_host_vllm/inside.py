"""Where we step into vLLM without a public way: everything that another version of vLLM may have moved is here.

vLLM offers no way for a plugin to add default priorities, to see the configuration before an engine starts, or to be
told that a worker is about to load its model. Each step is taken only where the place exists; what could not be
taken is returned in words.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from vllm_ir_host_vllm.families import descendants

if TYPE_CHECKING:
    from collections.abc import Callable

TESTED: Final = ("0.32.0",)
"""The versions of vLLM that the tests have run with."""

_MARK: Final = "_vllm_ir"


def version() -> str:
    """Return the version of vLLM."""
    return str(import_module("vllm").__version__)


def ir_ops() -> dict[str, Any] | None:
    """Return vLLM's own IR ops by name, with its own implementations registered, or None where it has none."""
    try:
        ops = import_module("vllm.ir.op").IrOp.registry
    except (ImportError, AttributeError):
        return None
    import_module("vllm.ir")
    bring = getattr(import_module("vllm.platforms").current_platform, "import_ir_kernels", None)
    if bring is None:
        import_module("vllm.kernels")
    else:
        bring()
    found: dict[str, Any] = ops
    return found


def out_of_tree_layers() -> dict[str, Any]:
    """Return vLLM's table of out-of-tree layers by the name of the class that each stands for."""
    table: dict[str, Any] = import_module("vllm.model_executor.custom_op").op_registry_oot
    return table


def variables() -> dict[str, Callable[[], Any]]:
    """Return vLLM's table of environment variables."""
    table: dict[str, Callable[[], Any]] = import_module("vllm.envs").environment_variables
    return table


def at_default_priorities(extend: Callable[[Any, Any], Any]) -> str | None:
    """Have vLLM's default priorities extended.

    Args:
        extend: is given vLLM's configuration and its defaults; returns the defaults to take.
    """

    def around(original: Callable[..., Any], vllm_config: Any) -> Any:
        """Return the defaults of the platform, extended."""
        return extend(vllm_config, original(vllm_config))

    platform = import_module("vllm.platforms").current_platform
    return _step_in(platform, "get_default_ir_op_priority", around)


def at_configuration(look: Callable[[Any], None]) -> str | None:
    """Have a configuration looked at when it is complete, in the process that makes it.

    Args:
        look: is given vLLM's configuration; what it raises stops vLLM.
    """

    def around(original: Callable[..., Any], vllm_config: Any) -> Any:
        """Let the platform check a configuration, then look at it."""
        answer = original(vllm_config)
        look(vllm_config)
        return answer

    platform = import_module("vllm.platforms").current_platform
    return _step_in(platform, "check_and_update_config", around)


def before_loading(prepare: Callable[[Any], None]) -> str | None:
    """Have something done in each worker before it loads a model: after ranks know each other, before graphs.

    Args:
        prepare: is given vLLM's configuration; what it raises stops vLLM.
    """

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Prepare, then load."""
        prepare(kwargs["vllm_config"] if "vllm_config" in kwargs else args[1])
        return original(*args, **kwargs)

    import_module("vllm.model_executor.model_loader")
    base = import_module("vllm.model_executor.model_loader.base_loader").BaseModelLoader
    # Some loaders have a way of their own, which need not lead through that of the base.
    own = [cls for cls in descendants(base) if "load_model" in vars(cls)]
    return next(filter(None, [_step_in(cls, "load_model", around) for cls in (base, *own)]), None)


def rank_group() -> Any | None:
    """Return the group of all ranks on CPU, or None where this worker is alone."""
    try:
        world = import_module("vllm.distributed").get_world_group()
    except (AttributeError, AssertionError):  # vLLM asserts that it is initialised
        return None
    return world.cpu_group if world is not None and world.world_size > 1 else None


def _step_in(owner: Any, name: str, around: Callable[..., Any]) -> str | None:
    """Put a function around one of vLLM's, once; return what is missing, or None."""
    original = getattr(owner, name, None)
    if original is None:
        return f"vLLM {version()} has no {name}"
    if getattr(original, _MARK, False):
        return None

    @functools.wraps(original)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        """Call what stands around it."""
        return around(original, *args, **kwargs)

    setattr(stepped, _MARK, True)
    setattr(owner, name, stepped)
    return None
