#!/usr/bin/env bash
# Guess: `aim convert tensorboard` needs what it installs with aim, or fails.
# Seen: it imports TensorFlow, which aim does not require, and tensorboard, which TensorFlow 2.21 does not; without
# either it prints an error, converts nothing and exits with status 0.
set -euo pipefail
# shellcheck source=findings/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages aim==3.29.1
scratch="$(mktemp -d)"
mkdir "$scratch/logs"
aim="$(dirname "$python")/aim"
"$aim" init --repo "$scratch" >/dev/null 2>&1
text="$("$aim" convert --repo "$scratch" tensorboard --logdir "$scratch/logs" 2>&1)"
printf 'exit status 0: %s\n' "$text"
case "$text" in *"failed to import tensorflow module"*) ;; *) exit 1 ;; esac
