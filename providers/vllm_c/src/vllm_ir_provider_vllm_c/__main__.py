"""`python -m vllm_ir_provider_vllm_c`: builds cubins ahead of time; the words are in `cli`."""

from __future__ import annotations

import sys

from vllm_ir_provider_vllm_c.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
