"""Batches of environments as a service, in this process and over a network.

`batches.py` has the batch calls, `server.py` offers them over HTTP (`routes.py`), and envs one by one over a WebSocket
(`channel.py`, `sessions.py`) to the pools of other machines: `remote.py`.
"""
