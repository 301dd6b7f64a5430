#!/usr/bin/env bash
# Usage: scripts/check_scripts.sh
#
# Checks the scripts themselves: they parse, explain themselves, and answer mistakes; the pinned files are unpacked with
# care; the sentences come out the same every time; docs/claims.md and scripts/claims agree. Lints the wording of the
# whole repository and the length of its lines. Needs no network.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

takes_nothing "$@"
cd "$root"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
faults=0

# expect TEXT COMMAND...: the claim TEXT holds if the command succeeds.
expect() {
    local text="$1"
    shift
    if "$@" >"$scratch/log" 2>&1; then
        printf 'ok      %s\n' "$text"
    else
        faults=$((faults + 1))
        printf 'FAILED  %s\n' "$text"
        head -n 20 "$scratch/log" | sed 's/^/        /'
    fi
}

# refuses TEXT COMMAND...: the command fails and its output holds TEXT, a reason and a fix.
refuses() {
    local text="$1" status=0
    shift
    "$@" >"$scratch/refused" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        echo "it succeeded"
        return 1
    fi
    cat "$scratch/refused"
    grep -qF -- "$text" "$scratch/refused" &&
        grep -q '^  reason: ' "$scratch/refused" && grep -q '^  fix: ' "$scratch/refused"
}

# skipped TEXT REASON: what is left out here; test.sh takes such lines over into its summary.
skipped() { printf 'SKIPPED %s: %s\n' "$1" "$2"; }

# without PROGRAM SCRIPT ARGS...: runs a script with a PATH on which the program is not to be found.
without() {
    local program="$1" hidden="$scratch/path-without-$1" each
    shift
    if [ ! -d "$hidden" ]; then
        mkdir "$hidden"
        for each in bash env dirname basename awk sha256sum mkdir grep cut tail rm mv cargo python3; do
            [ "$each" = "$program" ] || ln -s "$(command -v "$each")" "$hidden/$each"
        done
    fi
    PATH="$hidden" "$@"
}

# emulated OUTPUT LINE: train-emulated ends with LINE, a pattern, where its tests print OUTPUT.
emulated() {
    local ended
    mkdir -p "$scratch/fake"
    # shellcheck disable=SC2016
    printf '#!/bin/sh\ncase "$*" in *--no-run*) ;; *) printf %%b "$OUTPUT" ;; esac\n' >"$scratch/fake/cargo"
    printf '#!/bin/sh\n' >"$scratch/fake/g++"
    chmod +x "$scratch/fake/cargo" "$scratch/fake/g++"
    ended="$(PATH="$scratch/fake:$PATH" OUTPUT="$1" scripts/claims/train-emulated.sh 2>/dev/null || true)"
    echo "$ended"
    # shellcheck disable=SC2053
    [[ "$ended" == $2 ]]
}

# timed TEXT: what test_times.sh makes of four lines of three tests, two at a time, is TEXT.
timed() {
    printf '%s\n' '10.5 running 3 tests' '11.5 test a ... ok' '13.0 test b - should panic ... ok' \
        '14.0 test c::d ... FAILED' >"$scratch/stamped"
    RUST_TEST_THREADS=2 scripts/test_times.sh "$scratch/stamped" | tr -s ' \n' ' ' | tee /dev/stderr | grep -qxF -- "$1"
}

