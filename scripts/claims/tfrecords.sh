#!/usr/bin/env bash
# Files of TensorFlow's records against the package tfrecord: it reads the records and checksums that ours writes, ours
# reads what it writes, plain and in gzip. The figure is comparisons that agree, of all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build corpus
python="$("$root/scripts/python_env.sh")"
packages="$("$root/scripts/corpus_env.sh")"
scratch
figure="$(PYTHONPATH="$packages" "$python" "$root/scripts/claims/tfrecords.py" "$bin/corpus" "$scratch")"
if [ "${figure%/*}" = "${figure#*/}" ]; then verdict "$figure" ok; else verdict "$figure" short; fi
