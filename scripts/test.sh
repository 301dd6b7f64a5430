#!/usr/bin/env bash
# Usage: scripts/test.sh [--all]
#
# Installs what the tests need (rustfmt and clippy, through rustup; on Debian and as root also g++, with which CUDA
# kernels are run on the processor, OpenMPI and iproute2; NVIDIA's compilers, through pip) and runs everything: the
# scripts' own checks, formatting, lints, all tests, the documentation, the packages. Goes on after a failure; the last
# line is the total, `N passed, N failed`, in which every test and every other check counts one. What had to be skipped
# is named above it. The exit status is 1 if anything failed.
#
# What takes long and cannot have changed is left out: the tests of CUDA kernels on an emulated device while kernels,
# launch code and emulator are as they were when all of these tests passed (kernels/emulated.txt), and what NVIDIA's
# compilers make of the kernels while these are as they were when that was last accepted (kernels/compiled.txt). --all
# runs both in any case.
#
# Each stage has a budget, in builds of one dependency on this machine (docs/testing.md); a stage that takes longer is a
# failure. BMTRAIN_NO_BUDGETS=1 only reports the seconds, for a machine that does other work meanwhile.
#
# Where cargo-deny is installed it checks licences, sources and duplicates of all dependencies. With BMTRAIN_DENY=1 it
# is installed first (some minutes) and looks at security advisories too, whose database it fetches.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

all=
case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
--all) all=1 ;;
'') ;;
*) fail "test.sh $1" "there is no such option" "see scripts/test.sh --help" ;;
esac
need_cargo
cd "$root"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    need rustup "install Rust with rustup, or add rustfmt and clippy to your toolchain"
    rustup component add rustfmt clippy
fi
# install WHAT_FOR PACKAGE...: Debian's packages, as root; otherwise reports what they are needed for, and how to get
# them.
install() {
    local what_for="$1"
    shift
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } ||
            note "$* could not be installed: $what_for will be skipped"
    else
        note "$* is missing: $what_for will be skipped (on Debian: apt-get install $*)"
    fi
}
command -v g++ >/dev/null 2>&1 || install "the tests of CUDA kernels" g++
has_mpi() { command -v mpirun >/dev/null 2>&1 && command -v mpicc >/dev/null 2>&1; }
has_mpi || install "the tests of MPI" openmpi-bin libopenmpi-dev
command -v ip >/dev/null 2>&1 || install "the tests of several hosts" iproute2
if [ "${BMTRAIN_DENY:-}" = 1 ] && ! cargo deny --version >/dev/null 2>&1; then
    cargo install --locked --version 0.20.2 cargo-deny
fi

passed=0
failed=0
summary=()
times="$(mktemp)"
beside="$(mktemp)"
trap 'rm -f "$times" "$beside"' EXIT
# NVIDIA's compilers, for the tests of compilation; they need no GPU.
if cuda="$(scripts/cuda_env.sh)"; then
    export BMTRAIN_CUDA_LIB_DIR="$cuda/lib"
else
    note "SKIPPED compilation of CUDA kernels: NVIDIA's compilers could not be installed"
    summary+=("    skipped: compilation of CUDA kernels: NVIDIA's compilers could not be installed")
fi

unset BMTRAIN_EMULATED_KERNELS_UNCHANGED
if [ -z "$all" ] && grep -q "^sha256 $(scripts/emulated_hash.sh)$" kernels/emulated.txt; then
    export BMTRAIN_EMULATED_KERNELS_UNCHANGED=1
fi

# What this machine takes to build one dependency, in ms: the unit of budgets. Nothing where it is built already: then
# so is the rest, and no budget applies.
unit="$(
    started="${EPOCHREALTIME/[.,]/}"
    cargo build --locked --quiet --profile test --package regex-syntax >/dev/null 2>&1 || true
    took=$(((${EPOCHREALTIME/[.,]/} - started) / 1000))
    [ "$took" -lt 1000 ] || echo "$took"
)"

# What the tests on an emulated device may take together, in seconds.
emulated_limit=1500
# say_emulated LOG: adds up what those tests of cargo took, a program after the other, and holds it against the limit.
say_emulated() {
    local took
    took="$(awk '/^ +(Running|Doc-tests) / {
            emulated = $0 ~ /tests\/(cuda\/main|train_emulated|gpu_check|step_ledger)\.rs/
        }
        /^test result:/ && emulated { sub(/.*finished in /, ""); sub(/s.*/, ""); n += $0 }
        END { printf "%d", n + 0.5 }' "$1")"
    if [ "$took" -gt "$emulated_limit" ]; then
        failed=$((failed + 1))
        summary+=("FAILED  tests on an emulated device took $took s, more than $emulated_limit s")
    elif [ "$took" -gt 0 ]; then
        summary+=("    thereof on an emulated device: $took s of at most $emulated_limit s")
    fi
}

# ended NAME STARTED BUDGET: adds the seconds of a stage that started at STARTED to the summary's next line, in `took`;
# one that took more than BUDGET units fails.
ended() {
    took="$((SECONDS - $2)) s"
    [ -n "$unit" ] || return 0
    local limit=$(($3 * unit / 1000))
    took+=" of at most $limit s"
    if [ "$((SECONDS - $2))" -gt "$limit" ] && [ -z "$all${BMTRAIN_NO_BUDGETS:-}" ]; then
        failed=$((failed + 1))
        summary+=("FAILED  $1 took more than $3 builds of regex-syntax")
    fi
}

