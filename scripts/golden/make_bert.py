"""Golden data for BERT: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/bert_a and bert_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_bert.py            # writes the folders
    "$python" scripts/golden/make_bert.py --check    # recomputes them and compares with the committed files

Weights are drawn in 32-bit floats, saved as they are, and widened for all arithmetic, so a reader of the
32-bit file starts from exactly the numbers the goldens were computed with.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig

PINNED = {"torch": "2.15.0", "transformers": "5.23.0"}
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden"

# Weights and biases are drawn with this deviation, norm weights around one: large enough that no gradient is
# tiny by accident, small enough that the softmaxes are not saturated.
DEVIATION = 0.2

HEADS = {
    "cls": transformers.BertForSequenceClassification,
    "mlm": transformers.BertForMaskedLM,
    "nsp": transformers.BertForNextSentencePrediction,
    "pretraining": transformers.BertForPreTraining,
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    "bert_a": {
        "seed": 11,
        "labels": 2,
        "config": {
            "vocab_size": 101, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64,
            "num_hidden_layers": 2, "max_position_embeddings": 24, "type_vocab_size": 2,
            "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["############", "#######.....", "#...........", "#########..."],
    },
    "bert_b": {
        "seed": 23,
        "labels": 5,
        "config": {
            "vocab_size": 67, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40,
            "num_hidden_layers": 3, "max_position_embeddings": 16, "type_vocab_size": 3,
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-5,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
    },
}

TRAINING = {"steps": 30, "warmup": 6, "lr": 5e-3, "weight_decay": 0.01, "max_norm": 1.0,
            "betas": (0.9, 0.999), "eps": 1e-8, "batches": 4}


def draw_weights(model, seed):
    """Fills every parameter from one generator, in the order of the parameters' names."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * DEVIATION
            is_norm_weight = name.endswith("LayerNorm.weight")
            parameter.copy_(values + 1.0 if is_norm_weight else values)


def draw_batch(spec, seed):
    """One batch of inputs and the labels of every head."""
    config, generator = spec["config"], torch.Generator().manual_seed(seed)

    def integers(low, high, shape):
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int64)

    mask = torch.tensor([[int(c == "#") for c in row] for row in spec["masks"]], dtype=torch.int64)  # [B, L]
    ids = integers(1, config["vocab_size"], mask.shape) * mask  # [B, L], padding holds id 0
    # The padding id also stands once at a position that is attended to: its embedding row is used there but,
    # as in torch's `padding_idx`, receives no gradient from the lookup.
    ids[0, 5] = 0
    types = integers(0, config["type_vocab_size"], mask.shape) * mask  # [B, L]
    masked = (torch.rand(mask.shape, generator=generator) < 0.3) & (mask == 1)  # [B, L]
    masked[0, 1] = True
    words = torch.where(masked, integers(1, config["vocab_size"], mask.shape), torch.tensor(-100))  # [B, L]
    return {
        "input_ids": ids, "attention_mask": mask, "token_type_ids": types, "mlm_labels": words,
        "cls_labels": integers(0, spec["labels"], mask.shape[:1]),  # [B]
        "nsp_labels": integers(0, 2, mask.shape[:1]),  # [B]
    }


