"""`python -m asyncrollout` is the `asyncrollout` command."""

if __name__ == "__main__":  # a worker process runs this file again, and needs nothing of it
    import sys

    from asyncrollout.cli.app import main

    sys.exit(main())
