"""The conformance suite: what a backend has to do, as tests that any backend can run.

Make a `Harness` for the backend, and name it in a conftest.py, with the plugin that collects the suite:

    from my_harness import MyHarness

    pytest_plugins = ["nl2state.testing.plugin"]
    nl2state_harness = MyHarness

docs/backends.md tells the rest. Each class is a promise, by its number in its docstring; each test is a sentence about
it. Expiries are made by moving the store's clock, never by sleeping, and races by calls that are seen to wait.
"""
