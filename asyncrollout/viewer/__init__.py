"""Runs in a browser, live and finished."""
