"""The demo: a webhook inbox, whose worker processes are killed and stopped while they work.

`worker.py` is the example to read. `inbox.py` sends it deliveries and harms it, by the script in `faults.py`;
`check.py` then compares what is stored with the input. `without.py` does the same work as it is often done today.
"""
