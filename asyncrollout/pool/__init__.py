"""Many environments on few processes.

`pool.py` is the pool, `handle.py` one env as its user sees it, `hosted.py` one env where it lives;
`process.py` and `worker.py` are the two ends of a worker process, `inline.py` the event loop's own thread.
This file imports nothing, so that a worker loads only its own end.
"""
