"""The command ``targetopt``. What it needs beyond the core comes with ``targetopt[bench]``."""

import sys


def main() -> None:
    """Run the command line; a missing extra is named with the way to get it."""
    try:
        from targetopt.paper.commands import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "targetopt":
            raise
        print(
            f"The command line needs the package {error.name!r}, which is not installed:\n"
            "    pip install 'targetopt[bench]'",
            file=sys.stderr,
        )
        sys.exit(1)
    app()


if __name__ == "__main__":
    main()
