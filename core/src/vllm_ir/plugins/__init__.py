"""Distributions that bring providers: what they say about themselves, whether they may load, and how they fail.

`static` answers from files alone, without importing a provider; `discovery` loads. What an op means is left to `ops`,
the order of candidates to `priority`.
"""
