"""Many environments on few processes.

`pool.py` is the pool, `handle.py` one env as its user sees it, `worker/env_runner.py` one env where it lives;
`process/` and `worker/` are the two ends of a worker process, `wire/` is what both speak, and `inline_host.py` is the
event loop's own thread. This file imports nothing, so that a worker loads only its own end.
"""
