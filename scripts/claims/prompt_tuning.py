"""Prompt tuning here and in PEFT, on models of real size.

    python prompt_tuning.py PROGRAMS SCRATCH TEXT

SCRATCH has SmolLM2 in `smollm2`. For it and a T5 with random weights PEFT makes adapters with random virtual tokens,
before the encoder of the T5 and before both stacks, and computes logits and gradients in 64-bit floats; `forward` reads
the adapters. Then `finetune` and PEFT train SmolLM2 for 20 steps on the beginnings of passages of TEXT, from virtual
tokens that begin with the embeddings of a text; `finetune` also on two ranks with ZeRO-3, on three tensor-parallel
ranks and on two pipeline stages. PEFT reads the adapter that `finetune` wrote. Prints
`prompt-tuning LOGITS,GRADIENTS,LOSSES,LAYOUTS,READ ok|short`: the largest relative differences, of a gradient relative
to its own norm. Called by prompt-tuning.sh; runs in the environment of scripts/python_env.sh.
"""

import json
import sys
from pathlib import Path

from adapters import (  # sets what the packages below read
    compare_adapter, in_every_layout, judge, largest, logits_of, peft_logits, peft_losses, relative, sample_updates,
    training_of, with_adapter, write_passages, write_t5,
)

import torch
from make_adapters import outputs_of, prompted_loss
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

LOGITS, GRADIENTS, LOSSES = 1e-5, 1e-4, 1e-4
STEPS, BATCH, LENGTH, VIRTUAL = 20, 4, 64, 12
TRAINING = training_of(STEPS, BATCH, LENGTH, 1e-2)
PROMPT_TEXT = "A passage of an old novel about whales and the sea:"

PROMPT = {"task_type": "CAUSAL_LM", "num_virtual_tokens": VIRTUAL}
OF_T5 = {"task_type": "SEQ_2_SEQ_LM", "num_virtual_tokens": 5}


def inputs_of(tuned, generator):
    def ids(length):
        return torch.randint(3, tuned.config.vocab_size, (2, length), generator=generator)

    mask = torch.ones(2, 48, dtype=torch.int64)
    mask[1, 40:] = 0
    inputs = {"input_ids": ids(48), "attention_mask": mask}
    is_decoder = tuned.peft_config["default"].task_type == "CAUSAL_LM"
    return inputs | {"labels": torch.where(mask == 1, inputs["input_ids"], -100) if is_decoder else ids(12)}


def compare(name, base, kind, settings, programs, scratch):
    """Logits and gradients of an adapter that PEFT writes, which stays in the directory of the name."""
    adapter, own = scratch / name, scratch / f"{name}_compared"
    own.mkdir()
    tuned = with_adapter(kind.from_pretrained(scratch / base, attn_implementation="eager"), settings)
    inputs = inputs_of(tuned, sample_updates(tuned, adapter))
    if settings.get("num_transformer_submodules") == 2:
        mark_decoder_prompt(adapter)
    options = ["--model", scratch / base, "--adapter", adapter]
    logits, gradients, _ = compare_adapter(programs / "forward", tuned, inputs, prompted_loss, own, options, outputs_of)
    print(f"{name}: logits {logits:.1e}, gradient {gradients:.1e}", file=sys.stderr)
    return logits, gradients


def mark_decoder_prompt(adapter):
    """Virtual tokens of the decoder are a key of our own: PEFT computes them no longer."""
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder_prompt": True}), encoding="utf-8")


def write_text_prompt(scratch, directory):
    """The virtual tokens that PEFT makes of the text."""
    settings = PROMPT | {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": PROMPT_TEXT,
                         "tokenizer_name_or_path": str(scratch / "smollm2")}
    model = AutoModelForCausalLM.from_pretrained(scratch / "smollm2")
    with_adapter(model, settings).save_pretrained(directory)


def main():
    programs, scratch, text = map(Path, sys.argv[1:])
    base = scratch / "smollm2"
    write_t5(scratch / "t5")
    compared = [compare(*case, programs, scratch) for case in [
        ("prompt", "smollm2", AutoModelForCausalLM, PROMPT),
        ("t5_encoder", "t5", AutoModelForSeq2SeqLM, OF_T5 | {"num_transformer_submodules": 1}),
        ("t5_both", "t5", AutoModelForSeq2SeqLM, OF_T5 | {"num_transformer_submodules": 2}),
    ]]
    rows = write_passages(text, scratch / "train.jsonl", STEPS * BATCH, 600)
    write_text_prompt(scratch, scratch / "text_prompt")
    theirs = peft_losses(base, scratch / "text_prompt", base, rows, TRAINING)
    sets = TRAINING | {"model.path": base, "data.train": scratch / "train.jsonl", "adapter.method": "prompt",
                       "adapter.virtual_tokens": VIRTUAL, "adapter.prompt_text": PROMPT_TEXT}
    tuned, ours, layouts = in_every_layout(programs, sets, scratch / "runs")
    losses = largest(ours, theirs)
    print(f"losses {ours[0]:.4f} -> {ours[-1]:.4f}, PEFT {theirs[0]:.4f} -> {theirs[-1]:.4f}", file=sys.stderr)

    path = scratch / "prompt_compared/inputs.safetensors"
    read = relative(logits_of(programs, path, base, "--adapter", tuned), peft_logits(path, base, tuned))
    logits, gradients = (max(values) for values in zip(*compared))
    judge("prompt-tuning ", [(logits, LOGITS), (gradients, GRADIENTS), (losses, LOSSES), (layouts, LOSSES),
                             (read, LOGITS)])


if __name__ == "__main__":
    main()
