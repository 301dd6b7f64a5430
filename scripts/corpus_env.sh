#!/usr/bin/env bash
# Usage: scripts/corpus_env.sh
#
# Makes, on first use, a directory with the pinned packages that token files and records are compared with:
# megatron-core and tfrecord, for the interpreter of scripts/python_env.sh, in the cache ($BMTRAIN_CACHE, by default
# ~/.cache/bmtrain; 12 MB). Prints its path, for PYTHONPATH. Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') ;;
*) fail "corpus_env.sh $1" "it takes no arguments" "see scripts/corpus_env.sh --help" ;;
esac

# A change of these lines makes a new directory. What the first two need besides is in the environment.
packages=(megatron-core==0.16.1 tfrecord==1.14.6 protobuf==6.33.5 crc32c==2.8)
key="$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c 1-8)"
final="$cache/corpus-env/$key"

if [ ! -e "$final/complete" ]; then
    need_pip
    lock_cache corpus-env
fi
if [ ! -e "$final/complete" ]; then
    note "installing ${packages[*]} into $final"
    log="$cache/corpus-env/$key.log"
    rm -rf "$final"
    if ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$final" "${packages[@]}" \
        >"$log" 2>&1; then
        grep -iE 'error|could not|no space' "$log" | tail -n 3 | cut -c 1-200 >&2 || true
        rm -rf "$final"
        fail "cannot install megatron-core for comparisons into $final" "pip failed (log: $log)" \
            "connect to the network, and run the same command again; megatron-core needs Python 3.10 or later"
    fi
    touch "$final/complete"
fi
printf '%s\n' "$final"
