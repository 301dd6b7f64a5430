#!/usr/bin/env bash
# MiniLM learns masked tokens of the State of the Union addresses on two threads, and forms its batches meanwhile: the
# share of its steps that waits for data, at most 1 %.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

need_pip
"$root/scripts/assets.sh" bert prose
build pretrain corpus
python="$("$root/scripts/python_env.sh")"
scratch

cd "$scratch"
"$python" - "$cache/assets/prose/sotu" >texts.jsonl <<'PYTHON'
import json
import pathlib
import sys

for file in sorted(pathlib.Path(sys.argv[1]).glob("*.txt")):
    print(json.dumps({"text": file.read_text(encoding="utf-8")}))
PYTHON
"$bin/corpus" presplit texts.jsonl --out sentences.jsonl --quiet >&2
"$bin/corpus" build sentences.jsonl --split-lines --tokenizer "$cache/assets/minilm" --out tokens --quiet >&2
"$bin/pretrain" --set "model.path=$cache/assets/minilm" --set data.task=pretrain --set data.objective=masked \
    --set data.masking.second_sentence=none --set data.corpora=tokens --set data.split=1,0,0 \
    --set data.sequence_length=128 --set train.steps=60 --set train.batch_size=32 --set train.micro_batch_size=8 \
    --set train.lr=1e-4 --set train.warmup=0 --set log.every=1 --set save.which=none --set device.name=cpu \
    --set device.threads=2 --set output.dir=run >&2
# The first steps wait for the first batches.
share="$("$python" -c '
import json
records = [json.loads(line) for line in open("run/metrics.jsonl")]
shares = [record["time"]["data_share"] for record in records if record["kind"] == "step"][10:]
print(f"{100 * sum(shares) / len(shares):.3f}")')"
if awk -v share="$share" 'BEGIN { exit !(share <= 1) }'; then verdict "$share%" ok; else verdict "$share%" short; fi
