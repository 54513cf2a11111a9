"""Priorities given to vLLM as `--additional-config '{"vllm_ir": {"ir_op_priority": {...}}}'`.

vLLM carries them to every process in its configuration; what is said there counts like a `KernelConfig` of vllm-ir.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import IrOpPriorityConfig
from vllm_ir.errors import MalformedPriority, did_you_mean, listed

from vllm_ir_host_vllm.errors import MalformedAdditionalConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY: Final = "vllm_ir"
LISTS: Final = "ir_op_priority"


def read(additional: Any) -> dict[str, str | Sequence[str]]:
    """Return the provider names by op of an additional configuration; none where it says nothing about vllm-ir.

    Args:
        additional: vLLM's `additional_config`, a dict or an object of somebody else's.

    Raises:
        MalformedAdditionalConfig: a key is unknown, or the lists are none.
    """
    said = additional.get(KEY) if isinstance(additional, Mapping) else None
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        raise MalformedAdditionalConfig(given=repr(said), problem="wanted an object")
    for key in said:
        if key != LISTS:
            problem = f"there is no key {key!r} (there are: {listed([LISTS])}).{did_you_mean(str(key), [LISTS])}"
            raise MalformedAdditionalConfig(given=repr(said), problem=problem.rstrip("."))
    lists = said.get(LISTS, {})
    if not isinstance(lists, Mapping):
        raise MalformedAdditionalConfig(given=repr(said), problem=f"{LISTS} is no object from ops to providers")
    return dict(lists)


class Carried:
    """The lists that the last additional configuration of this process brought, and that hold in it."""

    def __init__(self) -> None:
        self._lists: dict[str, str | Sequence[str]] = {}

    def take(self, additional: Any) -> None:
        """Set what an additional configuration says for the whole process, in place of what an earlier one said.

        One that says nothing changes nothing, so that a program may have a `KernelConfig` of its own.

        Raises:
            MalformedAdditionalConfig: it cannot be read.
            ConfigurationError: an op or a provider does not exist, or cannot run here.
        """
        lists = read(additional)
        if lists == self._lists:
            return
        try:
            config = IrOpPriorityConfig(lists)
        except MalformedPriority as error:
            raise MalformedAdditionalConfig(given=repr(lists), problem=error.reason) from error
        config.apply()
        self._lists = lists
