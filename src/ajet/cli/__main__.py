"""``python -m ajet.cli``."""

from ajet.cli import main

if __name__ == "__main__":
    main()
