"""`python -m asyncrollout` is the `asyncrollout` command."""

if __name__ == "__main__":
    import sys

    try:
        from asyncrollout.cli.app import main
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())
