"""The functions, in files of the same names as AITER's."""

from __future__ import annotations
