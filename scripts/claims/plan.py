"""Compares plans with runs. Called by plan.sh beside it: plan.py DIRECTORY_OF_PROGRAMS SCRATCH [NUMBER...].

Makes models of five sizes whose weights are a hole in a file, runs `plan` and then `finetune` with each of the settings
(or only the given ones), and prints six numbers. Of the pool, in percent of its measured peak: the largest excess and
the largest shortfall of the planned peak, and the largest difference of a class of memory at the peak. Of the process,
in percent of the measured peak of its anonymous memory: the largest excess and the largest shortfall of the planned
peak, where differences of up to 32 MiB count as none; and the number of runs whose process is outside of +10 % and -5
%. A line for every run goes to stderr.
"""

import json
import os
import shutil
import struct
import subprocess
import sys

WORDS = "good bad the plot of film was very and not it is a cast end".split()

# hidden size, blocks, feed-forward size, heads, vocabulary
SIZES = {
    "tiny": (64, 2, 256, 4, 1000), "small": (128, 4, 512, 4, 1000), "wide": (384, 3, 1536, 6, 1000),
    "deep": (192, 10, 768, 6, 1000), "large": (512, 6, 2048, 8, 40000),
}

# Differences of the process's peak that count as none: what heap and stacks of two processes differ by.
TOLERATED = 32 << 20

# A run over tensor-parallel ranks writes neither models nor checkpoints.
UNSAVED = "save.which=none checkpoint.every=never checkpoint.minutes=0"

# size, ranks, longest row, equal lengths, batch, micro-batch, settings
RUNS = [
    ("tiny", 1, 16, True, 8, 8, ""),
    ("tiny", 1, 64, True, 8, 2, "train.recompute=blocks"),
    ("tiny", 1, 64, False, 16, 16, ""),
    ("tiny", 2, 32, True, 8, 4, "parallel.zero=0"),
    ("tiny", 2, 32, True, 8, 1, "parallel.zero=1 train.gradient_sum=elastic"),
    ("tiny", 4, 32, True, 16, 1, "parallel.zero=2 train.gradient_sum=elastic train.recompute=blocks"),
    ("tiny", 4, 64, True, 8, 2, "parallel.zero=3 model.dtype=bf16"),
    ("small", 1, 128, True, 8, 8, ""),
    ("small", 1, 128, True, 8, 8, "train.recompute=blocks"),
    ("small", 1, 128, False, 32, 16, ""),
    ("small", 1, 48, True, 12, 1, "train.gradient_sum=elastic model.dtype=f16"),
    ("small", 2, 128, True, 8, 4, "parallel.zero=1"),
    ("small", 2, 128, True, 8, 2, "parallel.zero=2 train.recompute=blocks"),
    ("small", 2, 128, False, 32, 8, "parallel.zero=3"),
    ("small", 2, 64, True, 14, 1, "parallel.zero=3 train.gradient_sum=elastic"),
    ("small", 4, 64, True, 16, 4, "parallel.zero=0 model.dtype=bf16"),
    ("small", 4, 64, True, 8, 2, "parallel.zero=3 parallel.prefetch=false"),
    ("wide", 1, 64, True, 4, 4, ""),
    ("wide", 1, 64, True, 4, 4, "model.dtype=bf16"),
    ("wide", 1, 128, True, 8, 8, "train.recompute=blocks model.dtype=f16"),
    ("wide", 2, 64, True, 8, 4, "parallel.zero=3"),
    ("wide", 2, 64, True, 8, 2, "parallel.zero=1 model.dtype=f16 train.gradient_sum=elastic"),
    ("wide", 4, 32, True, 4, 1, "parallel.zero=2"),
    ("wide", 4, 32, True, 4, 1, "parallel.zero=3 train.recompute=blocks model.dtype=bf16"),
    ("deep", 1, 96, True, 4, 4, ""),
    ("deep", 1, 96, True, 4, 2, "train.recompute=blocks train.gradient_sum=elastic"),
    ("deep", 2, 96, True, 4, 2, "parallel.zero=2"),
    ("deep", 2, 96, True, 4, 2, "parallel.zero=3 train.recompute=blocks"),
    ("deep", 4, 64, True, 8, 2, "parallel.zero=3 model.dtype=bf16 eval.batch_size=16"),
    ("deep", 1, 32, True, 2, 2, "eval.batch_size=32 train.recompute=blocks"),
    ("large", 1, 64, True, 4, 4, "checkpoint.every=never checkpoint.minutes=0"),
    ("large", 1, 128, False, 8, 8, ""),
    ("large", 1, 64, False, 8, 4, "model.dtype=bf16 train.recompute=blocks"),
    ("large", 1, 32, True, 4, 2, "train.offload=true"),
    ("large", 2, 64, False, 8, 4, "parallel.zero=0"),
    ("large", 2, 64, False, 8, 2, "parallel.zero=1 train.gradient_sum=elastic"),
    ("large", 4, 32, True, 4, 1, "parallel.zero=3 train.recompute=blocks"),
    ("small", 2, 128, True, 8, 8, f"parallel.tensor=2 {UNSAVED}"),
    ("wide", 4, 64, True, 8, 4, f"parallel.tensor=2 parallel.zero=3 model.dtype=bf16 {UNSAVED}"),
    ("deep", 4, 96, True, 4, 2, f"parallel.tensor=2 parallel.zero=1 train.recompute=blocks {UNSAVED}"),
    ("large", 2, 64, True, 4, 4, f"parallel.tensor=2 {UNSAVED}"),
]


