"""The study: two papers replicated, from the runs to the rows, the tables and the reports."""
