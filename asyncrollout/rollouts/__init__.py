"""The parts, wired together: envs, a policy, and a stream of groups for whoever awaits it."""
