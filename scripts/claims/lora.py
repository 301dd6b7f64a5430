"""LoRA, DoRA and IA3 here and in PEFT, on models of real size.

    python lora.py PROGRAMS SCRATCH MINILM TEXT

SCRATCH has SmolLM2 in `smollm2`; MINILM is a BERT without a classifier. For each model PEFT makes an adapter with
random matrices and computes logits and gradients in 64-bit floats; `forward` reads the adapter. Then `finetune` and
PEFT train SmolLM2 for 20 steps from its last adapter, which is LoRA's, on the beginnings of passages of TEXT;
`finetune` also on two ranks with ZeRO-3, on three tensor-parallel ranks and on two pipeline stages. PEFT reads the
adapter that `finetune` wrote, and `convert` merges it. Prints
`lora LOGITS,GRADIENTS,LOSSES,LAYOUTS,READ,MERGED ok|short`: the largest relative differences, of a gradient relative to
its own norm. Called by lora.sh; runs in the environment of scripts/python_env.sh.
"""

import sys
from functools import partial
from pathlib import Path

from adapters import (  # sets what the packages below read
    LORA, compare_adapter, cross_entropy, in_every_layout, judge, largest, logits_of, peft_logits, peft_losses,
    relative, run, sample_updates, training_of, with_adapter, write_passages, write_t5,
)

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

LOGITS, GRADIENTS, LOSSES = 1e-5, 1e-4, 1e-4
STEPS, BATCH, LENGTH = 20, 4, 64
TRAINING = training_of(STEPS, BATCH, LENGTH, 2e-4)


def write_bases(scratch, minilm):
    """A classifier of two classes on MiniLM, and a T5 of t5-small's width with random weights."""
    torch.manual_seed(7)
    AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=2).save_pretrained(scratch / "minilm")
    write_t5(scratch / "t5")


def inputs_of(name, vocabulary, generator):
    def ids(length, most=vocabulary):
        return torch.randint(3, most, (2, length), generator=generator)

    inputs = {"input_ids": ids(48), "attention_mask": torch.ones(2, 48, dtype=torch.int64)}
    inputs["attention_mask"][1, 40:] = 0
    if name == "minilm":
        return inputs | {"token_type_ids": torch.zeros(2, 48, dtype=torch.int64), "labels": torch.tensor([1, 0])}
    return inputs | {"labels": ids(12) if name == "t5" else
                     torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], -100)}


def compare(name, kind, settings, programs, scratch):
    """Logits and gradients of an adapter that PEFT writes."""
    base, adapter, own = scratch / name, scratch / f"{name}_adapter", scratch / f"{name}_compared"
    own.mkdir(exist_ok=True)
    tuned = with_adapter(kind.from_pretrained(base, attn_implementation="eager"), settings)
    inputs = inputs_of(name, tuned.config.vocab_size, sample_updates(tuned, adapter))
    loss = partial(cross_entropy, shifts=name == "smollm2")
    options = ["--model", base, "--adapter", adapter]
    logits, gradients, count = compare_adapter(programs / "forward", tuned, inputs, loss, own, options)
    print(f"{name}: logits {logits:.1e}, {count} gradients at most {gradients:.1e}", file=sys.stderr)
    return logits, gradients


def main():
    programs, scratch, minilm, text = map(Path, sys.argv[1:])
    write_bases(scratch, minilm)
    compared = [compare(name, kind, settings, programs, scratch) for name, kind, settings in [
        ("smollm2", AutoModelForCausalLM, LORA | {"use_dora": True}),
        ("smollm2", AutoModelForCausalLM, {"task_type": "CAUSAL_LM", "feedforward_modules": ["down_proj"],
                                           "target_modules": ["k_proj", "v_proj", "down_proj"]}),
        ("smollm2", AutoModelForCausalLM, LORA),
        ("minilm", AutoModelForSequenceClassification, {"task_type": "SEQ_CLS", "r": 8, "lora_alpha": 16}),
        ("t5", AutoModelForSeq2SeqLM, {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v", "wi", "wo"], "r": 8,
                                       "lora_alpha": 8, "use_rslora": True}),
    ]]
    rows = write_passages(text, scratch / "train.jsonl", STEPS * BATCH, 600)
    theirs = peft_losses(scratch / "smollm2", scratch / "smollm2_adapter", scratch / "smollm2", rows, TRAINING)
    sets = TRAINING | {"model.path": scratch / "smollm2", "adapter.path": scratch / "smollm2_adapter",
                       "data.train": scratch / "train.jsonl"}
    tuned, ours, layouts = in_every_layout(programs, sets, scratch / "runs")
    losses = largest(ours, theirs)
    print(f"losses {ours[0]:.4f} -> {ours[-1]:.4f}, PEFT {theirs[0]:.4f} -> {theirs[-1]:.4f}", file=sys.stderr)

    path = scratch / "smollm2_compared/inputs.safetensors"
    apart = logits_of(programs, path, scratch / "smollm2", "--adapter", tuned)
    read = relative(apart, peft_logits(path, scratch / "smollm2", tuned))
    run(programs / "convert", scratch / "smollm2", scratch / "merged", "--merge", tuned)
    merged = relative(logits_of(programs, path, scratch / "merged"), apart)
    logits, gradients = (max(values) for values in zip(*compared))
    judge("lora ", [(logits, LOGITS), (gradients, GRADIENTS), (losses, LOSSES), (layouts, LOSSES), (read, LOGITS),
                    (merged, LOGITS)])


if __name__ == "__main__":
    main()
