"""`python -m vllm_ir`: the command line, for an environment whose scripts are not on the search path."""

from __future__ import annotations

import sys

from vllm_ir.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
