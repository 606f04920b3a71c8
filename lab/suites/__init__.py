"""Test suites of other projects, run by pytest under the software B200.

rows.py     what is known of a test that was run, and the files that hold it
own.py      tests that fail for a reason of their own
worker.py   a plugin of pytest: takes tests from a list that processes share
share.py    that list, and what is done with it
draw.py     which tests of a suite are run
study.py    starts the processes, and outlives them
"""