for script in .ci/run scripts/*.sh scripts/claims/*.sh; do
    expect "$script parses" bash -n "$script"
done
if command -v shellcheck >/dev/null 2>&1; then
    expect "shellcheck finds nothing" shellcheck --external-sources .ci/run scripts/*.sh scripts/claims/*.sh
else
    skipped "shellcheck of the scripts" "there is no shellcheck"
fi
for script in assets quickstart test package_check claims python_env corpus_env llama_env cuda_env check_scripts \
    same_digests emulated_hash gpu_bundle gpu_run test_times; do
    # shellcheck disable=SC2016
    expect "scripts/$script.sh --help explains it" \
        bash -c '[ "$("$1" --help | head -n 1 | cut -c 1-6)" = "Usage:" ]' _ "scripts/$script.sh"
done

ids="$(scripts/claims.sh | awk '{ print $1 }' | sort)"
# parity.sh serves every family with a golden test, pretrain.sh three of them; the rest here is sourced.
families="$(basename -a -s .rs crates/model-center/tests/it/golden_*.rs | sed -n 's/^golden_/parity-/p')"
here="$({ find scripts/claims -name '*.sh' ! -name verdict.sh ! -name token_tasks.sh ! -name parity.sh \
    ! -name pretrain.sh -exec basename {} .sh \; && echo "$families" &&
    printf 'pretrain-%s\n' bert gpt2 t5; } | sort)"
expect "docs/claims.md lists exactly the claims that have a script" test "$ids" = "$here"
# A file of tests without one passes wherever it is run.
# shellcheck disable=SC2016
expect "every golden test file has tests" \
    bash -c '[ -z "$1" ] || { echo "$1"; exit 1; }' _ \
    "$(grep -L -e '_tests! {' -e '#\[test\]' crates/model-center/tests/it/golden_*.rs)"
# Names under [workspace.dependencies] that are not the project's own and have no line of their own in deny.toml.
unexplained() {
    awk '/^\[/ { inside = $0 == "[workspace.dependencies]" } inside && /^[a-z]/ && !/path = / { print $1 }' Cargo.toml |
        while read -r name; do grep -qE "^#   $name +[^ ]" deny.toml || echo "$name"; done
}
# shellcheck disable=SC2016
expect "every direct dependency has its reason in deny.toml" \
    bash -c '[ -z "$1" ] || { echo "$1"; exit 1; }' _ "$(unexplained)"
result='test result: ok. 2 passed; 0 failed; 0 ignored\n'
expect "an emulated claim counts tests and comparisons" emulated \
    "emulated: 3 checks of 2 rows agree\ntest a ... emulated: 4 checks of 1 rows agree\n$result" \
    'train-emulated emulated:2/2,7_checks,*s ok'
expect "an emulated claim with a skipped test is short" emulated "SKIPPED a: there is no g++\n$result" '* short'
expect "an emulated claim with a failed test is short" emulated \
    "test result: FAILED. 1 passed; 1 failed;\n" '*1/2,*s short'
expect "an emulated claim without tests is short" emulated "test result: ok. 0 passed; 0 failed;\n" '* short'
expect "the seconds of tests follow from when their lines came" timed ' 1.0 s a 2.5 s b 2.5 s c::d '
expect "an unknown claim is refused" refuses "claims.sh no-such-claim" scripts/claims.sh no-such-claim
expect "an unknown set is refused" refuses "assets.sh no-such-set" scripts/assets.sh no-such-set
expect "an unknown option is refused" refuses "quickstart.sh --no-such-option" scripts/quickstart.sh --no-such-option
expect "quickstart reports that cargo is missing" refuses "needs 'cargo'" without cargo scripts/quickstart.sh
expect "quickstart reports that Python is missing" refuses "needs 'python3'" without python3 scripts/quickstart.sh
expect "a cache that cannot be written is refused" refuses "cannot write to the cache" \
    env BMTRAIN_CACHE=/dev/null/cache scripts/assets.sh sent

if command -v python3 >/dev/null 2>&1; then
    expect "the Python scripts compile" env PYTHONPYCACHEPREFIX="$scratch/pycache" python3 -m compileall -q scripts
    # Comments, strings and documents of the whole repository; scripts/words_allowed.txt has the exceptions.
    expect "no paraphrases of terms and no lines over 120 columns" python3 scripts/words.py
    expect "no cycles between the modules of a crate" python3 scripts/module_graph.py
    expect "unpacking, sentences, wording and verdicts behave" \
        env PYTHONDONTWRITEBYTECODE=1 python3 scripts/check_scripts.py
    # No package index answers at this address, which is what being offline looks like.
    if python3 -m pip --version >/dev/null 2>&1; then
        expect "being offline is reported in a few lines" refuses "cannot fetch vaderSentiment" env -u PIP_FIND_LINKS \
            PIP_CONFIG_FILE=/dev/null PIP_NO_CACHE_DIR=1 PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_RETRIES=0 \
            BMTRAIN_CACHE="$scratch/cache" scripts/assets.sh sent
    else
        skipped "the check of being offline" "python3 has no pip"
    fi
else
    skipped "checks of the Python scripts" "there is no python3"
fi
[ "$faults" -eq 0 ]