def inputs_of(batch, head):
    """The tensors one head takes, under the names its `forward` gives them."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    if head == "pretraining":
        return inputs | {"labels": batch["mlm_labels"], "next_sentence_label": batch["nsp_labels"]}
    return inputs | {"labels": batch[f"{head}_labels"]}


def build(spec, head):
    """A model with its 32-bit weights drawn, dropout off, attention spelled out."""
    classes = {"num_labels": spec["labels"]} if head == "cls" else {}
    config = BertConfig(**spec["config"], **classes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                        attn_implementation="eager")
    model = HEADS[head](config)
    draw_weights(model, spec["seed"])
    return model


def evaluate(model, inputs):
    """Hidden states, pooler output, logits, loss and all gradients of a 64-bit model."""
    pooled = []
    if model.bert.pooler is not None:
        model.bert.pooler.register_forward_hook(lambda _module, _input, output: pooled.append(output))
    output = model(**inputs, output_hidden_states=True)
    output.loss.backward()
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1

    golden = {f"hidden.{i}": hidden for i, hidden in enumerate(output.hidden_states)}  # each [B, L, D]
    for value in pooled:
        golden["pooler"] = value  # [B, D]
    if "prediction_logits" in output:
        golden["logits"] = output.prediction_logits  # [B, L, V]
        golden["seq_relationship_logits"] = output.seq_relationship_logits  # [B, 2]
    else:
        golden["logits"] = output.logits
    golden["loss"] = output.loss  # []
    golden |= {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in golden.items()}


def learning_rate(step):
    """Linear warm-up and decay; `step` counts optimizer steps from 0, so the first step has rate 0."""
    warmup, end = TRAINING["warmup"], TRAINING["steps"]
    if step < warmup:
        return TRAINING["lr"] * step / warmup
    return max(0.0, TRAINING["lr"] * (end - step) / (end - warmup))


def train(model, batches):
    """Loss, gradient norm before clipping and learning rate of every AdamW step."""
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": TRAINING["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=0.0, betas=TRAINING["betas"], eps=TRAINING["eps"])
    losses, norms, rates = [], [], []
    for step in range(TRAINING["steps"]):
        loss = model(**batches[step % len(batches)]).loss
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING["max_norm"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
        rates.append(learning_rate(step))
    return {name: torch.tensor(values, dtype=torch.float64)
            for name, values in (("losses", losses), ("grad_norms", norms), ("lrs", rates))}


def write_head(folder, spec, head):
    """One Hugging Face folder with its inputs and goldens."""
    model = build(spec, head)
    model.save_pretrained(folder)
    model = model.double().eval()
    saved = load_file(folder / "model.safetensors")
    named = dict(model.named_parameters())
    assert saved.keys() == named.keys(), saved.keys() ^ named.keys()
    assert all(torch.equal(named[name], tensor.double()) for name, tensor in saved.items())

    inputs = inputs_of(draw_batch(spec, spec["seed"] + 1), head)
    save_file(inputs, folder / "inputs.safetensors")
    golden = evaluate(model, inputs)
    save_file(golden, folder / "golden.safetensors")
    return golden


def write_training(folder, spec):
    """The training run of the classification head, with its batches."""
    batches = [inputs_of(draw_batch(spec, spec["seed"] + 100 + k), "cls") for k in range(TRAINING["batches"])]
    run = train(build(spec, "cls").double().train(), batches)
    narrow = train(build(spec, "cls").train(), batches)
    drift = ((run["losses"] - narrow["losses"]).abs().max() / run["losses"][0]).item()
    save_file(run | {f"batch.{k}.{name}": tensor for k, batch in enumerate(batches) for name, tensor in batch.items()},
              folder / "training.safetensors")
    return run, drift


def write_all(out):
    for name, spec in MODELS.items():
        for head in HEADS:
            folder = out / name / head
            folder.mkdir(parents=True, exist_ok=True)
            golden = write_head(folder, spec, head)
            total = torch.sqrt(sum((t**2).sum() for n, t in golden.items() if n.startswith("grad."))).item()
            print(f"{name}/{head}: loss {golden['loss'].item():.6f}, gradient norm {total:.4f}")
        run, drift = write_training(out / name / "cls", spec)
        print(f"{name}/cls training: loss {run['losses'][0]:.4f} -> {run['losses'][-1]:.4f}, "
              f"PyTorch's own 32-bit run strays {drift:.1e} of the first loss")


def check_against(committed, fresh):
    """Differences between two golden trees, as sentences; integers and 32-bit floats must be equal."""
    faults = []
    for path in sorted(fresh.rglob("*.safetensors")):
        relative = path.relative_to(fresh)
        if not (committed / relative).is_file():
            faults.append(f"{relative} is missing")
            continue
        old, new = load_file(committed / relative), load_file(path)
        if old.keys() != new.keys():
            faults.append(f"{relative}: tensor names differ: {sorted(old.keys() ^ new.keys())}")
            continue
        for name in new:
            if new[name].dtype == torch.float64:
                # Another processor may sum in another order.
                same = old[name].shape == new[name].shape and torch.allclose(old[name], new[name], rtol=1e-9, atol=1e-12)
            else:
                same = torch.equal(old[name], new[name])
            if not same:
                faults.append(f"{relative}: {name} differs")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write (default: the committed one)")
    parser.add_argument("--check", action="store_true", help="recompute and compare instead of writing")
    arguments = parser.parse_args()
    for module, version in ((torch, PINNED["torch"]), (transformers, PINNED["transformers"])):
        if module.__version__.split("+")[0] != version:
            sys.exit(f"error: {module.__name__} is {module.__version__}, the goldens are pinned to {version}\n"
                     "  fix: use the interpreter that scripts/python_env.sh prints")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    if not arguments.check:
        write_all(arguments.out)
        return
    with tempfile.TemporaryDirectory() as fresh:
        write_all(Path(fresh))
        faults = check_against(arguments.out, Path(fresh))
    print("\n".join(faults) if faults else "golden data are as committed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
