"""The conformance suite: what a backend has to do, as tests that any backend can run.

Make a `Harness` for the backend, give it to pytest as a fixture named `harness`, and bind the classes:

    from nl2state.testing.leases import *

Each class is a promise, by its number in its docstring; each test is a sentence about it. Expiries are made by moving
the store's clock, never by sleeping, and races by calls that are seen to wait.
"""
