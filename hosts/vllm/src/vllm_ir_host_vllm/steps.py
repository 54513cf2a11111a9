"""What happens after a start: when vLLM asks for defaults, has a configuration, or is about to load a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import vllm_ir
from vllm_ir import orders
from vllm_ir.log import logger
from vllm_ir.names import NATIVE

from vllm_ir_host_vllm import exporting, inside, lists, variables
from vllm_ir_host_vllm.additional import Carried
from vllm_ir_host_vllm.defaults import default_order
from vllm_ir_host_vllm.layers.forwards import Calls
from vllm_ir_host_vllm.layers.replacing import replace

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime

    from vllm_ir_host_vllm.layers.kinds import Kind
    from vllm_ir_host_vllm.logs import Announcement
    from vllm_ir_host_vllm.report import Started


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one process.

    Attributes:
        started: what was done at the start.
        state: of this process, with providers loaded.
        announcement: the line about the start.
        carried: the lists that vLLM's configuration brings.
    """

    started: Started
    state: Runtime
    announcement: Announcement
    carried: Carried = field(default_factory=Carried)

    def take(self) -> list[str]:
        """Have vLLM ask us where it can; return what this vLLM has no place for."""
        found = [inside.at_configuration(self.look)]
        if self.started.vllm_ops:
            found.append(inside.at_default_priorities(self.extend))
        found.append(inside.before_loading(self.prepare))
        if found[-1] is not None:
            self.replace_layers(compiling=False)
        return [each for each in found if each is not None]

    def extend(self, vllm_config: Any, found: Any) -> Any:
        """Check what the user of vLLM listed, and return its defaults with ours before them.

        Args:
            vllm_config: vLLM's configuration, with the lists of its user.
            found: the lists of its platform.

        Raises:
            ConfigurationError: a name does not exist or cannot run.
        """
        self.announcement.make()
        self.carried.take(vllm_config.additional_config)
        adoption, ops = self.started.adoption, self.started.vllm_ops
        lists.check(asdict(vllm_config.kernel_config.ir_op_priority), ops, self.state, adoption)
        if adoption is None:
            return found
        for name, given in asdict(found).items():
            if name in adoption.offered:
                op, usable = self.state.registry.get(name), adoption.adopted.get(name, ())
                order = default_order(op, given, usable, self.state, compiling=compiles(vllm_config))
                setattr(found, name, order)
        return found

    def look(self, vllm_config: Any) -> None:
        """Take what --additional-config says, so that a mistake in it stops the process that the user started.

        Raises:
            ConfigurationError: it cannot be read, or a name does not exist or cannot run.
        """
        self.announcement.make(last=True)
        self.carried.take(vllm_config.additional_config)

    def prepare(self, vllm_config: Any) -> None:
        """Make a worker ready for the model that it is about to load: layers, agreement of ranks, kernels, counts.

        Raises:
            ConfigurationError: as `look`; the worker got its configuration from another process.
            SelectionsDiffer: the ranks would not run the same kernels.
        """
        self.announcement.make(last=True)
        self.carried.take(vllm_config.additional_config)
        self.replace_layers(compiling=compiles(vllm_config))
        group = inside.rank_group()
        if group is not None:
            vllm_ir.verify_agreement(group)
        vllm_ir.warm_up()
        if self.state.counting:
            exporting.export()

    def replace_layers(self, *, compiling: bool) -> None:
        """Replace the layers that are to be for one model, and say which."""
        table, calls = inside.out_of_tree_layers(), Calls(self.inlined() if compiling else frozenset())
        done = replace(table, lambda kind: self.why_kept(kind, compiling=compiling), calls=calls)
        logger.info("%s", done.told(lambda op: self.lead(op, compiling=compiling)))

    def lead(self, op: str, *, compiling: bool) -> str:
        """Return the provider that is tried first for an op."""
        order = self.state.candidates(self.state.registry.get(op), compiling=compiling)
        return next(iter(orders.reachable(order)), NATIVE)

    def inlined(self) -> frozenset[str]:
        """Return the ops that native runs in every compiled graph; none where results must not depend on the batch."""
        if self.state.policy.batch_invariant:
            return frozenset()
        orders_of = {op.name: self.state.candidates(op, compiling=True) for op in self.state.registry}
        return frozenset(name for name, order in orders_of.items() if orders.reachable(order)[:1] == [NATIVE])

    def why_kept(self, kind: Kind, *, compiling: bool) -> str | None:
        """Return why vLLM's own layer is kept, or None where ours is to stand in for it.

        Args:
            kind: the layer.
            compiling: whether Inductor compiles.
        """
        adoption = self.started.adoption
        if adoption is not None and set(kind.ops) <= set(adoption.offered):
            return "vLLM's own op serves it"
        orders_of = [self.state.candidates(self.state.registry.get(name), compiling=compiling) for name in kind.ops]
        if any(each.entry.required for order in orders_of for each in order):
            return None
        named = " and ".join(kind.ops)
        if kind.otherwise:
            return f"{kind.otherwise}; a list for {named} replaces it"
        if variables.wanted_mode() == "layers":
            return None
        if any(orders.reachable(order)[:1] != [NATIVE] for order in orders_of):
            return None
        return f"{NATIVE} leads for {named}{' when Inductor compiles' if compiling else ''}"


def compiles(vllm_config: Any) -> bool:
    """Return whether Inductor compiles the model."""
    how = vllm_config.compilation_config
    return how.backend == "inductor" and bool(how.mode)
