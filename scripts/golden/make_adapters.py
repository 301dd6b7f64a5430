"""Golden data for adapters: writes `adapters`, PEFT's LoRA on tiny models of other goldens, in 64-bit floats.

crates/model-center/tests/golden/README.md describes every file and tensor. The data are committed; run the script only
to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_adapters.py            # writes the directories
    "$python" scripts/golden/make_adapters.py --check    # recomputes them and compares with the committed files
"""

import json
import re

import peft
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    BertForSequenceClassification, BloomForCausalLM, GPT2LMHeadModel, LlamaForCausalLM, T5ForConditionalGeneration,
)

import decoders
import seq2seq
from goldens import DEFAULT_OUT, TRAINING, in_64_bits, run, train

# Of all matrices: small enough that softmaxes of queries and keys that are both updated are not saturated.
DEVIATION = 0.12

PINNED_PEFT = "0.21.2"


def class_loss(output, labels):
    """The loss of a classifier in the type of the logits."""
    return torch.nn.functional.cross_entropy(output.logits, labels)


# By directory: the model, its class, the loss of an output, and the configuration of its adapter.
ADAPTERS = {
    # Every linear layer of the blocks, with another rank and another alpha for some.
    "llama": ("llama_a/lm", LlamaForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": "all-linear", "r": 4, "lora_alpha": 6,
        "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 3}}),
    # One module of theirs for all three projections, matrices stored transposed, the scale of rank-stabilised LoRA.
    "gpt2": ("gpt2_a/lm", GPT2LMHeadModel, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["c_attn", "mlp.c_proj"], "r": 3, "lora_alpha": 5,
        "use_rslora": True, "fan_in_fan_out": True}),
    # Queries, keys and values of each head next to each other.
    "bloom": ("bloom_a/lm", BloomForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["query_key_value", "dense_h_to_4h"], "r": 4, "lora_alpha": 4}),
    # A classifier that is trained as a whole.
    "bert": ("bert_a/cls", BertForSequenceClassification, class_loss, {
        "task_type": "SEQ_CLS", "target_modules": ["query", "value", "intermediate.dense"], "r": 2, "lora_alpha": 8}),
    # Attention to the encoder, and one of the two matrices before a gate.
    "t5": ("t5_b/lm", T5ForConditionalGeneration, seq2seq.loss_of, {
        "task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v", "wi_1", "wo"], "r": 3, "lora_alpha": 9}),
}


def is_norm(name):
    return "norm" in name.lower() or "ln_" in name


def name_in_file(name):
    """The name that a parameter has in PEFT's file."""
    return re.sub(r"\.(modules_to_save\.)?default\b", "", name)


def build(model, kind, settings, seed):
    """The model with an adapter whose matrices are all sampled; dropout off."""
    tuned = kind.from_pretrained(DEFAULT_OUT / model, attn_implementation="eager")
    tuned = get_peft_model(tuned, LoraConfig(lora_dropout=0.0, **settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(tuned.named_parameters()):
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * DEVIATION)
    return tuned



def write_adapter(out, name, seed):
    model, kind, loss_of, settings = ADAPTERS[name]
    directory = out / "adapters" / name
    directory.mkdir(parents=True, exist_ok=True)
    tuned = build(model, kind, settings, seed)
    tuned.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / "adapter_config.json"
    fields = json.loads(path.read_text()) | {"base_model_name_or_path": model}
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    inputs = load_file(DEFAULT_OUT / model / "inputs.safetensors")
    with in_64_bits():
        wide = tuned.double().eval()
        output = wide(**inputs)
        loss = loss_of(output, inputs["labels"])
        loss.backward()
    golden = {"logits": output.logits, "loss": loss}
    golden |= {f"grad.{name_in_file(name)}": parameter.grad
               for name, parameter in wide.named_parameters() if parameter.requires_grad}
    saved = load_file(directory / "adapter_model.safetensors")
    assert {f"grad.{name}" for name in saved} == {name for name in golden if name.startswith("grad.")}
    golden = {name: tensor.detach().clone().contiguous() for name, tensor in golden.items()}
    save_file(golden, directory / "golden.safetensors")

    file = load_file(DEFAULT_OUT / model / "training.safetensors")
    batches = [{name.removeprefix(f"batch.{k}."): tensor for name, tensor in file.items()
                if name.startswith(f"batch.{k}.")} for k in range(TRAINING["batches"])]
    with in_64_bits():
        steps = train(build(model, kind, settings, seed).double().train(), batches, is_norm,
                      lambda model, batch: loss_of(model(**batch), batch["labels"]))
    save_file(steps, directory / "training.safetensors")
    print(f"{name}: loss {loss.item():.6f}; training {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}")


def write_all(out):
    assert peft.__version__ == PINNED_PEFT, f"peft is {peft.__version__}, the goldens are of {PINNED_PEFT}"
    for number, name in enumerate(ADAPTERS):
        write_adapter(out, name, 501 + number)


if __name__ == "__main__":
    run(__doc__, write_all)
