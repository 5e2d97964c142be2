"""The lab: what the trial of the two papers needs, and the page beside it (model.py, train.py, ...) can do without."""
