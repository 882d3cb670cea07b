"""The client of OpenAI-compatible servers: `policy.py` is the policy, the other modules are its parts."""
