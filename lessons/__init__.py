"""The course. Lessons are read; what stands here are their programs."""

import signal
import sys

if sys.argv[0] == '-m':
    # Ctrl-C while `python -m lessons.NAME` loads torch needs no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
