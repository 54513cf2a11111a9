"""The way through a start: mode, providers, vLLM's own ops, and the places in vLLM where more is to happen."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import vllm_ir
from vllm_ir import runtime
from vllm_ir.log import logger

from vllm_ir_host_vllm import inside, logs, variables
from vllm_ir_host_vllm.adopting import adopt
from vllm_ir_host_vllm.errors import NothingToAdopt
from vllm_ir_host_vllm.report import Started
from vllm_ir_host_vllm.steps import Steps

if TYPE_CHECKING:
    from vllm_ir_host_vllm.variables import Mode


@functools.cache
def start() -> Started:
    """Bring vllm-ir into this process, the first time; what is raised is raised again by the next call.

    Raises:
        ConfigurationError: a variable or a list names what does not exist or cannot run.
    """
    logs.borrow()
    vllm_ops = inside.ir_ops()
    mode = choose(variables.wanted_mode(), available=vllm_ops is not None)
    state = runtime.current()
    with logs.without_summary():
        found = vllm_ir.load_providers()
    check_named(state)
    adoption = adopt(vllm_ops or {}, state) if mode == "adopt" else None
    done = Started(inside.version(), mode, vllm_ops or {}, adoption, "" if found is None else found.summary)
    steps = Steps(done, state, logs.Announcement(str(done)))
    steps.announcement.make()
    for missing in steps.take():
        logger.warning("%s: what it is needed for does not happen; tested with vLLM %s", missing, inside.TESTED)
    return done


def choose(wanted: Mode | None, *, available: bool) -> Mode:
    """Return the mode: the wanted one, or to adopt wherever vLLM has ops of its own.

    Args:
        wanted: by VLLM_IR_HOST_MODE.
        available: whether this vLLM has IR ops.

    Raises:
        NothingToAdopt: to adopt is wanted, and it has none.
    """
    if wanted == "adopt" and not available:
        raise NothingToAdopt(version=inside.version())
    return wanted or ("adopt" if available else "layers")


def check_named(state: runtime.Runtime) -> None:
    """Raise for the first name in a file or a variable that cannot run here, before vLLM loads anything.

    Raises:
        ConfigurationError: an op or a provider does not exist, or cannot run.
    """
    state.check_names()
    for op in state.registry:
        state.check(op, state.candidates(op))
