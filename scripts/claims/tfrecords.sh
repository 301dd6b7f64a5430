#!/usr/bin/env bash
# Files of TensorFlow's records against the package tfrecord: it reads the records and checksums that ours writes, ours
# reads what it writes, plain and in gzip. The figure is comparisons that agree, of all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

beside_corpus_tools tfrecords.py
if [ "${figure%/*}" = "${figure#*/}" ]; then verdict "$figure" ok; else verdict "$figure" short; fi
