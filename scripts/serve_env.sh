#!/usr/bin/env bash
# Usage: scripts/serve_env.sh
#
# Makes, on first use, a directory with the pinned clients of OpenAI's API, lm-eval and jsonschema, which claims of
# `serve` use beside the environment of python_env.sh, in the cache ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; about
# 500 MB). Prints its path, for PYTHONPATH. Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"
python="$("$root/scripts/python_env.sh")"

# A change of this line makes a new directory.
packages=(openai==3.57.0 "lm-eval[api]==0.4.13" jsonschema==4.26.0 rfc3339-validator==0.1.4)
key="$(key_of "$python" "${packages[@]}")"
# What python_env.sh has is pinned there: PYTHONPATH comes before it, and has the same versions.
install_packages() {
    "$python" -c 'from importlib.metadata import distributions
for found in distributions():
    print(f"{found.name}=={found.version}")' >"$cache/serve/constraints.txt" &&
        python3 -m pip --python "$python" install --quiet --disable-pip-version-check --target "$final" \
            --constraint "$cache/serve/constraints.txt" "${packages[@]}"
}
install_once serve "openai and lm-eval" "make sure 4 GB are free and pip is 22.3 or later" install_packages
printf '%s\n' "$final"
