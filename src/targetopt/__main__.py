"""``python -m targetopt`` is the command ``targetopt``."""

from targetopt.lab.cli.main import main

if __name__ == "__main__":
    main()
