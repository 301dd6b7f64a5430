"""Lines of Rust in every crate's src, at a commit and in the working tree, and the lengths of files.

Usage: size.py ROOT COMMIT

Prints a table on stderr, and on stdout `FIGURE ok|short`. Lines of src are counted without the development crate
cuda-emulator, which was part of the tests before. Lengths are of all Rust files.
"""

import subprocess
import sys
from pathlib import Path

MIN_SAVED, MAX_P90, MAX_LINES = 7000, 310, 500
TEST_CRATES = {"crates/cuda-emulator"}


def git(root, *arguments):
    return subprocess.run(["git", "-C", root, *arguments], check=True, stdout=subprocess.PIPE).stdout


def crate_of(path):
    """The crate whose src a path is in, or None."""
    crate, src, _ = path.partition("/src/")
    return crate if src and crate not in TEST_CRATES and "/tests" not in crate else None


def by_crate(lengths):
    """The sum of lines in src of every crate, of the lines of every path."""
    sums = {}
    for path, lines in lengths.items():
        crate = crate_of(path)
        if crate:
            sums[crate] = sums.get(crate, 0) + lines
    return sums


def p90(lengths):
    """The length that nine of ten files do not exceed."""
    lengths = sorted(lengths)
    return lengths[-(-9 * len(lengths) // 10) - 1]


def verdict(before, now):
    """The figure and its outcome, from the number of lines of every path."""
    saved = sum(by_crate(before).values()) - sum(by_crate(now).values())
    high, longest = p90(now.values()), max(now.values())
    outcome = "ok" if saved >= MIN_SAVED and high <= MAX_P90 and longest <= MAX_LINES else "short"
    return f"src:{-saved:+d},p90:{high},max:{longest}", outcome


def lengths_at(root, commit):
    """The lines of every Rust file of a commit."""
    found = git(root, "grep", "-c", "", commit, "--", "*.rs").decode()
    rows = (line.split(":", 1)[1].rsplit(":", 1) for line in found.splitlines())
    return {path: int(lines) for path, lines in rows}


def lengths_now(root):
    """The lines of every Rust file of the working tree that git does not ignore."""
    paths = git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.rs").decode().splitlines()
    return {path: (Path(root) / path).read_bytes().count(b"\n") for path in paths if (Path(root) / path).exists()}


def main(arguments):
    root, commit = arguments
    before, now = lengths_at(root, commit), lengths_now(root)
    old, new = by_crate(before), by_crate(now)
    for crate in sorted(old | new):
        print(f"{crate:22} {old.get(crate, 0):7} -> {new.get(crate, 0):7}", file=sys.stderr)
    print(f"{'all':22} {sum(old.values()):7} -> {sum(new.values()):7}", file=sys.stderr)
    for path, lines in sorted(now.items(), key=lambda item: -item[1]):
        if lines > MAX_LINES:
            print(f"{path}: {lines} lines", file=sys.stderr)
    print(*verdict(before, now))


if __name__ == "__main__":
    main(sys.argv[1:])
