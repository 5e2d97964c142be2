"""The tests of the lab, a package: test files here may have the names of those in tests/."""
