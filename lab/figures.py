"""The old name of lab.plot, until bench.py, crystallise.py and the lessons use the new one."""

from lab.plot import COLORS, pyplot, save  # noqa: F401
