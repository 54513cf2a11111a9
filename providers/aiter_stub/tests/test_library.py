"""AITER is imported at a first call; what it does to the process then becomes an error that names the cause."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from vllm_ir_provider_aiter import calls, library
from vllm_ir_provider_aiter.errors import CannotBuild, CannotImport, WrongTokens
from vllm_ir_provider_aiter.symbols import READ

if TYPE_CHECKING:
    from providers.aiter_stub.tests.conftest import Site

X = torch.ones(2, 64, dtype=torch.bfloat16)


def test_a_call_imports_aiter_and_nothing_before_it_does(site: Site) -> None:
    """Declarations are made without it."""
    from vllm_ir_provider_aiter import kernels

    assert all(each.supported is True for each in kernels.implementations())
    assert site.package.is_dir()
    assert "aiter" not in sys.modules
    calls.rms_norm(X, X[0], 1e-6)
    assert "aiter" in sys.modules


@pytest.mark.parametrize(
    ("planted", "cause"),
    [
        ("raise ImportError('libamdhip64.so.7: cannot open')", "ImportError: libamdhip64.so.7: cannot open"),
        ("raise KeyError('gfx000')", "KeyError: 'gfx000'"),
        ("raise SystemExit('no compiler')", "SystemExit: no compiler"),
        ("import asyncio.no_such_thing", "ModuleNotFoundError: No module named 'asyncio.no_such_thing'"),
    ],
)
def test_an_import_that_fails_is_told_with_its_cause(site: Site, planted: str, cause: str) -> None:
    """Whatever it raises; it is tried again at the next call, since somebody may have mended it."""
    init = site.package / "__init__.py"
    text = init.read_text(encoding="utf-8")
    init.write_text(text + planted + "\n", encoding="utf-8")
    with pytest.raises(CannotImport) as caught:
        calls.rms_norm(X, X[0], 1e-6)
    assert str(caught.value) == (
        f"Provider 'aiter' cannot import rmsnorm2d_fwd from amd-aiter {READ}: {cause}."
        " Mend that installation, or deny the provider: VLLM_IR_PROVIDERS_DISABLED=aiter."
    )
    assert caught.value.__cause__ is not None


def test_a_function_that_the_sources_have_and_the_package_does_not_export(site: Site) -> None:
    """The sources promised it, the module does not keep it."""
    site.change("__init__.py", "from .ops.activation import silu_and_mul\n", "")
    with pytest.raises(CannotImport, match="cannot import silu_and_mul from amd-aiter"):
        calls.silu_and_mul(X)


def test_a_build_that_fails_does_not_end_the_process(site: Site) -> None:
    """AITER raises SystemExit where its compiler fails; a server would be gone without a word."""
    text = (
        "    try:\n        raise RuntimeError('hipcc: not found')\n    except RuntimeError as error:\n"
        "        raise SystemExit('[aiter] build [module_activation] failed') from error\n"
    )
    site.change("ops/activation.py", '    plain("silu_and_mul"', text + '    plain("silu_and_mul"')
    with pytest.raises(CannotBuild) as caught:
        calls.silu_and_mul(X)
    assert str(caught.value) == (
        f"amd-aiter {READ} cannot build what its silu_and_mul needs: SystemExit: [aiter] build [module_activation]"
        " failed (from RuntimeError: hipcc: not found). The compiler's output is above; ROCm's compiler has to be"
        " installed, and AITER's folder writable (AITER_JIT_DIR names another). Until then deny the provider:"
        " VLLM_IR_PROVIDERS_DISABLED=aiter."
    )


def test_an_error_inside_a_kernel_goes_through(site: Site) -> None:
    """It is AITER's own, untouched."""
    assert site.package.is_dir()
    with pytest.raises(AssertionError, match="AITER cannot be given this: dtypes"):
        library.call("silu_and_mul", X[:, :32].float(), X)


@pytest.mark.parametrize(
    "error",
    [
        CannotImport(function="f", version="1", cause="c"),
        CannotBuild(function="f", version="1", cause="c"),
        WrongTokens(op="rotary_embedding", parameter="key", got=3, wanted="4, as there are positions"),
    ],
)
def test_errors_cross_processes(error: Exception) -> None:
    """A worker reports them by pickling, facts included."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is type(error)
    assert str(again) == str(error)
    facts = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    assert facts
    assert {name: getattr(again, name) for name in facts} == facts
