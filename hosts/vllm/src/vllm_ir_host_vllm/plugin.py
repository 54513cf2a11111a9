"""What vLLM calls, and nothing else: it is imported in every process, also where it is switched off.

An exception inside the function stops vLLM; one while this module is imported would only be logged, so that nothing
that may fail is imported here.
"""

from __future__ import annotations


def register() -> None:
    """Bring vllm-ir into this process, once; every further call changes nothing.

    Raises:
        ConfigurationError: a variable cannot be read, or a provider that somebody named cannot run.
    """
    from vllm_ir_host_vllm import inside, variables

    variables.enter(inside.variables())
    if variables.switched_on():
        from vllm_ir_host_vllm.starting import start

        start()
