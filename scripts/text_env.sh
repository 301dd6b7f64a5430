#!/usr/bin/env bash
# Usage: scripts/text_env.sh
#
# Makes, on first use, the Python environment with the pinned packages that comparisons of cleaning, sentences and
# vocabularies need, in the cache ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; 300 MB, a minute). Prints the path of
# its interpreter. Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') ;;
*) fail "text_env.sh $1" "it takes no arguments" "see scripts/text_env.sh --help" ;;
esac

# A change of these lines makes a new environment.
packages=(datasketch==2.0.0 ftfy==6.3.1 nltk==3.10.4 sentencepiece==0.2.3)
key="$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c 1-8)"
final="$cache/text/$key"

if [ ! -e "$final/complete" ]; then
    need_pip
    lock_cache text
fi
if [ ! -e "$final/complete" ]; then
    note "installing ${packages[*]} into $final"
    log="$cache/text/$key.log"
    rm -rf "$final"
    if ! { python3 -m venv --without-pip "$final" &&
        python3 -m pip --python "$final/bin/python" install --quiet --disable-pip-version-check "${packages[@]}"; \
        } >"$log" 2>&1; then
        grep -iE 'error|could not|no space' "$log" | tail -n 3 | cut -c 1-200 >&2 || true
        rm -rf "$final"
        fail "cannot install the packages for comparisons of texts into $final" "pip or venv failed (log: $log)" \
            "connect to the network, make sure 1 GB is free and pip is 22.3 or later, and run the same command again"
    fi
    touch "$final/complete"
fi
printf '%s\n' "$final/bin/python"
