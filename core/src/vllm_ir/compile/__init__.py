"""Graphs: from ops to the implementations that run, behind torch.compile.

`backend` is what torch.compile calls, `plan` what a compilation goes by, `pipeline` the order of the stages:
`functionalization` before AOTAutograd, `passes` on the functional graph, `lowering` last, where `clones` and `aliases`
decide what may be written in place. Nothing here imports Inductor before a graph is compiled.
"""
