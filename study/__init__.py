"""The study: two papers replicated, from the runs to the rows, the tables and the reports."""

import signal
import sys

if sys.argv[0] == '-m':
    # Ctrl-C while `python -m study.NAME` loads torch needs no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)
