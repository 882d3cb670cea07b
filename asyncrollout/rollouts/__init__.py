"""The parts, wired together: envs, a policy, and a stream of groups for the trainer that awaits it."""
