"""STUB until the page's own lands."""

from configurator import (Process, choose_device, choose_dtype, machine, this_process,  # noqa
                          to_device)
