"""The command line `vllm-ir`: words and columns, and the only room that prints.

What it shows is found out by `plugins`, `priority`, `platforms` and, live, by `runtime`; no rule lives here.
"""
