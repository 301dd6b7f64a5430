#!/usr/bin/env bash
# The chat templates that two packages ship, with 30 conversations and 8 sets of options: texts and ids against
# transformers. The figure is the number of templates, and renderings that are equal, or refused by both, of all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"
need_cargo
need_pip
templates="$("$root/scripts/chat_templates.sh")"
python="$("$root/scripts/python_env.sh")"
scratch
compare=("$python" "$root/scripts/claims/chat_templates.py")
"${compare[@]}" write "$templates" "$scratch/requests" "$scratch/expected"
(cd "$root" && cargo build --release --locked --quiet --package model-center --example chat_texts) >&2
"$bin/examples/chat_texts" "$root/crates/model-center/tests/golden/chat" <"$scratch/requests" >"$scratch/results"
outcome=ok
figure="$("${compare[@]}" compare "$scratch/expected" "$scratch/results")" || outcome=short
verdict "$figure" "$outcome"
