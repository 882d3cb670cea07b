"""Runs in a browser, while they go on and after."""
