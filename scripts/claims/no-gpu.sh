#!/usr/bin/env bash
# Without a GPU, NVIDIA's driver or any of its libraries the programs start and report what is missing: the release
# build is linked to none of them, runs in an environment in which none can be found, and an asked-for CUDA device ends
# in one error that names the driver's library and the way out. The figure is linked NVIDIA libraries / printed errors.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need readelf "install binutils, on Debian: apt-get install binutils"
build finetune doctor
scratch
well=ok

# bare PROGRAM ARGUMENTS...: without variables and libraries of the person's own, and without a Python in which there
# may be some of NVIDIA's.
bare() { env -i HOME="$scratch" LD_LIBRARY_PATH= "$@"; }

# broken TEXT: what is not as it should be.
broken() {
    note "no-gpu: $1"
    well=short
}

linked=0
for program in finetune doctor; do
    # What the file asks for, and what that asks for.
    { readelf --dynamic "$bin/$program"; ldd "$bin/$program"; } >"$scratch/asks"
    found="$(grep -cE 'lib(cuda|cudart|cublas|cublasLt|nvrtc|nvidia|nccl)[-.]?[^ ]*\.so' "$scratch/asks" || true)"
    [ "$found" = 0 ] || grep -E 'lib(cu|nv|nccl)' "$scratch/asks" >&2
    linked=$((linked + found))
done
bare "$bin/finetune" --version >&2 || broken "finetune --version fails"
bare "$bin/doctor" >"$scratch/doctor" || broken "doctor fails"
cat "$scratch/doctor" >&2

errors=none
if ! grep -qE '^! driver +none$' "$scratch/doctor"; then
    # A driver is found whatever the environment: the loader has it in its cache.
    note "SKIPPED no-gpu: this machine has NVIDIA's driver, so the error without one was not seen"
else
    printf '{"text": "good", "label": "positive"}\n{"text": "bad", "label": "negative"}\n' >"$scratch/data.jsonl"
    cp -r "$root/crates/model-center/tests/golden/bert_a/nsp" "$scratch/model"
    { printf '[%s]\n' PAD UNK CLS SEP MASK; printf '%s\n' good bad; seq -f '[unused%g]' 94; } \
        >"$scratch/model/vocab.txt"
    status=0
    bare "$bin/finetune" --recipe "$root/examples/recipes/quickstart.toml" --set "model.path=$scratch/model" \
        --set "data.train=$scratch/data.jsonl" --set "data.eval=$scratch/data.jsonl" --set "output.dir=$scratch/run" \
        --set data.max_length=16 --set train.batch_size=2 --device cuda >"$scratch/out" 2>"$scratch/stderr" || status=$?
    cat "$scratch/stderr" >&2
    errors="$(grep -c '^error' "$scratch/stderr" || true)"
    [ "$status" = 2 ] || broken "finetune --device cuda ends with status $status"
    [ "$errors" = 1 ] || broken "there are $errors lines of errors"
    head -n 1 "$scratch/stderr" | grep -q '^error.*libcuda\.so\.1' || broken "the first line does not name libcuda.so.1"
    grep -q "^  fix: .*device cpu or auto, or install NVIDIA's driver" "$scratch/stderr" || broken "the fix is missing"
fi
[ "$linked" = 0 ] || broken "libraries of NVIDIA's are linked"
verdict "$linked/$errors" "$well"
