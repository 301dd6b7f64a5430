# shellcheck shell=bash
# Sourced by the scripts of this directory, not run: defines `with_packages`.

# with_packages PACKAGE==VERSION...: sets `python` to an interpreter that has these packages: the one that
# FINDINGS_PYTHON names, else one of a new environment in a temporary directory, which is removed at the end.
with_packages() {
    if [ -n "${FINDINGS_PYTHON:-}" ]; then
        python="$FINDINGS_PYTHON"
    else
        directory="$(mktemp -d)"
        trap 'rm -rf "$directory"' EXIT
        python3 -m venv "$directory"
        "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
        python="$directory/bin/python"
    fi
    "$python" - "$@" <<'PYTHON'
import sys
from importlib.metadata import version

for pinned in sys.argv[1:]:
    name, wanted = pinned.split("==")
    found = version(name).split("+")[0]
    print(f"{name} {found}")
    if found != wanted:
        sys.exit(f"{name} {wanted} is needed: unset FINDINGS_PYTHON to install it")
PYTHON
}
