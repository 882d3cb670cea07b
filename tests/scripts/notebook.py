"""Runs a program in a notebook's kernel, cell by cell, and prints what the cells print."""

import sys
from pathlib import Path

from jupyter_client.manager import start_new_kernel

START = "# The start, without a guard\n"


def main(program: Path) -> None:
    definitions, _, _ = program.read_text().partition(START)
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        for cell in (definitions, "await main()"):
            answer = client.execute_interactive(cell, output_hook=show, timeout=120)
            if answer["content"]["status"] != "ok":
                sys.exit("\n".join(answer["content"]["traceback"]))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


def show(message: dict[str, dict[str, str]]) -> None:
    print(message["content"].get("text", ""), end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