# say_skipped LOG: adds the checks that a command reported as skipped to the summary, with their number, and the tests
# that are ignored, which claims run.
say_skipped() {
    summary+=("$(sed -n 's/^SKIPPED //p' "$1" | sort | uniq -c | sed -E 's/^ *([0-9]+) /    skipped (\1): /')")
    summary+=("$(sed -nE 's/^test (.*) \.\.\. ignored, (.*)$/    skipped: \1: \2/p' "$1")")
}

# check NAME BUDGET COMMAND...: runs one check that passes or fails as a whole.
check() {
    local name="$1" budget="$2" log started=$SECONDS result=passed
    shift 2
    printf '\n== %s\n' "$name"
    log="$(mktemp)"
    "$@" 2>&1 | tee "$log" || result=FAILED
    if [ "$result" = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    ended "$name" "$started" "$budget"
    summary+=("$result  $name ($took)")
    say_skipped "$log"
    rm -f "$log"
}

# ended_earlier STATUS LOG: has the status and the output of a command that ran beside others.
ended_earlier() {
    cat "$2"
    return "$1"
}

# stamped FILE: passes lines on, and writes them to a file with the seconds at which each came.
stamped() {
    local line
    while IFS= read -r line; do
        printf '%s\n' "$line"
        printf '%s %s\n' "${EPOCHREALTIME/,/.}" "$line" >&3
    done 3>"$1"
}

# count_tests NAME BUDGET COMMAND...: runs cargo's tests and adds up the `test result:` lines they print.
count_tests() {
    local name="$1" budget="$2" log status=0 ok bad started=$SECONDS
    shift 2
    printf '\n== %s\n' "$name"
    log="$(mktemp)"
    "$@" 2>&1 | stamped "$log.stamped" || status=$?
    cut -d ' ' -f 2- "$log.stamped" >"$log"
    scripts/test_times.sh "$log.stamped" >>"$times"
    ok="$(awk '/^test result:/ { n += $4 } END { print n + 0 }' "$log")"
    bad="$(awk '/^test result:/ { n += $6 } END { print n + 0 }' "$log")"
    # What does not compile, or dies before its summary, counts one.
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    ended "$name" "$started" "$budget"
    summary+=("$ok passed, $bad failed  $name ($took)")
    if [ "$bad" -gt 0 ]; then
        summary+=("$(grep -E '^test .* FAILED$|^error(\[|:)' "$log" | sort -u | head -n 40 | sed 's/^/    /' || true)")
    fi
    # cargo counts a test that reports being skipped as passed.
    say_skipped "$log"
    say_emulated "$log"
    rm -f "$log" "$log.stamped"
}

# The numbers are budgets: about twice what a stage takes on two quiet cores.

# On one core, beside the lints, which leave one idle for as long.
scripts/check_scripts.sh >"$beside" 2>&1 &
scripts_check=$!
check "formatting" 15 cargo fmt --all --check
# Everything is linted and tested once, with every optional feature that this machine can build, the default ones among
# them, and documented. What is compiled in their absence, as the quickstart is, is linted once more.
features=bmtrain-programs/testing
if has_mpi; then
    features+=,bmtrain-programs/mpi
else
    summary+=("    skipped: tests of MPI: there is no mpirun or no mpicc")
fi
with=(--workspace --locked --features "$features")
check "lints" 125 cargo clippy "${with[@]}" --all-targets -- --deny warnings
status=0
wait "$scripts_check" || status=$?
check "scripts, beside these" 5 ended_earlier "$status" "$beside"
# bmtrain-bench asks for features of the others.
without=(--workspace --exclude bmtrain-bench --locked --no-default-features)
check "lints without optional features" 45 cargo clippy "${without[@]}" -- --deny warnings
# With clippy's driver, and its arguments as cargo clippy passes them, cargo doc finds the libraries' metadata there;
# with others they are checked again.
check "documentation" 45 env RUSTDOCFLAGS="--deny warnings" \
    RUSTC_WORKSPACE_WRAPPER="$(rustc --print sysroot)/bin/clippy-driver" \
    CLIPPY_ARGS="--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__" cargo doc "${with[@]}" --no-deps
if [ -z "$all" ] && scripts/claims/kernels-compile.sh --unchanged; then
    summary+=("    skipped: kernels for devices: unchanged since kernels/compiled.txt was written; --all compiles them")
elif [ -n "${BMTRAIN_CUDA_LIB_DIR:-}" ]; then
    check "kernels for devices" 310 scripts/claims/kernels-compile.sh
fi
check "build of the tests" 390 cargo test "${with[@]}" --no-run
count_tests "tests" 640 cargo test "${with[@]}" --no-fail-fast
count_tests "packages" 260 scripts/package_check.sh
if cargo deny --version >/dev/null 2>&1; then
    what=(licenses bans sources)
    [ "${BMTRAIN_DENY:-}" != 1 ] || what+=(advisories)
    check "dependencies" 10 cargo deny --workspace check "${what[@]}"
fi

# Not by head, which would end sort early, and with it this script.
summary+=("slowest tests:" "$(sort -rn "$times" | sed -n 1,10p)")
printf '\n'
printf '%s\n' "${summary[@]}" | sed '/^$/d'
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