def linear(name, outputs, inputs):
    return [(f"bert.{name}.weight", [outputs, inputs]), (f"bert.{name}.bias", [outputs])]


def norm(name, size):
    return [(f"bert.{name}.LayerNorm.weight", [size]), (f"bert.{name}.LayerNorm.bias", [size])]


def make_model(directory, hidden, layers, forward, heads, vocabulary):
    os.makedirs(directory)
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": vocabulary, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": forward, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 128,
        "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    }
    with open(f"{directory}/config.json", "w", encoding="utf-8") as out:
        json.dump(config, out)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokens += [f"[unused{i}]" for i in range(vocabulary - len(tokens))]
    with open(f"{directory}/vocab.txt", "w", encoding="utf-8") as out:
        out.writelines(token + "\n" for token in tokens)
    tensors = [("bert.embeddings.word_embeddings.weight", [vocabulary, hidden])]
    tensors += [("bert.embeddings.position_embeddings.weight", [128, hidden])]
    tensors += [("bert.embeddings.token_type_embeddings.weight", [2, hidden])]
    tensors += norm("embeddings", hidden)
    for at in (f"encoder.layer.{layer}" for layer in range(layers)):
        for part in ("query", "key", "value"):
            tensors += linear(f"{at}.attention.self.{part}", hidden, hidden)
        tensors += linear(f"{at}.attention.output.dense", hidden, hidden) + norm(f"{at}.attention.output", hidden)
        tensors += linear(f"{at}.intermediate.dense", forward, hidden)
        tensors += linear(f"{at}.output.dense", hidden, forward) + norm(f"{at}.output", hidden)
    tensors += linear("pooler.dense", hidden, hidden)
    header, end = {}, 0
    for name, shape in tensors:
        start, values = end, 1
        for length in shape:
            values *= length
        end += 4 * values
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(f"{directory}/model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)


def make_data(path, samples, length, equal):
    with open(path, "w", encoding="utf-8") as out:
        for i in range(samples):
            # Two places are for the tokens at the ends. A quarter of the unequal rows are of full length.
            words = length - 2 if equal or i % 4 == 3 else 1 + i * 7 % (length - 2)
            text = " ".join(WORDS[(i + word) % len(WORDS)] for word in range(words))
            out.write(json.dumps({"text": text, "label": ["no", "yes"][i % 2]}) + "\n")


def percent(part, whole):
    return 100.0 * part / whole


def main():
    programs, scratch, *numbers = sys.argv[1:]
    for name, sizes in SIZES.items():
        make_model(f"{scratch}/{name}", *sizes)
    worst = [0.0] * 5
    outside = 0
    for number, (size, ranks, length, equal, batch, micro, settings) in enumerate(RUNS):
        if numbers and str(number) not in numbers:
            continue
        directory = f"{scratch}/run-{number}"
        os.makedirs(directory)
        make_data(f"{directory}/train.jsonl", 4 * batch, length, equal)
        make_data(f"{directory}/eval.jsonl", 2 * batch + 1, length, equal)
        sets = [
            f"model.path={scratch}/{size}", "data.task=classification", f"data.train={directory}/train.jsonl",
            f"data.eval={directory}/eval.jsonl", "data.max_length=128", f"train.batch_size={batch}", "train.epochs=1",
            f"train.micro_batch_size={micro}", f"output.dir={directory}/out", "log.quiet=true", *settings.split(),
        ]
        if "checkpoint.every" not in settings:
            sets.append("checkpoint.every=2 steps")

        def run(program, *more):
            command = [f"{programs}/{program}", "--ranks", str(ranks), *more, *sets]
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        plan = json.loads(run("plan", "--json"))
        planned = plan["pool"]
        run("finetune")
        with open(f"{directory}/out/metrics.jsonl", encoding="utf-8") as lines:
            measured = json.loads(lines.readlines()[-1])["time"]
        peak = measured["pool_peak_bytes"]
        excess = percent(planned["peak_bytes"] - peak, peak)
        classes = max(
            percent(abs(bytes_ - measured[f"pool_{name}_bytes"]), peak) for name, bytes_ in planned["at_peak"].items()
        )
        touched = percent(planned["touched_bytes"] - measured["pool_touched_bytes"], measured["pool_touched_bytes"])
        process, used = plan["process"]["peak_anonymous_bytes"], measured["peak_anonymous_bytes"]
        of_process = percent(process - used, used)
        counts = of_process if abs(process - used) > TOLERATED else 0.0
        outside += not -5 <= counts <= 10
        found = [excess, -excess, classes, counts, -counts]
        worst = [max(pair) for pair in zip(worst, found)]
        line = f"{size} {ranks} ranks, {micro} of {batch} x {length}{'' if equal else ' at most'} {settings}"
        print(
            f"{line}: planned {planned['peak_bytes']}, measured {peak}, {excess:+.2f} %, with gaps {touched:+.2f} %; "
            f"process planned {process >> 20} MiB, measured {used >> 20} MiB, {of_process:+.2f} %",
            file=sys.stderr, flush=True,
        )
        # Checkpoints of all runs together would fill a small disk.
        shutil.rmtree(directory)
    print(*(f"{number:.2f}" for number in worst), outside)


if __name__ == "__main__":
    main()
