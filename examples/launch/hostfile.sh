#!/usr/bin/env bash
# Usage: examples/launch/hostfile.sh [-f HOSTFILE] [-i HOSTS | -e HOSTS] COMMAND [ARGUMENT...]
#
# Starts COMMAND as a rank on every slot of the hosts in HOSTFILE (hostfile), over ssh, in this directory. A line of the
# file is `node1 slots=8`, as for DeepSpeed and mpirun; a slot is a GPU. -i takes some of the hosts and slots alone, -e
# leaves some out: `-i node1@node2:0,1` are all slots of node1 and the first two of node2. The host `localhost` needs no
# ssh. MASTER_ADDR is the first host and MASTER_PORT 29500 unless they are set; variables that begin with BMTRAIN_, HF_,
# NCCL_ or RUST_, PATH and LD_LIBRARY_PATH go to all ranks.
#
# Ends with the ranks' status: the same command again goes on after 6 (a rank was lost) and 75 (stopped with a
# checkpoint). SIGTERM and SIGINT are passed on to all ranks as SIGTERM.
set -euo pipefail

refuse() {
    echo "hostfile.sh: $1: $2; $3" >&2
    exit 2
}

file=hostfile include='' exclude=''
while getopts :f:i:e:h option; do
    case "$option" in
    f) file="$OPTARG" ;;
    i) include="$OPTARG" ;;
    e) exclude="$OPTARG" ;;
    h) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
    *) refuse "-$OPTARG" "no such option, or it has no value" "see hostfile.sh -h" ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || refuse "command" "there is none" "give the command of a rank, such as bmtrain finetune"
[ -z "$include" ] || [ -z "$exclude" ] || refuse "-e" "-i is given too" "give one of them"
[ -r "$file" ] || refuse "$file" "it cannot be read" "write a line such as 'node1 slots=8' for each host"

# The hosts in order, and of each the slots that take part, separated by spaces.
hosts=()
declare -A slots all
while read -r host count rest || [ -n "$host" ]; do
    case "$host" in '' | '#'*) continue ;; esac
    [[ "$host" =~ ^[A-Za-z0-9._@-]+$ && "$host" != -* ]] ||
        refuse "$file" "'$host' cannot be the name of a host" "correct it"
    [[ "$count" =~ ^slots=[1-9][0-9]{0,3}$ && ("$rest" = '' || "$rest" = '#'*) ]] ||
        refuse "$file" "'$host $count' has no number of slots" "write '$host slots=8'"
    [ -z "${all[$host]:-}" ] || refuse "$file" "$host comes twice" "give it one line with all its slots"
    hosts+=("$host")
    all[$host]="$(seq -s ' ' 0 $((${count#slots=} - 1)))"
    slots[$host]="${all[$host]}"
done <"$file"

# named LIST: sets `chosen` to the slots that a list such as node1@node2:0,1 names, by host.
declare -A chosen
named() {
    local each host list slot
    local -a parts numbers
    IFS=@ read -ra parts <<<"$1"
    for each in "${parts[@]}"; do
        host="${each%%:*}"
        [ -n "${all[${host:-?}]:-}" ] || refuse "$1" "host '$host' is not in $file" "name one of: ${hosts[*]}"
        list="${all[$host]}"
        if [ "$each" != "$host" ]; then
            IFS=, read -ra numbers <<<"${each#*:}"
            list="${numbers[*]}"
        fi
        for slot in $list; do
            [[ " ${all[$host]} " = *" $slot "* ]] || refuse "$1" "$host has no slot $slot" "its slots are ${all[$host]}"
        done
        chosen[$host]="${chosen[$host]:-} $list"
    done
}

