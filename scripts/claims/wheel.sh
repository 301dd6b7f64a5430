#!/usr/bin/env bash
# Builds the Python package, installs the wheel into a new environment and runs its tests there: ten steps of MiniLM and
# three of LoRA have the losses and the weights of a run with the same settings, bit for bit; adapters, generation, data
# sets, messages, Ctrl-C, the interpreter's lock, memory, stubs; `import bmtrain` takes at most 0.3 s. The figure is
# tests passed/all, the seconds of the import and the size of the wheel.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_cargo
quickstart_data
"$root/scripts/assets.sh" llama
package="$root/crates/bmtrain-python"
scratch
python3 -m venv --without-pip "$scratch/tools"
python3 -m venv --without-pip "$scratch/clean"
into() { python3 -m pip --python "$scratch/$1/bin/python" install --quiet --disable-pip-version-check "${@:2}" >&2; }
into tools 'maturin>=1.9,<2'
"$scratch/tools/bin/maturin" build --release --locked --manifest-path "$package/Cargo.toml" \
    --interpreter "$scratch/clean/bin/python" --target-dir "$target/wheel" --out "$scratch/dist" >&2
wheels=("$scratch"/dist/bmtrain-*-abi3-*.whl)
into clean "${wheels[0]}"

log="$scratch/log"
status=0
(cd "$scratch" && "$scratch/clean/bin/python" "$package/tests/test_bmtrain.py" --verbose) >"$log" 2>&1 || status=$?
cat "$log" >&2
all="$(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$log")"
bad="$(awk -F '[^0-9]+' '/^FAILED / { for (i = 1; i <= NF; i++) n += $i } END { print n + 0 }' "$log")"
import="$(sed -nE 's/.*figure: import ([0-9.]+) s$/\1/p' "$log")"
megabytes="$(du --apparent-size -k "${wheels[0]}" | awk '{ printf "%.1f", $1 / 1000 }')"
figure="$((${all:-0} - bad))/${all:-0},import_${import:-unknown}s,${megabytes}MB"
if [ "$status" -eq 0 ] && [ "${all:-0}" -gt 0 ]; then verdict "$figure" ok; else verdict "$figure" short; fi
