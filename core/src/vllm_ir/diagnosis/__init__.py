"""What is wrong with an installation, told in one report; and providers run where a crash is only the child's.

How a report looks is left to the command line; what it is made of comes from files until somebody asks for a probe.
"""

from __future__ import annotations
