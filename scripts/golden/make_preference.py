"""Golden data for losses of completions: writes `preference`, DPO, IPO, SimPO and ORPO on pairs and KTO on judged
completions for a tiny Llama of other goldens, and DPO and KTO for its LoRA updates, in 64-bit floats. The formulas are
from TRL's DPOTrainer, CPOTrainer, ORPOTrainer and KTOTrainer; DPO's label smoothing is conservative DPO's, and ORPO's
likelihood is of the completion alone, as a mean over pairs.

crates/model-center/tests/golden/README.md describes every tensor. The data are committed; run the script only to change
them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_preference.py            # writes the directory
    "$python" scripts/golden/make_preference.py --check    # recomputes them and compares with the committed file
"""

import contextlib

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch.nn.functional import logsigmoid
from transformers import LlamaForCausalLM

from goldens import DEFAULT_OUT, in_64_bits, run, train
from make_adapters import name_in_file

PAIRS, LENGTH, BATCHES = 3, 11, 3
# KTO's judgements of the first row of each pair, whose second row is the prompt with another completion, and the
# weights of good and of bad ones.
GOOD = torch.tensor([True, False, True])
GOOD_WEIGHT, BAD_WEIGHT = 1.2, 0.8
# By case: the kind of loss, beta, gamma, label smoothing, and the directory of an adapter.
CASES = {
    "dpo": ("dpo", 0.3, 0.0, 0.1, None),
    "ipo": ("ipo", 0.2, 0.0, 0.0, None),
    "simpo": ("simpo", 2.0, 0.5, 0.0, None),
    "dpo_lora": ("dpo", 0.1, 0.0, 0.0, "adapters/llama"),
    "orpo": ("orpo", 0.6, 0.0, 0.0, None),
    "kto": ("kto", 0.4, 0.0, 0.0, None),
    "kto_lora": ("kto", 0.3, 0.0, 0.0, "adapters/llama"),
}


def batch_of(vocabulary, generator):
    """Pairs with a common prompt, completions of several lengths, padded on the right; chosen and rejected in turn."""
    rows = 2 * PAIRS
    ids = torch.randint(3, vocabulary, (rows, LENGTH), generator=generator)
    mask, labels = torch.ones_like(ids), ids.clone()
    for pair in range(PAIRS):
        prompt = 2 + pair
        ids[2 * pair + 1, :prompt] = ids[2 * pair, :prompt]
        for row in (2 * pair, 2 * pair + 1):
            length = int(torch.randint(prompt + 1, LENGTH + 1, (1,), generator=generator))
            ids[row, length:], mask[row, length:] = 0, 0
            labels[row] = torch.where(mask[row] == 1, ids[row], -100)
            labels[row, :prompt] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def log_probs_of(model, batch):
    """The sum of each sequence, and its number of tokens."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    counted = labels != -100
    of_tokens = logits.log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    return (of_tokens * counted).sum(1), counted.sum(1)


def loss_of_pairs(settings, log_probs, tokens, reference):
    """The loss and the reward of each sequence, by TRL's formulas."""
    kind, beta, gamma, smoothing, _ = settings
    if kind == "kto":
        return loss_of_rated(beta, log_probs, reference)
    if kind in ("simpo", "orpo"):
        scores = log_probs / tokens
    else:
        scores = log_probs - reference
    rewards = (beta * scores).detach()
    if kind == "ipo":
        scores = scores / tokens
    logits = scores[0::2] - scores[1::2]
    if kind == "orpo":
        log_odds = logits - (torch.log1p(-torch.exp(scores[0::2])) - torch.log1p(-torch.exp(scores[1::2])))
        return -scores[0::2].mean() - (beta * logsigmoid(log_odds)).mean(), rewards
    if kind == "ipo":
        return ((logits - 1 / (2 * beta)) ** 2).mean(), rewards
    if kind == "simpo":
        logits = logits - gamma / beta
    losses = -logsigmoid(beta * logits) * (1 - smoothing) - logsigmoid(-beta * logits) * smoothing
    return losses.mean(), rewards


def loss_of_rated(beta, log_probs, reference):
    """KTO's loss and the reward of each judged completion. The divergence has no gradient."""
    ratios = log_probs - reference
    kl = ratios[1::2].detach().mean().clamp(min=0)
    ratios = ratios[0::2]
    good = 1 - torch.sigmoid(beta * (ratios[GOOD] - kl))
    bad = 1 - torch.sigmoid(beta * (kl - ratios[~GOOD]))
    return torch.cat((GOOD_WEIGHT * good, BAD_WEIGHT * bad)).mean(), (beta * ratios).detach()


def build(adapter):
    model = LlamaForCausalLM.from_pretrained(DEFAULT_OUT / "llama_a/lm", attn_implementation="eager")
    if adapter is not None:
        model = PeftModel.from_pretrained(model, DEFAULT_OUT / adapter, is_trainable=True)
    return model.double().train()


def reference_of(adapter, batches):
    """Log-probabilities of the batches: of the model without its adapter, or of one whose weights are smaller."""
    model = build(adapter).eval()
    with torch.no_grad():
        if adapter is None:
            for parameter in model.parameters():
                parameter.mul_(0.9)
        with model.disable_adapter() if adapter is not None else contextlib.nullcontext():
            return [log_probs_of(model, batch)[0] for batch in batches]


def is_norm(name):
    return "norm" in name.lower()


def write_all(out):
    generator = torch.Generator().manual_seed(811)
    vocabulary = build(None).config.vocab_size
    batches = [batch_of(vocabulary, generator) for _ in range(BATCHES)]
    file = {f"batch.{number}.{name}": tensor for number, batch in enumerate(batches) for name, tensor in batch.items()}
    with in_64_bits():
        for case, settings in CASES.items():
            adapter = settings[-1]
            references = reference_of(adapter, batches)
            model = build(adapter)
            log_probs, tokens = log_probs_of(model, batches[0])
            loss, rewards = loss_of_pairs(settings, log_probs, tokens, references[0])
            loss.backward()
            own = log_probs[0::2] if settings[0] == "kto" else log_probs
            found = {"loss": loss, "rewards": rewards, "log_probs": own}
            found |= {f"reference.{number}": reference for number, reference in enumerate(references)}
            found |= {f"grad.{name_in_file(name)}": parameter.grad
                      for name, parameter in model.named_parameters() if parameter.requires_grad}

            def step_loss(model, numbered):
                number, batch = numbered
                return loss_of_pairs(settings, *log_probs_of(model, batch), references[number])[0]

            steps = train(build(adapter), list(enumerate(batches)), is_norm, step_loss)
            file |= {f"{case}.{name}": tensor.detach().clone().contiguous() for name, tensor in (found | steps).items()}
            print(f"{case}: loss {loss.item():.6f}; training {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}")
    (out / "preference").mkdir(parents=True, exist_ok=True)
    save_file(file, out / "preference" / "golden.safetensors")


if __name__ == "__main__":
    run(__doc__, write_all)
