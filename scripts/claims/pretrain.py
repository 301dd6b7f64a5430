"""The PyTorch side of the claims pretrain-gpt2, pretrain-bert and pretrain-t5.

    python pretrain.py prepare KIND ASSETS DIR
    python pretrain.py compare KIND DIR [--threads 2]

`prepare` makes DIR/model, a small model of the kind that transformers initializes from a fixed seed, without dropout,
DIR/texts.jsonl, the State of the Union addresses with a document for each, and DIR/recipe.toml. `compare` trains the
same model in PyTorch on DIR/samples.jsonl, the samples that `corpus samples --json` prints, and compares the losses of
all steps with those that pretrain left in DIR/run: the last 20 by their mean, and the one of step 20 by its distance
in relation to the first loss.

The last line on stdout is `pretrain-KIND FIGURE ok|short`, exit status 0 or 1.
"""

import argparse
import json
import math
import os
import sys
import tomllib
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from scratch_gpt2 import learn, say  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForPreTraining,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

# Tokens of a sample, samples of a step, steps.
LENGTH, BATCH, STEPS = 128, 8, 300
# The step whose losses are compared, and the number of last steps whose mean is.
SAME_STEP, LAST = 20, 20
SENTINELS = 100
RECIPE = """[model]
path = "model"

[data]
task = "pretrain"
corpora = ["tokens"]
split = "1,0,0"
sequence_length = {length}
{objective}
[train]
steps = {steps}
batch_size = {batch}
lr = 5e-4
schedule = "linear"
warmup = 30
weight_decay = 0.01
clip_norm = 1.0
seed = 7

[save]
which = "last"

[log]
every = 1

[output]
dir = "run"

[device]
name = "cpu"
"""


def gpt2(assets):
    files = assets / "tokenizers/gpt2"
    tokenizer = GPT2TokenizerFast(str(files / "vocab.json"), str(files / "merges.txt"))
    config = GPT2Config(n_layer=4, n_embd=256, n_head=4, n_positions=LENGTH, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0)
    return GPT2LMHeadModel(config), tokenizer, "document_mask = true\neod_mask_loss = true\n"


def bert(assets):
    tokenizer = BertTokenizerFast(str(assets / "tokenizers/bert/vocab.txt"))
    config = BertConfig(vocab_size=len(tokenizer), num_hidden_layers=4, hidden_size=256, num_attention_heads=4,
                        intermediate_size=1024, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)
    return BertForPreTraining(config), tokenizer, 'objective = "masked"\n\n[data.masking]\nsecond_sentence = "next"\n'


def t5(assets):
    files = assets / "tokenizers/gpt2"
    tokenizer = GPT2TokenizerFast(str(files / "vocab.json"), str(files / "merges.txt"))
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(SENTINELS))]
    tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "</s>", "additional_special_tokens": sentinels})
    pad, eos = tokenizer.convert_tokens_to_ids(["<pad>", "</s>"])
    config = T5Config(vocab_size=len(tokenizer), d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4,
                      dropout_rate=0.0, pad_token_id=pad, eos_token_id=eos, decoder_start_token_id=pad)
    return T5ForConditionalGeneration(config), tokenizer, 'objective = "span-corruption"\n'


KINDS = {"gpt2": gpt2, "bert": bert, "t5": t5}


def prepare(kind, assets, directory):
    torch.manual_seed(0)
    model, tokenizer, objective = KINDS[kind](assets)
    model.save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    with open(directory / "texts.jsonl", "w", encoding="utf-8") as texts:
        for file in sorted((assets / "prose/sotu").glob("*.txt")):
            texts.write(json.dumps({"text": file.read_text(encoding="utf-8")}) + "\n")
    recipe = RECIPE.format(length=LENGTH, steps=STEPS, batch=BATCH, objective=objective)
    (directory / "recipe.toml").write_text(recipe)


def columns(samples, names):
    """Named fields of samples of one length as tensors of [B, L] or [B]."""
    return {name: torch.tensor([sample[name] for sample in samples]) for name in names if name in samples[0]}


def loss_gpt2(model, samples):
    batch = columns(samples, ["input_ids", "labels", "document_starts"])
    starts = batch["document_starts"]  # [B, L]
    at = torch.arange(starts.shape[1])
    seen = (starts[:, :, None] == starts[:, None, :]) & (at[:, None] >= at[None, :])  # [B, L, L]
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    logits = model(batch["input_ids"], attention_mask=mask, position_ids=at[None] - starts).logits  # [B, L, V]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def loss_bert(model, samples):
    batch = columns(samples, ["input_ids", "attention_mask", "token_type_ids", "labels"])
    following = torch.tensor([sample["next_sentence"] for sample in samples]).flatten()  # [B]
    return model(**batch, next_sentence_label=following).loss


def loss_t5(model, samples):
    longest = max(len(sample["labels"]) for sample in samples)
    for sample in samples:
        sample["labels"] = sample["labels"] + [-100] * (longest - len(sample["labels"]))
    return model(**columns(samples, ["input_ids", "attention_mask", "labels"])).loss


LOSSES = {"gpt2": loss_gpt2, "bert": loss_bert, "t5": loss_t5}
CLASSES = {"gpt2": GPT2LMHeadModel, "bert": BertForPreTraining, "t5": T5ForConditionalGeneration}


def compare(kind, directory):
    train = tomllib.loads((directory / "recipe.toml").read_text())["train"] | {"betas": [0.9, 0.999]}
    records = [json.loads(line) for line in (directory / "run/metrics.jsonl").read_text().splitlines()]
    ours = [record["loss"] for record in records if record["kind"] == "step"]
    samples = [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]
    model = CLASSES[kind].from_pretrained(directory / "model").train()
    steps = iter(samples[first:first + BATCH] for first in range(0, STEPS * BATCH, BATCH))
    theirs = learn(model, lambda: LOSSES[kind](model, next(steps)), train)
    early = abs(ours[SAME_STEP - 1] - theirs[SAME_STEP - 1]) / theirs[0]
    end, other = (sum(losses[-LAST:]) / LAST for losses in (ours, theirs))
    apart = end / other - 1
    say(f"loss of step 1: ours {ours[0]:.6f}, PyTorch {theirs[0]:.6f}; of step {SAME_STEP}: {early:.1e} apart; "
        f"mean of the last {LAST}: ours {end:.4f}, PyTorch {other:.4f}")
    is_ok = len(ours) == STEPS and early <= 1e-4 and math.isfinite(apart) and abs(apart) <= 0.01
    print(f"pretrain-{kind} {early:.1e},{end:.4f}/{other:.4f}={100 * apart:+.2f}% {'ok' if is_ok else 'short'}")
    sys.exit(0 if is_ok else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("prepare")
    two = parts.add_parser("compare")
    for part in (one, two):
        part.add_argument("kind", choices=KINDS)
    one.add_argument("assets", type=Path)
    one.add_argument("dir", type=Path)
    two.add_argument("dir", type=Path)
    two.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare(arguments.kind, arguments.assets, arguments.dir)
        return
    torch.set_num_threads(arguments.threads)
    compare(arguments.kind, arguments.dir)


if __name__ == "__main__":
    main()
