"""The command line of scripts that write one file of text as golden data: writes it, or with --check compares."""

import argparse
import sys
from importlib.metadata import version


def main(doc, pinned, out, make):
    """`pinned` are the packages with their versions, `out` is the file, `make()` its text."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file")
    arguments = parser.parse_args()
    for package, wanted in pinned.items():
        if version(package) != wanted:
            sys.exit(f"{package} {version(package)} is installed, golden data is of {wanted}")
    text = make()
    if not arguments.check:
        out.write_text(text, encoding="utf-8")
    elif out.read_text(encoding="utf-8") != text:
        sys.exit(f"{out} is not what is made now")
