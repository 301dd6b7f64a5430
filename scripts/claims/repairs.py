"""Runs the tests that docs/claims.md lists under "The tests of `repairs`", each by its exact name.

usage: repairs.py ROOT

A line `cargo test ARGUMENTS` in backticks names a test target; the list items below it name tests of that target, each
in backticks. Prints how many of the listed tests passed, as `PASSED/LISTED`; the output of cargo goes to standard
error. A test that is listed and does not run, because it was renamed or is ignored, counts as failed.
"""

import re
import subprocess
import sys
from pathlib import Path

HEADING = "### The tests of `repairs`"
TARGET = re.compile(r"^`cargo test ([^`]+)`")
TEST = re.compile(r"^- `([^`]+)`")
PASSED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. ok$", re.MULTILINE)


def listed(text):
    """The targets under the heading, in order, each as (arguments of cargo test, names of tests)."""
    targets, inside = [], False
    for line in text.splitlines():
        if line.startswith("#"):
            inside = line == HEADING
        elif inside and (target := TARGET.match(line)):
            targets.append((target.group(1).split(), []))
        elif inside and targets and (test := TEST.match(line)):
            targets[-1][1].append(test.group(1))
    return targets


def passed(output, names):
    """The `names` that a run of cargo test reports as passed."""
    ok = set(PASSED.findall(output))
    return [name for name in names if name in ok]


def run(root, arguments, names):
    """Run the tests `names` of a target; the ones that passed."""
    command = ["cargo", "test", "--locked", "--no-fail-fast", *arguments, "--", "--exact", *names]
    ended = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(ended.stdout)
    return passed(ended.stdout, names)


def main(root):
    targets = listed((Path(root) / "docs" / "claims.md").read_text())
    good = total = 0
    for arguments, names in targets:
        done = run(root, arguments, names)
        for name in sorted(set(names) - set(done)):
            print(f"not passed: {' '.join(arguments)}: {name}", file=sys.stderr)
        good, total = good + len(done), total + len(names)
    print(f"{good}/{total}")


if __name__ == "__main__":
    main(sys.argv[1])
