#!/usr/bin/env bash
# Fields of tokenizer_config.json and of sentence-transformers' files: of the pinned packages every field is listed, and
# each is used, without effect for a stated reason, or refused. The figure is the fields that are none of these / all,
# of tokenizers and of sentence encoders.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
scratch
python3 -m pip install --quiet --disable-pip-version-check --target "$scratch/packages" \
    transformers==5.23.0 tokenizers==0.23.3 >&2
python3 -m pip install --quiet --disable-pip-version-check --target "$scratch/packages" --no-deps \
    sentence-transformers==6.2.0 >&2
PYTHONPATH="$scratch/packages" python3 "$root/scripts/claims/fields.py" "$scratch/lists"
export BMTRAIN_FIELDS="$scratch/lists"
figures=()
for of in tokenizer::every_field sentence_encoders::every_field; do
    tests --package model-center --test it -- "$of"
    if [ "$passed" -ne 1 ] || [ "$failed" -ne 0 ] || [ "${figure%%/*}" != 0 ]; then verdict "$of:$figure" short; fi
    figures+=("$figure")
done
verdict "${figures[0]},${figures[1]}" ok
