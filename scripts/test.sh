#!/usr/bin/env bash
# Usage: scripts/test.sh
#
# Installs what the tests need (rustfmt and clippy, through rustup; on Debian and as root also g++, with which CUDA
# kernels are run on the processor, and OpenMPI; NVIDIA's compilers, through pip) and runs everything: the scripts' own checks,
# formatting, lints, all tests, the documentation, the packages. Goes on after a failure; the last line is the total, `N passed,
# N failed`, in which every test and every other check counts one. What had to be skipped is named above it. The exit status is 1
# if anything failed.
#
# Where cargo-deny is installed it checks licences, sources and duplicates of all dependencies. With BMTRAIN_DENY=1 it is
# installed first (some minutes) and looks at security advisories too, whose database it fetches.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') ;;
*) fail "test.sh $1" "it takes no arguments" "see scripts/test.sh --help" ;;
esac
need_cargo
cd "$root"
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    need rustup "install Rust with rustup, or add rustfmt and clippy to your toolchain"
    rustup component add rustfmt clippy
fi
# install WHAT_FOR PACKAGE...: Debian's packages, as root; otherwise says what for they are missing, and how to get them.
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
if [ "${BMTRAIN_DENY:-}" = 1 ] && ! cargo deny --version >/dev/null 2>&1; then
    cargo install --locked --version 0.20.2 cargo-deny
fi

passed=0
failed=0
summary=()
# NVIDIA's compilers, for the tests of compilation; they need no GPU.
if cuda="$(scripts/cuda_env.sh)"; then
    export BMTRAIN_CUDA_LIB_DIR="$cuda/lib"
else
    note "SKIPPED compilation of CUDA kernels: NVIDIA's compilers could not be installed"
    summary+=("    skipped: compilation of CUDA kernels: NVIDIA's compilers could not be installed")
fi

# What the tests on an emulated device may take together, in seconds.
emulated_limit=1500
# say_emulated LOG: adds up what those tests of cargo took, a program after the other, and holds it against the limit.
say_emulated() {
    local took
    took="$(awk '/^ +(Running|Doc-tests) / { emulated = $0 ~ /tests\/(cuda_[a-z]+|nccl|train_emulated)\.rs/ }
        /^test result:/ && emulated { sub(/.*finished in /, ""); sub(/s.*/, ""); n += $0 } END { printf "%d", n + 0.5 }' "$1")"
    if [ "$took" -gt "$emulated_limit" ]; then
        failed=$((failed + 1))
        summary+=("FAILED  tests on an emulated device took $took s, more than $emulated_limit s")
    elif [ "$took" -gt 0 ]; then
        summary+=("    of which on an emulated device: $took s of at most $emulated_limit s")
    fi
}

# say_skipped LOG: takes over what a command said it leaves out.
say_skipped() { summary+=("$(sed -n 's/^SKIPPED /    skipped: /p' "$1" | sort -u)"); }

# check NAME COMMAND...: runs one check that passes or fails as a whole.
check() {
    local name="$1" log started=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    log="$(mktemp)"
    if "$@" 2>&1 | tee "$log"; then
        passed=$((passed + 1))
        summary+=("passed  $name ($((SECONDS - started)) s)")
    else
        failed=$((failed + 1))
        summary+=("FAILED  $name ($((SECONDS - started)) s)")
    fi
    say_skipped "$log"
    rm -f "$log"
}

# count_tests NAME COMMAND...: runs cargo's tests and adds up the `test result:` lines they print.
count_tests() {
    local name="$1" log status=0 ok bad started=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    log="$(mktemp)"
    "$@" 2>&1 | tee "$log" || status=$?
    ok="$(awk '/^test result:/ { n += $4 } END { print n + 0 }' "$log")"
    bad="$(awk '/^test result:/ { n += $6 } END { print n + 0 }' "$log")"
    # What does not compile, or dies before its summary, counts one.
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    passed=$((passed + ok))
    failed=$((failed + bad))
    summary+=("$ok passed, $bad failed  $name ($((SECONDS - started)) s)")
    if [ "$bad" -gt 0 ]; then
        summary+=("$(grep -E '^test .* FAILED$|^error(\[|:)' "$log" | sort -u | head -n 40 | sed 's/^/    /' || true)")
    fi
    # A test that says so passes by cargo's count.
    say_skipped "$log"
    say_emulated "$log"
    rm -f "$log"
}

check "scripts" scripts/check_scripts.sh
check "formatting" cargo fmt --all --check
check "lints" cargo clippy --workspace --all-targets --locked -- --deny warnings
[ -z "${BMTRAIN_CUDA_LIB_DIR:-}" ] || check "kernels for devices" scripts/claims.sh kernels-compile
count_tests "tests" cargo test --workspace --locked --no-fail-fast
if has_mpi; then
    with_mpi=(--locked --package bmtrain-core --package bmtrain-dist --package bmtrain-examples --features bmtrain-examples/mpi)
    check "lints with MPI" cargo clippy "${with_mpi[@]}" --all-targets -- --deny warnings
    # Of what the feature changes; the rest has been tested without it.
    count_tests "tests of MPI" cargo test "${with_mpi[@]}" --no-fail-fast --test mpi --test launch
    count_tests "tests of MPI's parts" cargo test --locked --package bmtrain-core --features mpi --lib comm::
    check "documentation with MPI" env RUSTDOCFLAGS="--deny warnings" cargo doc --no-deps "${with_mpi[@]}"
else
    summary+=("    skipped: tests of MPI: there is no mpirun or no mpicc")
fi
with_hub=(--locked --package bmtrain-examples --features bmtrain-examples/hub)
check "lints with fetching" cargo clippy "${with_hub[@]}" --all-targets -- --deny warnings
count_tests "tests of fetching" cargo test "${with_hub[@]}" --no-fail-fast --lib --test fetch
check "documentation with fetching" env RUSTDOCFLAGS="--deny warnings" cargo doc --no-deps "${with_hub[@]}"
check "documentation" env RUSTDOCFLAGS="--deny warnings" cargo doc --workspace --no-deps --locked
check "packages" scripts/package_check.sh
if cargo deny --version >/dev/null 2>&1; then
    what=(licenses bans sources)
    [ "${BMTRAIN_DENY:-}" != 1 ] || what+=(advisories)
    check "dependencies" cargo deny --workspace check "${what[@]}"
fi

printf '\n'
printf '%s\n' "${summary[@]}" | sed '/^$/d'
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
