"""The library beside three published ones that do the same kind of work, each in a process of its own.

`make bench ARGS=--peers`. docs/benchmarks.md says what is compared with what.

The peers have an environment of their own, which has nothing of ours. What runs there is worker.py, lane.py and a
side_*.py, with rounds.py and sides.py of the folder above, so that the same code times both sides: beside the peer
itself, the standard library must be enough for all of them.
"""
