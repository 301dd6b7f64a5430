"""LoRA, DoRA and IA3 here and in PEFT, on models of real size.

    python lora.py PROGRAMS SCRATCH MINILM TEXT

SCRATCH has SmolLM2 in `smollm2`; MINILM is a BERT without a classifier. For each model PEFT makes an adapter with
random matrices and computes logits and gradients in 64-bit floats; `forward` reads the adapter. Then `finetune` and
PEFT train SmolLM2 for 20 steps from its last adapter, which is LoRA's, on the beginnings of passages of TEXT;
`finetune` also on two ranks with ZeRO-3, on three tensor-parallel ranks and on two pipeline stages. PEFT reads the
adapter that `finetune` wrote, and `convert` merges it. Prints `lora LOGITS,GRADIENTS,LOSSES,LAYOUTS,READ,MERGED ok|short`: the largest relative
differences, of a gradient relative to its own norm. Called by lora.sh; runs in the environment of
scripts/python_env.sh.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

import torch  # noqa: E402
from goldens import in_64_bits  # noqa: E402
from make_adapters import config_of, name_in_file  # noqa: E402
from peft import PeftModel, get_peft_model  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer, T5Config,
    T5ForConditionalGeneration,
)

LOGITS, GRADIENTS, LOSSES = 1e-5, 1e-4, 1e-4
STEPS, BATCH, LENGTH, RATE = 20, 4, 64, 2e-4
LAYOUTS = {
    "ZeRO-3": ["--ranks", "2", "--set", "parallel.zero=3", "--set", "train.micro_batch_size=2"],
    "tensor 3": ["--ranks", "3", "--set", "parallel.tensor=3"],
    "pipeline 2": ["--ranks", "2", "--set", "parallel.pipeline=2", "--set", "train.micro_batch_size=2"],
}


def run(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {program}\n  reason: exit status {done.returncode}\n  fix: see its message above")


def relative(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def write_bases(scratch, minilm):
    """A classifier of two classes on MiniLM, and a T5 of t5-small's width with random weights."""
    torch.manual_seed(7)
    AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=2).save_pretrained(scratch / "minilm")
    config = T5Config(vocab_size=4000, d_model=512, d_kv=64, d_ff=2048, num_layers=3, num_heads=8, dropout_rate=0.0,
                      decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(scratch / "t5")


def inputs_of(name, vocabulary, generator):
    def ids(length, most=vocabulary):
        return torch.randint(3, most, (2, length), generator=generator)

    inputs = {"input_ids": ids(48), "attention_mask": torch.ones(2, 48, dtype=torch.int64)}
    inputs["attention_mask"][1, 40:] = 0
    if name == "minilm":
        return inputs | {"token_type_ids": torch.zeros(2, 48, dtype=torch.int64), "labels": torch.tensor([1, 0])}
    return inputs | {"labels": ids(12) if name == "t5" else
                     torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], -100)}


def loss_of(output, labels, shifts):
    logits = output.logits
    if shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def compare_adapter(name, kind, settings, programs, scratch):
    """Logits and gradients of an adapter that PEFT writes."""
    base, adapter = scratch / name, scratch / f"{name}_adapter"
    tuned = get_peft_model(kind.from_pretrained(base, attn_implementation="eager"),
                           config_of(settings))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter_name, parameter in sorted(tuned.named_parameters()):
            if "lora_B" in parameter_name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
            elif "ia3_l" in parameter_name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    tuned.save_pretrained(adapter)
    inputs = inputs_of(name, tuned.config.vocab_size, generator)
    path, out = scratch / f"{name}_inputs.safetensors", scratch / f"{name}_out.safetensors"
    save_file(inputs, path)
    with in_64_bits():
        wide = tuned.double().eval()
        output = wide(**inputs)
        loss_of(output, inputs["labels"], name == "smollm2").backward()
    run(programs / "forward", "--model", base, "--adapter", adapter, "--inputs", path, "--out", out, "--grads")
    ours = load_file(out)
    seen = inputs["attention_mask"].bool() if name == "smollm2" else slice(None)
    logits = relative(ours["logits"].reshape(output.logits.shape)[seen], output.logits[seen])
    gradients = [relative(ours[f"grad.{name_in_file(name)}"], parameter.grad)
                 for name, parameter in wide.named_parameters() if parameter.requires_grad]
    assert len(gradients) == sum(name.startswith("grad.") for name in ours)
    print(f"{name}: logits {logits:.1e}, {len(gradients)} gradients at most {max(gradients):.1e}", file=sys.stderr)
    return logits, max(gradients)


def passages(text, scratch):
    text = " ".join(text.read_text(encoding="utf-8").split())
    rows = [text[start:start + 600] for start in range(0, 600 * STEPS * BATCH, 600)]
    path = scratch / "train.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return path, rows


