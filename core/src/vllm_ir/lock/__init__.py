"""A selection, pinned: which distributions, with which bytes, in which order for each op, on which platform.

`taking` reads it off this machine, `lock_file` and `document` keep it, `comparing` holds a machine against it,
`enforcement` does so when a process starts. What a difference looks like on a terminal is left to `cli`.
"""
