# shellcheck shell=bash
# What the claims squad-bert and ner share. Sourced, not run.
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

# compare TASK TASK_HERE ENDING METRIC: MiniLM fine-tuned on data made of Moby Dick, here and in transformers by the
# same settings, from three seeds each. The figure is the mean F1 of both on 300 held-out samples, in percent; ok when
# they are at most one point apart.
compare() {
    need_pip
    "$root/scripts/assets.sh" bert prose
    build finetune
    local python seed ours theirs tasks="$root/scripts/claims/token_tasks.py"
    python="$("$root/scripts/python_env.sh")"
    scratch
    "$python" "$tasks" make "$1" "$cache/assets/prose/moby_dick.txt" "$scratch"
    for seed in 1 2 3; do
        "$bin/finetune" --set "model.path=$cache/assets/minilm" --set "data.task=$2" \
            --set "data.train=$scratch/train.$3" --set "data.eval=$scratch/eval.$3" --set data.max_length=160 \
            --set train.epochs=3 --set train.batch_size=16 --set train.lr=3e-4 --set train.warmup=0 \
            --set train.schedule=linear --set "train.seed=$seed" --set model.hidden_dropout=0.1 \
            --set "output.dir=$scratch/run$seed" --set log.quiet=true --set save.which=none >&2
    done
    ours="$("$python" "$tasks" mean "$4" "$scratch"/run?/metrics.jsonl)"
    theirs="$("$python" "$tasks" train "$1" "$cache/assets/minilm" "$scratch" \
        '{"max_length": 160, "epochs": 3, "batch_size": 16, "lr": 3e-4, "seeds": [1, 2, 3]}')"
    note "F1: $ours here, $theirs in transformers"
    if awk -v a="$ours" -v b="$theirs" 'BEGIN { exit !(a - b <= 1 && b - a <= 1) }'; then
        verdict "$ours/$theirs" ok
    else
        verdict "$ours/$theirs" short
    fi
}
