#!/usr/bin/env bash
# Usage: scripts/python_env.sh
#
# Makes, on first use, the Python environment with the pinned PyTorch that goldens and comparisons need, in the cache
# ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; about 6 GB, some minutes). Prints the path of its interpreter.
# Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') ;;
*) fail "python_env.sh $1" "it takes no arguments" "see scripts/python_env.sh --help" ;;
esac

# A change of these lines makes a new environment.
packages=(torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6 gguf==0.19.0
    accelerate==1.15.0)
key="$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c 1-8)"
final="$cache/python/$key"

if [ ! -e "$final/complete" ]; then
    need_pip
    lock_cache python
fi
if [ ! -e "$final/complete" ]; then
    note "installing ${packages[*]} into $final"
    log="$cache/python/$key.log"
    rm -rf "$final"
    # The environment has no pip of its own and the system's pip fills it: Debian's Python has venv, but not the part
    # of it that brings pip.
    if ! { python3 -m venv --without-pip "$final" &&
        python3 -m pip --python "$final/bin/python" install --quiet --disable-pip-version-check "${packages[@]}"; \
        } >"$log" 2>&1; then
        grep -iE 'error|could not|no space' "$log" | tail -n 3 | cut -c 1-200 >&2 || true
        rm -rf "$final"
        fail "cannot install PyTorch for comparisons into $final" "pip or venv failed (log: $log)" \
            "connect to the network, make sure 8 GB are free and pip is 22.3 or later, and run the same command again"
    fi
    touch "$final/complete"
fi
printf '%s\n' "$final/bin/python"
