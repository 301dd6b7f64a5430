"""Golden data for optimizers that see whole tensors, over models whose parameters are fused here: 20 steps of
PyTorch's Muon and of transformers' Adafactor on the separate matrices of transformers' models.

Writes crates/model-center/tests/golden/optimizers/golden.safetensors; crates/model-center/tests/golden/README.md
describes its tensors. The data are committed; run this only to change them, in the environment of
scripts/python_env.sh:

    "$(scripts/python_env.sh)" scripts/golden/make_optimizers_models.py            # or with --check

The models are tiny ones of the other goldens, in 64-bit floats. Muon's iterations are, too (make_optimizers.py).
"""

import torch
import transformers
from safetensors.torch import load_file, save_file

import decoders
import make_optimizers  # Newton-Schulz iterations in the matrix's own type
import seq2seq
from goldens import DEFAULT_OUT, in_64_bits, run

STEPS, LR, DECAY = 20, 2e-3, 0.1
# Updates of one size whatever the weights': at the learning rate above transformers' own losses of T5 in 32 bits are
# 1e-4 away from those in 64 bits after 16 steps.
UNSCALED_LR = 3e-4
# Gradients that are zero in exact arithmetic, as key biases' are, are not blown up by these.
ADAM_EPS, ADAFACTOR_EPS = 1e-4, (1e-8, 1e-3)

# Directory, class, what its loss is, the names of blocks, and of tables in them, which are not Muon's.
MODELS = {
    "llama": ("llama_a/lm", transformers.LlamaForCausalLM, decoders.loss_of, "model.layers.", None),
    "bert": ("bert_b/mlm", transformers.BertForMaskedLM, lambda output, _: output.loss, "bert.encoder.layer.", None),
    "t5": ("t5_b/lm", transformers.T5ForConditionalGeneration, seq2seq.loss_of, ".block.", "relative_attention_bias"),
    # Its queries, keys and values are one matrix in transformers, too.
    "gpt2": ("gpt2_a/lm", transformers.GPT2LMHeadModel, decoders.loss_of, "transformer.h.", None),
}


def by_decay(parameters):
    """Matrices decay, norms and biases do not."""
    parameters = list(parameters)
    return [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}]


def muon(model, blocks, tables, adjust):
    """Muon for the matrices of blocks, AdamW for the rest, as PyTorch's documentation advises."""
    matrices = [p for name, p in model.named_parameters()
                if p.ndim == 2 and blocks in name and (tables is None or tables not in name)]
    chosen = {id(p) for p in matrices}
    rest = by_decay(p for p in model.parameters() if id(p) not in chosen)
    return [torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, adjust_lr_fn=adjust),
            torch.optim.AdamW(rest, lr=LR, eps=ADAM_EPS)]


def adafactor(model, scaled):
    return [transformers.Adafactor(by_decay(model.parameters()), lr=LR if scaled else UNSCALED_LR, eps=ADAFACTOR_EPS,
                                   scale_parameter=scaled, relative_step=False)]


OPTIMIZERS = {
    "muon": lambda model, blocks, tables: muon(model, blocks, tables, "original"),
    "muon-match": lambda model, blocks, tables: muon(model, blocks, tables, "match_rms_adamw"),
    "adafactor": lambda model, *_: adafactor(model, False),
    "adafactor-scaled": lambda model, *_: adafactor(model, True),
}


def is_compared(name):
    """The first block of each stack, without tables of embeddings."""
    numbers = [part for part in name.split(".") if part.isdigit()]
    return numbers[:1] == ["0"] and "embed" not in name


def trained(directory, kind, loss_of, blocks, tables, make):
    """Losses of all steps, and parameters after them."""
    model = kind.from_pretrained(directory, attn_implementation="eager").double().train()
    inputs = load_file(directory / "inputs.safetensors")
    optimizers, losses = make(model, blocks, tables), []
    for _ in range(STEPS):
        loss = loss_of(model(**inputs), inputs["labels"])
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    found = {f"after.{name}": p.detach() for name, p in model.named_parameters() if is_compared(name)}
    return found | {"losses": torch.tensor(losses, dtype=torch.float64)}


def write(out):
    tensors = {}
    for model, (directory, kind, loss_of, blocks, tables) in MODELS.items():
        for optimizer, make in OPTIMIZERS.items():
            with in_64_bits():
                found = trained(DEFAULT_OUT / directory, kind, loss_of, blocks, tables, make)
            tensors |= {f"{model}.{optimizer}.{name}": tensor for name, tensor in found.items()}
            print(f"{model} {optimizer}: loss {found['losses'][0]:.6f} -> {found['losses'][-1]:.6f}")
    (out / "optimizers").mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "optimizers/golden.safetensors")


if __name__ == "__main__":
    run(__doc__, write)
