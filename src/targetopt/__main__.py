"""``python -m targetopt`` is the command ``targetopt``."""

from targetopt.cli import main

if __name__ == "__main__":
    main()