if [ -n "$include$exclude" ]; then
    named "$include$exclude"
    for host in "${hosts[@]}"; do
        kept=()
        for slot in ${all[$host]}; do
            is_named=no
            [[ " ${chosen[$host]:-} " != *" $slot "* ]] || is_named=yes
            if { [ -n "$include" ] && [ $is_named = yes ]; } || { [ -n "$exclude" ] && [ $is_named = no ]; }; then
                kept+=("$slot")
            fi
        done
        slots[$host]="${kept[*]}"
    done
fi
world=0 first=''
for host in "${hosts[@]}"; do
    read -ra of_host <<<"${slots[$host]}"
    world=$((world + ${#of_host[@]}))
    [ ${#of_host[@]} -eq 0 ] || first="${first:-$host}"
done
[ $world -gt 0 ] || refuse "$file" "no slot is left" "name other hosts with -i or -e"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
passed=''
for name in $(compgen -e); do
    case "$name" in BMTRAIN_* | HF_* | NCCL_* | RUST_* | PATH | LD_LIBRARY_PATH)
        passed+="export $name=$(printf %q "${!name}")"$'\n'
        ;;
    esac
done
master="${first#*@}"
passed+="export WORLD_SIZE=$world MASTER_ADDR=$(printf %q "${MASTER_ADDR:-$master}")"
passed+=" MASTER_PORT=$(printf %q "${MASTER_PORT:-29500}")"

# quoted TEXT: for any shell that the other host's user has.
quoted() { printf "'%s'" "${1//\'/\'\\\'\'}"; }

# of_host FIRST_RANK SLOTS COMMAND...: what a host runs. A line, or the end, of its input asks its ranks to stop.
of_host() {
    local first_rank="$1" slots="$2"
    shift 2
    local -a numbers
    read -ra numbers <<<"$slots"
    printf 'cd %q || exit 2\n%s\n' "$PWD" "$passed"
    printf 'export LOCAL_WORLD_SIZE=%d CUDA_VISIBLE_DEVICES=%s\n' "${#numbers[@]}" "$(IFS=,; echo "${numbers[*]}")"
    printf 'ranks=()\nfor local in $(seq 0 %d); do\n' $((${#numbers[@]} - 1))
    printf '    RANK=$((%d + local)) LOCAL_RANK=$local %s </dev/null &\n' "$first_rank" "$(printf '%q ' "$@")"
    cat <<'END'
    ranks+=($!)
done
{ read -r _; kill -TERM "${ranks[@]}"; } 2>/dev/null <&0 &
watch=$!
status=0
for rank in "${ranks[@]}"; do
    wait "$rank" && code=0 || code=$?
    # A status other than a lost rank's is the cause.
    if [ $code -ne 0 ] && { [ $status -eq 0 ] || [ $status -eq 6 ]; }; then status=$code; fi
done
kill $watch 2>/dev/null
exit $status
END
}

starts=() inputs=() rank=0
for host in "${hosts[@]}"; do
    read -ra numbers <<<"${slots[$host]}"
    [ ${#numbers[@]} -gt 0 ] || continue
    of_host "$rank" "${slots[$host]}" "$@" >"$scratch/$rank.sh"
    mkfifo "$scratch/$rank.in"
    exec {input}<>"$scratch/$rank.in"
    inputs+=("$input")
    if [ "$host" = localhost ]; then
        bash "$scratch/$rank.sh" <&"$input" &
    else
        # shellcheck disable=SC2086
        ${SSH:-ssh -o BatchMode=yes} "$host" "bash -c $(quoted "$(cat "$scratch/$rank.sh")")" <&"$input" &
    fi
    starts+=($!)
    rank=$((rank + ${#numbers[@]}))
done
trap 'for input in "${inputs[@]}"; do echo stop >&"$input"; done' TERM INT

status=0
for start in "${starts[@]}"; do
    # A signal ends the wait, not the ranks.
    while :; do
        wait "$start" && code=0 || code=$?
        kill -0 "$start" 2>/dev/null || break
    done
    if [ $code -ne 0 ] && { [ $status -eq 0 ] || [ $status -eq 6 ]; }; then status=$code; fi
done
exit $status
