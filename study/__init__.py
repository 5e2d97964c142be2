"""The study: the replication of two papers, from the runs to the rows, the tables and the reports."""
