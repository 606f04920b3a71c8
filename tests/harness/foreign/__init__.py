"""Submissions that are not built as this project's is, for the tests of what is said of them."""
