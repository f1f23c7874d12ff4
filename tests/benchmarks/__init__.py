"""What the library costs beside psycopg written by hand, and how long a dead holder delays its successor.

`make bench`, or `python -m tests.benchmarks --help`. docs/benchmarks.md says how to read it. Nothing here is a test.
"""
