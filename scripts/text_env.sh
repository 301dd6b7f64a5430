#!/usr/bin/env bash
# Usage: scripts/text_env.sh
#
# Makes, on first use, the Python environment with the pinned packages that comparisons of cleaning, sentences and
# vocabularies need, in the cache ($BMTRAIN_CACHE, by default ~/.cache/bmtrain; 300 MB, a minute). Prints the path of
# its interpreter. Neither the library nor its tests need it.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"

# A change of these lines makes a new environment.
packages=(datasketch==2.0.0 ftfy==6.3.1 nltk==3.10.4 sentencepiece==0.2.3)
key="$(key_of "${packages[@]}")"
install_once text "the packages for comparisons of texts" "make sure 1 GB is free and pip is 22.3 or later" \
    fill_environment
printf '%s\n' "$final/bin/python"
