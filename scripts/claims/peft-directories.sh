#!/usr/bin/env bash
# Directories that PEFT writes, of its methods and options on tiny models of five families, opened here: PEFT's logits
# within 1e-5, or a refusal that names what is not available; merged too; and directories that `finetune` writes, opened
# by PEFT. The figure is how many are equal, refused and wrong, and how many PEFT itself cannot open again.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

build convert forward finetune
python="$("$root/scripts/python_env.sh")"
scratch
status=0
figure="$("$python" "$root/scripts/claims/peft_directories.py" "$bin" "$scratch" "$@")" || status=$?
if [ "$status" -eq 0 ]; then verdict "$figure" ok; else verdict "$figure" short; fi
