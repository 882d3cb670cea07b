"""Envs on ranked processes, each played and filmed at its own pace, and what comes of it."""
