"""The files of docs/results: what each depends on, whether it is of today's sources, and how it is
made again.
"""
