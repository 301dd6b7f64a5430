#!/usr/bin/env bash
# The whole repository uses the terms of the field: the findings of scripts/words.py, which must be 0, while a planted
# paraphrase is found. The figure is findings, and whether the planted one was found.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need git "install git"
need python3 "install Python 3, on Debian: apt-get install python3"
scratch
findings="$({ python3 "$root/scripts/words.py" || true; } | tee /dev/stderr |
    sed -n 's/^\([0-9]*\) findings\{0,1\}$/\1/p')"
git -C "$scratch" init --quiet
printf 'The %s of a model.\n' "fol""der" >"$scratch/planted.md"
planted=missed
if { python3 "$root/scripts/words.py" "$scratch/planted.md" || true; } | grep -q 'planted.md:1:'; then planted=found; fi
figure="${findings:-none}_findings,planted:$planted"
if [ "$findings" = 0 ] && [ "$planted" = found ]; then verdict "$figure" ok; else verdict "$figure" short; fi
