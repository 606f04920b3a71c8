"""The generated tables of README and docs, from docs/results; their picture and their prose."""
