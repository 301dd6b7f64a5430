"""DPO and IPO here and in TRL, with LoRA, dropout 0.

    python dpo.py PROGRAMS SCRATCH PACKAGES TEXT SIZE

SCRATCH has SmolLM2 in `smollm2`; PACKAGES is a directory with TRL. SIZE is `smollm2`, or `tiny` for a Llama with random
weights and SmolLM2's vocabulary. PEFT makes an adapter with random matrices, from which `finetune` and TRL's DPOTrainer
train for 20 steps on the same pairs of passages of TEXT; the reference is the model with that adapter. `finetune`
trains on two ranks with ZeRO-3, too, and with micro-batches of one pair. Prints `dpo LOSSES,REWARDS,NORMS,LAYOUTS
ok|short`: the largest differences of losses and of norms of gradients, relative, of mean rewards relative to the
largest of the run. Called by dpo.sh; runs in the environment of scripts/python_env.sh.
"""

import json
import sys
from pathlib import Path

from adapters import (  # sets what the packages below read
    finetune, judge, largest, sample_updates, training_of, with_lora,
)

# What is in both is the environment's.
sys.path.append(sys.argv[3])

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from datasets.table import InMemoryTable  # noqa: E402
from peft import PeftModel  # noqa: E402
from torch.utils.data import SequentialSampler  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: E402
from trl import DPOConfig, DPOTrainer  # noqa: E402

BOUND = 1e-4
STEPS, BATCH, RATE = 20, 4, 1e-3
KINDS = {"dpo": ("sigmoid", 0.1), "ipo": ("ipo", 0.3)}
LAYOUTS = {
    "ZeRO-3": ["--ranks", "2", "--set", "parallel.zero=3", "--set", "train.micro_batch_size=2"],
    "micro-batches of one": ["--ranks", "1", "--set", "train.micro_batch_size=1"],
}
# Ours and TRL's.
REWARDS = {"reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected", "reward_margin": "rewards/margins"}


def write_model(scratch, size):
    """The model and an adapter with random matrices."""
    base = scratch / "smollm2"
    if size == "tiny":
        torch.manual_seed(7)
        tokenizer = AutoTokenizer.from_pretrained(base)
        base = scratch / "tiny"
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128,
                                     num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                     tie_word_embeddings=True)).save_pretrained(base)
        tokenizer.save_pretrained(base)
    tuned = with_lora(AutoModelForCausalLM.from_pretrained(base), r=8, lora_alpha=16)
    sample_updates(tuned, scratch / "adapter")
    return base


def pairs(text, scratch):
    """Passages with their continuation as the better completion, and a passage of another place as the worse."""
    parts = text.read_text(encoding="utf-8").split()
    records = []
    for at in range(STEPS * BATCH):
        first, other = 2000 + 60 * at, 90000 + 60 * at
        records.append({"prompt": " ".join(parts[first:first + 24]),
                        "chosen": " " + " ".join(parts[first + 24:first + 36 + at % 7]),
                        "rejected": " " + " ".join(parts[other:other + 10 + at % 5])})
    path = scratch / "pairs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path, records


def table_of(rows):
    """A data set that is not hashed: its hash would need pyarrow's types pickled."""
    return Dataset(InMemoryTable.from_pylist(rows), fingerprint=f"pairs{len(rows)}")


class Recording(DPOTrainer):
    """DPOTrainer in the order of the data, with what each step computes, unrounded."""

    def _prepare_dataset(self, dataset, processing_class, *_):
        # What TRL makes of texts; its own function is mapped over the data, which needs it pickled.
        def ids(text):
            return processing_class(text)["input_ids"]

        rows = []
        for record in dataset:
            prompt = ids(record["prompt"])
            both = {f"{side}_ids": ids(record["prompt"] + record[side] + processing_class.eos_token)
                    for side in ("chosen", "rejected")}
            assert all(row[:len(prompt)] == prompt for row in both.values()), "tokens merge across the boundary"
            rows.append({"prompt_ids": prompt} | {name: row[len(prompt):] for name, row in both.items()})
        return table_of(rows)

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, *arguments, **named):
        loss = super().compute_loss(*arguments, **named)
        self.found = [*getattr(self, "found", []), {"loss": loss.item()}]
        self.found[-1] |= {ours: self._metrics["train"][theirs][-1] for ours, theirs in REWARDS.items()}
        return loss

    def log(self, logs, *arguments, **named):
        if "grad_norm" in logs:
            self.found[-1]["grad_norm"] = float(logs["grad_norm"])
        super().log(logs, *arguments, **named)


def trl_steps(base, scratch, records, kind):
    loss, beta = KINDS[kind]
    model = AutoModelForCausalLM.from_pretrained(base)
    model = PeftModel.from_pretrained(model, scratch / "adapter", is_trainable=True)
    arguments = DPOConfig(
        output_dir=str(scratch / f"trl_{kind}"), loss_type=[loss], beta=beta, per_device_train_batch_size=BATCH,
        max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.01, max_grad_norm=1.0,
        max_length=None, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True)
    trainer = Recording(model=model, args=arguments, train_dataset=table_of(records),
                        processing_class=AutoTokenizer.from_pretrained(base))
    trainer.train()
    assert len(trainer.found) == STEPS, f"{len(trainer.found)} steps"
    return trainer.found


def our_steps(programs, base, scratch, train, kind, arguments):
    out = scratch / f"run_{kind}_{len(list(scratch.glob('run_*')))}"
    sets = training_of(STEPS, BATCH, 256, RATE) | {
        "model.path": base, "adapter.path": scratch / "adapter", "data.task": "preference", "data.train": train,
        "preference.loss": kind, "preference.beta": KINDS[kind][1], "save.which": "none"}
    return finetune(programs, sets, out, *arguments)


def differences(ours, theirs):
    """The largest of losses, rewards and norms."""
    def relative(name):
        return largest(*([step[name] for step in steps] for steps in (ours, theirs)))

    def of_rewards(name):
        most = max(abs(step[name]) for step in theirs)
        return max(abs(a[name] - b[name]) / most for a, b in zip(ours, theirs, strict=True))

    return [relative("loss"), max(map(of_rewards, REWARDS)), relative("grad_norm")]


def main():
    programs, scratch, _, text = map(Path, sys.argv[1:5])
    base = write_model(scratch, sys.argv[5])
    train, records = pairs(text, scratch)
    found, layouts = [], 0.0
    for kind in KINDS:
        theirs = trl_steps(base, scratch, records, kind)
        ours = our_steps(programs, base, scratch, train, kind, ["--ranks", "1"])
        found.append(differences(ours, theirs))
        print(f"{kind}: loss {ours[0]['loss']:.4f} -> {ours[-1]['loss']:.4f}, TRL {theirs[0]['loss']:.4f} -> "
              f"{theirs[-1]['loss']:.4f}; {', '.join(f'{value:.1e}' for value in found[-1])}", file=sys.stderr)
        for name, arguments in LAYOUTS.items():
            difference = max(differences(our_steps(programs, base, scratch, train, kind, arguments), ours))
            print(f"{kind}, {name}: {difference:.1e}", file=sys.stderr)
            layouts = max(layouts, difference)
    figures = [max(values) for values in zip(*found)] + [layouts]
    judge("dpo ", [(value, BOUND) for value in figures])


if __name__ == "__main__":
    main()
