#!/usr/bin/env bash
# A limit of the process ends a program with exit code 5 and the limit's name, never by a signal: sizes of files,
# address space, processes and threads. The figure lists what was done and what was refused of each.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need prlimit "install util-linux"
need setpriv "install util-linux"
need python3 "install Python 3"
build finetune convert
scratch
# Another user runs a part of the trials.
chmod 755 "$scratch"
mkdir "$scratch/bin" "$scratch/work"
cp "$bin/finetune" "$bin/convert" "$scratch/bin"
read -r figure outcome < <(\
    PYTHONDONTWRITEBYTECODE=1 python3 "$root/scripts/claims/limits.py" "$scratch/bin" "$scratch/work")
verdict "$figure" "$outcome"
