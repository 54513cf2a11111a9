"""The conformance tests as pytest collects them: `pytest --pyargs vllm_ir_testkit --vllm-ir-provider=NAME`."""
