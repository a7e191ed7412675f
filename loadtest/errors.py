"""What the harness itself raises. A failing request is no error here: it is a measurement.

LoadtestError
├── UsageError     wrong arguments or files; names the argument (exit status 2)
└── TargetError    the server cannot be measured at all (exit status 1)
"""

from __future__ import annotations


class LoadtestError(Exception):
    """Root of the tree."""


class UsageError(LoadtestError):
    """Wrong arguments, or a file that is not what it should be."""


class TargetError(LoadtestError):
    """No answer that could be measured, before the run began."""
