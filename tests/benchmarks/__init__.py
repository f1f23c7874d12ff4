"""What the library costs beside psycopg written by hand and beside its peers, and how long the dead delay others.

`make bench`, or `python -m tests.benchmarks --help`. docs/benchmarks.md says how to read it. Nothing here is a test.
"""
