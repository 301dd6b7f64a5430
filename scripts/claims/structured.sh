#!/usr/bin/env bash
# Texts of a form from `serve`: a Llama with random weights and a byte-level vocabulary samples 500 texts for ten JSON
# schemas, which the package `jsonschema` judges, and 100 for five regular expressions, which Python's `re` judges;
# openai's Python client makes it call tools in two forms, whole and streamed, reads values of pydantic's models, asks
# for the model by name, and sends a body in chunks. The figure is texts that are of their schema / all, texts that
# match their expression / all, checks of the client that hold / all, and the median time of a token with a schema, in
# units of one without.
# Arguments: texts of each schema, by default 50; `debug` for a debug build.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
if [ "${2:-}" = debug ]; then
    bin="$target/debug"
else
    build serve
fi
python="$("$root/scripts/python_env.sh")"
packages="$("$root/scripts/serve_env.sh")"
scratch
figure="$(PYTHONPATH="$packages" "$python" "$root/scripts/claims/structured.py" "$bin/serve" "$scratch" "${1:-50}")"
IFS=, read -r schemas patterns checks _ <<<"$figure"
for part in "$schemas" "$patterns" "$checks"; do
    if [ "${part%/*}" != "${part#*/}" ]; then
        verdict "$figure" short
        exit
    fi
done
verdict "$figure" ok
