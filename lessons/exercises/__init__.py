"""Stubs of the exercises. Fill one in, then ask `python -m lessons.check 2` what is right."""