def peft_losses(scratch, rows):
    tokenizer = AutoTokenizer.from_pretrained(scratch / "smollm2")
    model = AutoModelForCausalLM.from_pretrained(scratch / "smollm2", attn_implementation="eager")
    model = PeftModel.from_pretrained(model, scratch / "smollm2_adapter", is_trainable=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        ids = [tokenizer(row, add_special_tokens=False)["input_ids"][:LENGTH]
               for row in rows[step * BATCH:(step + 1) * BATCH]]
        assert all(len(row) == LENGTH for row in ids), "the passages are too short"
        ids = torch.tensor(ids)
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def our_losses(programs, scratch, train, name, arguments):
    out = scratch / f"run_{name.replace(' ', '_')}"
    sets = {"model.path": scratch / "smollm2", "adapter.method": "lora", "adapter.path": scratch / "smollm2_adapter",
            "data.task": "language", "data.train": train, "data.max_length": LENGTH, "data.shuffle": "false",
            "train.steps": STEPS, "train.batch_size": BATCH, "train.lr": RATE, "train.schedule": "constant",
            "train.weight_decay": 0.01, "train.clip_norm": 1.0, "log.every": 1, "log.quiet": "true",
            "checkpoint.minutes": 0, "output.dir": out}
    run(programs / "finetune", *(f"--set={key}={value}" for key, value in sets.items()), *arguments)
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record.get("kind") == "step"]
    assert len(losses) == STEPS, f"{len(losses)} records of steps"
    return out / "model", losses


def largest(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def logits_of(programs, scratch, name, model, *arguments):
    out = scratch / f"{name}.safetensors"
    run(programs / "forward", "--model", model, *arguments, "--inputs", scratch / "smollm2_inputs.safetensors",
        "--out", out)
    return load_file(out)["logits"]


def main():
    programs, scratch, minilm, text = map(Path, sys.argv[1:])
    write_bases(scratch, minilm)
    compared = [compare_adapter(name, kind, settings, programs, scratch) for name, kind, settings in [
        ("smollm2", AutoModelForCausalLM, {"task_type": "CAUSAL_LM", "target_modules": "all-linear", "r": 16,
                                           "lora_alpha": 32, "use_dora": True}),
        ("smollm2", AutoModelForCausalLM, {"task_type": "CAUSAL_LM", "feedforward_modules": ["down_proj"],
                                           "target_modules": ["k_proj", "v_proj", "down_proj"]}),
        ("smollm2", AutoModelForCausalLM, {"task_type": "CAUSAL_LM", "target_modules": "all-linear", "r": 16,
                                           "lora_alpha": 32}),
        ("minilm", AutoModelForSequenceClassification, {"task_type": "SEQ_CLS", "r": 8, "lora_alpha": 16}),
        ("t5", AutoModelForSeq2SeqLM, {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v", "wi", "wo"], "r": 8,
                                       "lora_alpha": 8, "use_rslora": True}),
    ]]
    train, rows = passages(text, scratch)
    theirs = peft_losses(scratch, rows)
    tuned, ours = our_losses(programs, scratch, train, "one", ["--ranks", "1"])
    losses = largest(ours, theirs)
    print(f"losses {ours[0]:.4f} -> {ours[-1]:.4f}, PEFT {theirs[0]:.4f} -> {theirs[-1]:.4f}", file=sys.stderr)
    layouts = 0.0
    for name, arguments in LAYOUTS.items():
        difference = largest(our_losses(programs, scratch, train, name, arguments)[1], ours)
        print(f"{name}: losses {difference:.1e}", file=sys.stderr)
        layouts = max(layouts, difference)

    apart = logits_of(programs, scratch, "apart", scratch / "smollm2", "--adapter", tuned)
    inputs = load_file(scratch / "smollm2_inputs.safetensors")
    seen = inputs["attention_mask"].bool()
    model = AutoModelForCausalLM.from_pretrained(scratch / "smollm2", attn_implementation="eager")
    with torch.no_grad(), in_64_bits():
        theirs = PeftModel.from_pretrained(model, tuned).double().eval()(**inputs).logits
    read = relative(apart.reshape(theirs.shape)[seen], theirs[seen])
    run(programs / "convert", scratch / "smollm2", scratch / "merged", "--merge", tuned)
    merged = relative(logits_of(programs, scratch, "merged", scratch / "merged").reshape(theirs.shape)[seen],
                      apart.reshape(theirs.shape)[seen])
    logits, gradients = (max(values) for values in zip(*compared))
    figures = [(logits, LOGITS), (gradients, GRADIENTS), (losses, LOSSES), (layouts, LOSSES), (read, LOGITS),
               (merged, LOGITS)]
    figure = ",".join(f"{value:.1e}" for value, _ in figures)
    print(f"lora {figure} {'ok' if all(value <= bound for value, bound in figures) else 'short'}")
    sys.exit(any(value > bound for value, bound in figures))


if __name__ == "__main__":
    main()
