# shellcheck shell=bash
# Paths, and how a script reports errors. Sourced by the other scripts, not run.
#
# Sets root (the repository), cache (downloads and the Python environment; BMTRAIN_CACHE overrides it) and
# target (cargo's build directory), and defines note, fail, need, lock_cache and install_once.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

# note TEXT: one line of progress, on stderr so that a script's result can be read from stdout.
note() { printf '%s\n' "$*" >&2; }

# fail PLACE REASON FIX: the three things a user needs, then exit 1.
fail() {
    printf 'error: %s\n  reason: %s\n  fix: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

# need COMMAND FIX: stops where a program is missing.
need() {
    command -v "$1" >/dev/null 2>&1 || fail "$(basename "$0") needs '$1'" "it is not on the PATH" "$2"
}

# need_pip: Python 3.9 or later with pip.
need_pip() {
    need python3 "install Python 3 and pip, on Debian: apt-get install python3 python3-pip"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
        fail "$(basename "$0") needs Python 3.9 or later" "python3 is $(python3 --version 2>&1)" \
            "install a newer Python 3"
    python3 -m pip --version >/dev/null 2>&1 ||
        fail "$(basename "$0") needs pip" "'python3 -m pip' does not run" "on Debian: apt-get install python3-pip"
}

# need_cargo: cargo, or how to get it.
need_cargo() {
    need cargo "install Rust with rustup (https://rustup.rs), then open a new shell or run: . \"\$HOME/.cargo/env\""
}

# lock_cache NAME: makes that directory of the cache, and holds its lock until the script ends: of two scripts that need
# the same thing at the same time, one makes it.
lock_cache() {
    mkdir -p "$cache/$1" 2>/dev/null ||
        fail "cannot write to the cache $cache" "the directory $cache/$1 cannot be made" \
            "set BMTRAIN_CACHE to a directory you can write to"
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$cache/$1/.lock"
        flock 9
    fi
}

# install_once NAME WHAT FIX COMMAND...: makes `final`, the directory $cache/NAME/$key, by a command, and not again once
# it is complete. The caller has set `packages`, for the report, and `key`. WHAT and FIX are for the error.
# shellcheck disable=SC2154
install_once() {
    local name="$1" what="$2" fix="$3" log="$cache/$1/$key.log"
    shift 3
    final="$cache/$name/$key"
    [ ! -e "$final/complete" ] || return 0
    need_pip
    lock_cache "$name"
    # Another script may have made it meanwhile.
    [ ! -e "$final/complete" ] || return 0
    note "installing ${packages[*]} into $final"
    rm -rf "$final"
    if ! "$@" >"$log" 2>&1; then
        grep -iE 'error|could not|no space|no matching' "$log" | tail -n 3 | cut -c 1-200 >&2 || true
        rm -rf "$final"
        fail "cannot install $what into $final" "pip or a program that it calls failed (log: $log)" \
            "connect to the network, $fix, and run the same command again"
    fi
    touch "$final/complete"
}

# key_of TEXT...: a short hash, by which a change of what is installed makes a new directory.
key_of() { printf '%s\n' "$@" | sha256sum | cut -c 1-8; }

# fill_environment [PIP'S ARGUMENT...]: makes `final` a Python environment with `packages`. It has no pip of its own and
# the system's pip fills it: Debian's Python has venv, but not the part of it that brings pip.
fill_environment() {
    python3 -m venv --without-pip "$final" &&
        python3 -m pip --python "$final/bin/python" install --quiet --disable-pip-version-check "$@" "${packages[@]}"
}

# fill_directory [PIP'S ARGUMENT...]: unpacks `packages` into `final`, without the packages that they ask for; for the
# interpreter `python`, where the caller has set it.
fill_directory() {
    python3 -m pip ${python:+--python "$python"} install --quiet --disable-pip-version-check --no-deps \
        --target "$final" "$@" "${packages[@]}"
}

# usage SCRIPT: prints the comment block at the top of a script, without the comment signs.
usage() { awk 'NR == 1 { next } /^#/ { sub(/^# ?/, ""); print; next } { exit }' "$1"; }

# takes_nothing [ARGUMENT...]: the arguments of a script that has no options but --help.
takes_nothing() {
    case "${1:-}" in
    -h | --help) usage "$0"; exit 0 ;;
    '') ;;
    *) fail "$(basename "$0") $1" "it takes no arguments" "see scripts/$(basename "$0") --help" ;;
    esac
}

if [ -n "${BMTRAIN_CACHE:-}" ]; then
    cache="$BMTRAIN_CACHE"
elif [ -n "${HOME:-}" ]; then
    cache="$HOME/.cache/bmtrain"
else
    fail "no place for the cache" "neither BMTRAIN_CACHE nor HOME is set" \
        "set BMTRAIN_CACHE to a directory with some free space"
fi
case "$cache" in /*) ;; *) cache="$PWD/$cache" ;; esac

target="${CARGO_TARGET_DIR:-$root/target}"
case "$target" in /*) ;; *) target="$PWD/$target" ;; esac
# The programs as a release build leaves them.
bin="$target/release"
export root cache target bin
