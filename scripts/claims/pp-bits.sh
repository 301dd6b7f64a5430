#!/usr/bin/env bash
# Pipelines of one to four stages under every schedule against one stage, bit for bit. The figure is tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

tests --release --package bmtrain-dist --test it -- pipeline::
of_toys=$passed
if [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ]; then verdict "$figure" short; fi
tests --release --package model-center --test it -- pipeline::
if [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ]; then verdict "$figure" short; fi
verdict "$((of_toys + passed))/$((of_toys + passed))" ok
