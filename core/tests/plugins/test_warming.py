"""Warming up: everything is done that a later call must not wait for, and a failure is a value and a warning."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import errors, ops, plugins, warm_up  # noqa: E402 - after the check for torch
from vllm_ir.isolation import isolated  # noqa: E402

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime

    from core.tests.plugins.conftest import Site

WARMS = """
from vllm_ir import hookimpl
SEEN = []

@hookimpl
def vllm_ir_implementations(platform):
    from vllm_ir_provider_fake import kernels
    return [kernels.rms_norm]

@hookimpl
def vllm_ir_warm_up(platform, device, dtypes):
    SEEN.append((platform.name, device, dtypes))
    {body}
"""


def test_each_provider_is_told_where_and_for_what(site: Site, discovering: Runtime) -> None:
    """The hook gets the platform, a torch device and the dtypes; the answer says whom it was and how long it took."""
    site.provider(hooks=WARMS.format(body="return None"))
    (first,) = [each for each in warm_up("cpu", [torch.bfloat16]) if each.distribution == "vllm-ir-provider-fake"]
    assert (first.failure, first.seconds >= 0) == (None, True)
    warm_up()
    from vllm_ir_provider_fake import hooks  # type: ignore[import-not-found]

    platform = discovering.platform.name
    assert [(platform, torch.device("cpu"), (torch.bfloat16,)), (platform, None, ())] == hooks.SEEN


def test_every_op_is_connected(site: Site, discovering: Runtime) -> None:
    """The first call after it discovers nothing and makes no chain."""
    del site
    warm_up()
    assert all(discovering.board(op).warmed for op in discovering.registry)
    assert ops.rms_norm.name in discovering.registry


@pytest.mark.usefixtures("discovering")
@pytest.mark.parametrize(
    ("body", "said"),
    [("raise OSError('no cubin')", "warm-up raised OSError: no cubin"), ("return 3", "returned int 3, wanted nothing")],
)
def test_a_provider_that_fails_is_a_warning(site: Site, body: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """The others are warmed up, and the failure carries its traceback."""
    site.provider(hooks=WARMS.format(body=body))
    with caplog.at_level(logging.WARNING, logger="vllm_ir"):
        (failed,) = [each for each in warm_up() if each.failure]
    assert failed.failure is not None
    assert failed.failure.kind == "failed warm-up"
    assert said in failed.failure.reason
    assert said in caplog.text


@pytest.mark.usefixtures("discovering")
def test_strict_mode_raises(site: Site) -> None:
    """An operator who wants a hard stop gets it before the first request."""
    site.provider(hooks=WARMS.format(body="raise OSError('no cubin')"))
    with (
        isolated({"VLLM_IR_STRICT": "1"}, loader=plugins.load_providers),
        pytest.raises(errors.WarmUpFailed, match="vllm-ir-provider-fake: warm-up raised OSError: no cubin") as caught,
    ):
        warm_up()
    assert isinstance(caught.value.__cause__, OSError)


def test_a_wrong_priority_is_found_here(site: Site) -> None:
    """And not at the first request."""
    del site
    with (
        isolated({"VLLM_IR_OP_PRIORITY": "rms_norm=absent"}, loader=plugins.load_providers),
        pytest.raises(errors.UnknownProvider),
    ):
        warm_up()
