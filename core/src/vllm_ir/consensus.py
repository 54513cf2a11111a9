"""Whether processes agree on which kernels run: a digest of what this one selects, and a check across ranks.

Ranks that run different kernels give different answers, or wait for each other for ever; nothing else says so.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from vllm_ir import fingerprint, runtime
from vllm_ir.errors import NotDistributed, SelectionsDiffer
from vllm_ir.plugins import discovery
from vllm_ir.plugins.walk import normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.distributed import ProcessGroup

    from vllm_ir.dispatch import Candidate
    from vllm_ir.op import IrOp

MODES: Final = {False: "eager", True: "compiling"}
"""What an order is for, by whether Inductor compiles."""

ABSENT: Final = "nothing"
"""What a rank has for an entry that only others have."""

FAILED: Final = "selecting"
"""The entry of a rank that cannot tell what it selects."""

_SHORT: Final = 12


def selection_entries() -> dict[str, str]:
    """Return what this process selects, by entry: a text that is the same wherever the same kernels run.

    There is an entry for each op and mode (the providers that may be reached, in order, each with the digest of its
    implementation), for the core, for batch invariance and strict mode, and for each distribution with its version.
    Paths and devices take no part. Orders are those of the current context, open scopes included.

    Raises:
        ConfigurationError: a layer names what does not exist or cannot run.
    """
    state = runtime.current()
    found = discovery.load_providers()
    told = state.environment
    core = fingerprint.distribution_digest("vllm-ir")[:_SHORT]
    entries = {"batch invariance": _switch(on=told.batch_invariant), "strict mode": _switch(on=told.strict)}
    for record in found.distributions if found else ():
        failure = f", {record.failure.kind}" if record.failure else ""
        digest = f"@{core}" if normalise(record.name) == "vllm-ir" else ""
        entries[f"distribution {record.name}"] = f"{record.version}{digest}{failure}"
    with state.lock:
        state.check_names()
        for op in state.registry:
            for compiling, mode in MODES.items():
                entries[f"op {op.name}, {mode}"] = _order(op, compiling=compiling)
    return entries


def selection_digest() -> str:
    """Return the digest of what this process selects, in hex: processes with the same one run the same kernels.

    Raises:
        ConfigurationError: a layer names what does not exist or cannot run.
    """
    return digest(selection_entries())


def digest(entries: Mapping[str, str]) -> str:
    """Return the digest of entries, in hex."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def verify_agreement(group: ProcessGroup | None = None) -> None:
    """Raise on every rank of a group unless all of them select the same kernels; each has to call it.

    A rank that cannot tell what it selects, since its configuration is wrong, takes part all the same, so that the
    others hear of it in place of waiting.

    Args:
        group: of `torch.distributed`; all ranks when None. One that this process is not in is none of its business.

    Raises:
        NotDistributed: torch.distributed is not initialised in this process.
        SelectionsDiffer: ranks differ; names every entry in which they do, and who has what.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise NotDistributed(wanted="verify_agreement")
    if dist.get_rank(group) < 0:
        return
    cause: Exception | None = None
    try:
        mine = selection_entries()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks would wait for this one
        mine, cause = {FAILED: f"{type(error).__name__}: {error}"}, error
    gathered = _gather(mine, group)
    differences = compare(gathered)
    if differences:
        raise SelectionsDiffer(ranks=len(gathered), differences=differences) from cause


def _gather(mine: Mapping[str, str], group: ProcessGroup | None) -> list[dict[str, str]]:
    """Return the entries of each rank, rank 0 first.

    They travel as JSON in uint8 tensors: torch's `all_gather_object` needs numpy, which an installation may not have.
    """
    import torch
    import torch.distributed as dist

    device, ranks = _device(dist.get_backend_config(group)), dist.get_world_size(group)
    text = json.dumps(mine).encode()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(text)], dtype=torch.int64, device=device), group=group)
    lengths = [int(size) for size in sizes]
    longest = max(lengths)  # every rank sends as much, since that is what a gather takes
    sent = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8).to(device)
    texts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(ranks)]
    dist.all_gather(texts, sent, group=group)
    return [json.loads(bytes(each.tolist())[:length]) for each, length in zip(texts, lengths, strict=True)]


def _device(backends: str) -> str:
    """Return the device type whose tensors a group can send: the CPU where it can, else the first, on which ranks run.

    Args:
        backends: as torch.distributed writes a group's, such as "cpu:gloo,cuda:nccl".
    """
    types = [each.partition(":")[0] for each in backends.split(",")]
    return "cpu" if "cpu" in types else types[0]


def compare(gathered: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return every entry in which ranks differ, with who has what in words; entries that nobody could tell differ, too.

    Args:
        gathered: the entries of each rank, rank 0 first.
    """
    able = [rank for rank, entries in enumerate(gathered) if FAILED not in entries]
    found = [
        (FAILED, f"rank {rank} cannot tell ({entries[FAILED].rstrip('.')})")
        for rank, entries in enumerate(gathered)
        if FAILED in entries
    ]
    for name in sorted({name for rank in able for name in gathered[rank]}):
        holders: dict[str, list[int]] = {}
        for rank in able:
            holders.setdefault(gathered[rank].get(name, ABSENT), []).append(rank)
        if len(holders) > 1:
            found.append((name, "; ".join(f"{_ranks(ranks)} {text}" for text, ranks in holders.items())))
    return tuple(found)


def _ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words: "rank 3 has", "ranks 0 to 2 have", "ranks 0, 2 have"."""
    first, last = ranks[0], ranks[-1]
    if first == last:
        return f"rank {first} has"
    run = last - first + 1 == len(ranks) > 2  # noqa: PLR2004 - two are named one by one
    return f"ranks {f'{first} to {last}' if run else ', '.join(map(str, ranks))} have"


def _switch(*, on: bool) -> str:
    """Return a switch in words."""
    return "on" if on else "off"


def _order(op: IrOp, *, compiling: bool) -> str:
    """Return what of an op's order may be reached, each provider with the digest of its implementation."""
    state = runtime.current()
    candidates = state.candidates(op, state.current_wishes(op), compiling=compiling)
    state.check(op, candidates)
    return ", ".join(_reached(candidates)) or ABSENT


def _reached(candidates: Iterable[Candidate]) -> Iterable[str]:
    """Give what may be reached: usable candidates up to the first that takes every call."""
    for candidate in candidates:
        if candidate.impl is None or candidate.refusal is not None:
            continue
        named = " (named)" if candidate.entry.required else ""
        yield f"{candidate.entry.provider}@{fingerprint.implementation_digest(candidate.impl)[:_SHORT]}{named}"
        if candidate.unconditional:
            break
