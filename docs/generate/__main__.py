"""Write everything that is generated: ``python -m docs.generate``; with ``--check`` only say what is stale (exit code 1)."""

from __future__ import annotations

import argparse
import sys

from docs.generate.build import stale, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        old = stale()
        print("\n".join(f"stale: {name}" for name in old) or "nothing is stale")
        sys.exit(bool(old))
    print("\n".join(write()) or "nothing changed")


if __name__ == "__main__":
    main()
