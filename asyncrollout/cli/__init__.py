"""The command line: `app.py` has the list of commands and how each of them ends, the other modules are the commands."""
