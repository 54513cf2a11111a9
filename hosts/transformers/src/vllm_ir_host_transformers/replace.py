"""`use_ir_ops` puts a model on IR ops, `restore` takes it off again.

Which places are an op's is known in `norms`, `residual`, `activations` and `rotary`; here they are asked in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from torch import nn
from vllm_ir import Unsupported

from vllm_ir_host_transformers import activations, donation, instance, norms, residual, rotary
from vllm_ir_host_transformers.edits import edited
from vllm_ir_host_transformers.errors import UnknownFusing
from vllm_ir_host_transformers.findings import Left, Replaced, Replacement

if TYPE_CHECKING:
    from vllm_ir_host_transformers.edits import Edit
    from vllm_ir_host_transformers.norms import Flavour

FUSED_OP: Final = "fused_add_rms_norm"


def use_ir_ops(model: Any, *, fuse_residual: bool | Literal["always"] = True) -> Replacement:
    """Put the norms, residual adds, gated activations and rotary embeddings of a model on IR ops.

    Only instances change, and only their `forward`: no parameter is copied, merged or renamed, and no other model
    in the process is affected. A second call starts anew, so it changes nothing unless its arguments differ. Call it
    before `torch.compile`.

    Args:
        model: a Transformers model, any module that contains one, or a pipeline that holds one.
        fuse_residual: True fuses a residual add with the norm behind it where that does not change a bit, which is
            in float32; "always" does so in bfloat16 and float16 too, where the op takes the variance of the sum before
            it is rounded and the model after, so that a greedy answer may change on a near tie; False never fuses.

    Returns:
        what was replaced and what was left, with reasons; as a context manager it restores the model at its end.

    Raises:
        NotAModel: what is given is no model and holds none.
        UnknownFusing: `fuse_residual` is none of True, False and "always".
    """
    given: object = fuse_residual
    if given not in (True, False, "always"):
        raise UnknownFusing(given=repr(given))
    module = instance.model_of(model)
    instance.clear(module)
    survey = _Survey(module, fuse_residual)
    survey.run()
    return Replacement(tuple(survey.replaced), tuple(survey.left), module)


def restore(model: Any) -> None:
    """Give every module of a model, or of a pipeline's, back the forward of its class; others stay as they are.

    Raises:
        NotAModel: what is given is no model and holds none.
    """
    instance.clear(instance.model_of(model))


class _Survey:
    """One walk over a model: who is asked, and what becomes of the answers."""

    def __init__(self, model: nn.Module, fuse: bool | Literal["always"]) -> None:
        self.replaced: list[Replaced] = []
        self.left: list[Left] = []
        self._model = model
        self._fuse = fuse
        self._flavours: dict[int, Flavour] = {}
        self._edits: dict[int, list[tuple[Edit, list[Replaced]]]] = {}
        self._fused: set[int] = set()

    def run(self) -> None:
        """Ask for every module, then put the forwards in place."""
        modules = list(self._model.named_modules())
        for name, module in modules:
            self._ask_norm(name, module)
        for name, module in modules:
            self._ask_residual(name, module)
            self._ask_activation(name, module)
            self._ask_rotary(name, module)
        for name, module in modules:
            self._install_norm(name, module)
            self._install_edits(name, module)
            self._install_stack(module)

    def _ask_norm(self, name: str, module: nn.Module) -> None:
        """Learn whether a module is an RMS norm."""
        found = norms.recognise(module)
        if isinstance(found, Unsupported):
            self._leave(name, module, "norm", found)
        elif found is not None:
            self._flavours[id(module)] = found

    def _ask_residual(self, name: str, module: nn.Module) -> None:
        """Learn which adds of a layer can be fused with a norm."""
        held = {attribute: child for attribute, child in module.named_children() if id(child) in self._flavours}
        if not held or not residual.is_layer(module):
            return
        found = self._fusable(module, held)
        if isinstance(found, Unsupported):
            self._leave(name, module, "residual", found)
            return
        flavours = {attribute: self._flavours[id(norm)] for attribute, norm in found.items()}
        edit = residual.edit(module, flavours, always=self._fuse == "always")
        places = [Replaced(_path(name, a), "residual", FUSED_OP, type(norm).__name__) for a, norm in found.items()]
        self._edits.setdefault(id(module), []).append((edit, places))
        self._fused.update(map(id, found.values()))

    def _fusable(self, module: nn.Module, held: dict[str, nn.Module]) -> dict[str, nn.Module] | Unsupported:
        """Return the norms of a layer whose add can be fused, by attribute, or why there are none."""
        if self._fuse is False:
            return Unsupported("fuse_residual is off")
        occupied = instance.occupied(module)
        if occupied is not None:
            return occupied
        found = residual.fusions(module)
        if isinstance(found, Unsupported):
            return found
        fused = {fusion.norm: held[fusion.norm] for fusion in found if fusion.norm in held}
        if not fused:
            return Unsupported("no add stands right before a norm in its forward")
        refusal = residual.rounds(module, always=self._fuse == "always")
        return fused if refusal is None else refusal

    def _ask_activation(self, name: str, module: nn.Module) -> None:
        """Learn whether a module gates by an activation."""
        found = activations.recognise(module)
        if found is not None and not isinstance(found, Unsupported):
            gate, edit = found
            place = Replaced(name, "activation", gate.op, type(module).__name__, activations.note(module, gate))
            self._want(module, edit, place)
        elif found is not None:
            self._leave(name, module, "activation", found)

    def _ask_rotary(self, name: str, module: nn.Module) -> None:
        """Learn whether a module rotates queries and keys."""
        found = rotary.recognise(module, self._embedding_above(name))
        if isinstance(found, Unsupported):
            self._leave(name, module, "rotary", found)
        elif found is not None:
            self._want(module, found, Replaced(name, "rotary", "rotary_embedding", type(module).__name__))

    def _want(self, module: nn.Module, edit: Edit, place: Replaced) -> None:
        """Note an edit to make, unless the module's forward is somebody else's."""
        occupied = instance.occupied(module)
        if occupied is None:
            self._edits.setdefault(id(module), []).append((edit, [place]))
        else:
            self._leave(place.name, module, place.kind, occupied)

    def _embedding_above(self, name: str) -> nn.Module | None:
        """Return the nearest `rotary_emb` at or above a path."""
        parts = name.split(".") if name else []
        for end in range(len(parts), -1, -1):
            above = self._model.get_submodule(".".join(parts[:end]))
            embedding = getattr(above, "rotary_emb", None)
            if isinstance(embedding, nn.Module):
                return embedding
        return None

    def _install_norm(self, name: str, module: nn.Module) -> None:
        """Put a norm's forward in place; one that an add is fused into needs it when a hook waits for it."""
        flavour = self._flavours.get(id(module))
        if flavour is None:
            return
        instance.put(module, norms.forward_of(flavour))
        if id(module) not in self._fused:
            self.replaced.append(Replaced(name, "norm", "rms_norm", type(module).__name__))

    def _install_edits(self, name: str, module: nn.Module) -> None:
        """Put a forward with all the edits of a module in place."""
        edits = self._edits.get(id(module))
        if not edits:
            return
        forward = edited(type(module).forward, tuple(edit for edit, _ in edits))
        for _, places in edits:
            for place in places:
                if isinstance(forward, Unsupported):
                    self._leave(place.name or name, module, place.kind, forward)
                else:
                    self.replaced.append(place)
        if not isinstance(forward, Unsupported):
            instance.put(module, forward)

    def _install_stack(self, module: nn.Module) -> None:
        """Let a stack of fused layers say when it runs, so that they may donate."""
        for attribute, child in module.named_children():
            fused = isinstance(child, nn.ModuleList) and len(child) and all(self._is_fused(layer) for layer in child)
            if fused and instance.occupied(module) is None and donation.forgets(module, attribute):
                instance.put(module, donation.forward_of(type(module).forward, attribute))

    def _is_fused(self, layer: nn.Module) -> bool:
        """Tell whether a residual add of a layer is fused."""
        return any(place.kind == "residual" for _, places in self._edits.get(id(layer), []) for place in places)

    def _leave(self, name: str, module: nn.Module, kind: str, why: Unsupported) -> None:
        """Record a place that was left."""
        self.left.append(Left(name, kind, type(module).__name__, why.reason))


def _path(name: str, attribute: str) -> str:
    """Return the path of a child."""
    return f"{name}.{attribute}" if name else attribute
