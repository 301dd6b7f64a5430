"""Golden data for GPT-2: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/gpt2_a and gpt2_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_gpt2.py            # writes the folders
    "$python" scripts/golden/make_gpt2.py --check    # recomputes them and compares with the committed files

Weights are drawn in 32-bit floats, saved as they are, and widened for all arithmetic, so a reader of the
32-bit file starts from exactly the numbers the goldens were computed with.
"""

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

from goldens import TRAINING, check_saved, draw_weights, gradient_norm, run, train_twice

# By folder: the class, and whether the words' embedding is the projection onto the words.
HEADS = {
    "lm": (GPT2LMHeadModel, True),
    "untied": (GPT2LMHeadModel, False),
    "cls": (GPT2ForSequenceClassification, True),
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both. Heads have odd lengths.
MODELS = {
    "gpt2_a": {
        "seed": 37,
        "labels": 3,
        "config": {
            "vocab_size": 97, "n_embd": 20, "n_head": 4, "n_layer": 2, "n_positions": 19, "pad_token_id": 0,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["###########", "#######....", "#..........", "#########.."],
    },
    "gpt2_b": {
        "seed": 53,
        "labels": 1,
        "config": {
            "vocab_size": 61, "n_embd": 27, "n_head": 3, "n_inner": 50, "n_layer": 3, "n_positions": 13,
            "pad_token_id": 0, "activation_function": "gelu", "layer_norm_epsilon": 1e-3,
            "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["########", "#####...", "...#####", "####..##", "....#..."],
    },
}


def is_norm(name):
    """Whether a parameter is a layer norm's."""
    return ".ln_" in name


def draw_batch(spec, seed):
    """One batch of inputs and the labels of every head."""
    vocabulary, generator = spec["config"]["vocab_size"], torch.Generator().manual_seed(seed)

    def integers(low, high, shape):
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int64)

    mask = torch.tensor([[int(c == "#") for c in row] for row in spec["masks"]], dtype=torch.int64)  # [B, L]
    ids = integers(1, vocabulary, mask.shape) * mask  # [B, L], padding holds id 0
    # The padding id also stands once at a position that is attended to.
    ids[0, 5] = 0
    # What counts is a token behind a token, and not every one of them.
    behind = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)  # [B, L]
    counts = (mask * behind == 1) & (torch.rand(mask.shape, generator=generator) < 0.8)  # [B, L]
    counts[0, 1] = True
    labels = spec["labels"]
    values = torch.randn(mask.shape[0], generator=generator, dtype=torch.float32)  # [B]
    return {
        "input_ids": ids, "attention_mask": mask,
        "words": torch.where(counts, ids, torch.tensor(-100)),  # [B, L]
        "cls": values if labels == 1 else integers(0, labels, mask.shape[:1]),  # [B]
    }


def inputs_of(batch, head):
    """The tensors one head takes, under the names its `forward` gives them."""
    labels = batch["cls" if head == "cls" else "words"]
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}


def widened(inputs):
    """The inputs for a 64-bit model: labels that are numbers in its type."""
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}


def build(spec, head):
    """A model with its 32-bit weights drawn, dropout off, attention spelled out."""
    kind, tied = HEADS[head]
    classes = {"num_labels": spec["labels"]} if head == "cls" else {}
    config = GPT2Config(**spec["config"], **classes, bos_token_id=1, eos_token_id=1, tie_word_embeddings=tied,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
    model = kind(config)
    draw_weights(model, spec["seed"], is_norm)
    return model


def loss_of(output, labels):
    """The loss in the type of the logits. For the next word transformers computes it in 32-bit floats whatever they are."""
    if labels.shape != output.logits.shape[:2]:
        return output.loss
    logits = output.logits[:, :-1]  # [B, L - 1, V]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
    assert abs(loss.item() - output.loss.item()) <= 1e-6 * loss.item(), "this is not the loss of transformers"
    return loss


def evaluate(model, inputs):
    """Hidden states, logits, loss and all gradients of a 64-bit model."""
    inputs = widened(inputs)
    output = model(**inputs, output_hidden_states=True)
    loss = loss_of(output, inputs["labels"])
    loss.backward()
    assert len(output.hidden_states) == model.config.n_layer + 1
    golden = {f"hidden.{i}": hidden for i, hidden in enumerate(output.hidden_states)}  # each [B, L, D]
    golden |= {"logits": output.logits, "loss": loss}
    golden |= {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in golden.items()}


def write_head(folder, spec, head):
    """One Hugging Face folder with its inputs and goldens."""
    model = build(spec, head)
    model.save_pretrained(folder)
    model = model.double().eval()
    check_saved(folder, model)
    inputs = inputs_of(draw_batch(spec, spec["seed"] + 1), head)
    save_file(inputs, folder / "inputs.safetensors")
    golden = evaluate(model, inputs)
    save_file(golden, folder / "golden.safetensors")
    return golden


def write_all(out):
    for name, spec in MODELS.items():
        for head in HEADS:
            folder = out / name / head
            folder.mkdir(parents=True, exist_ok=True)
            golden = write_head(folder, spec, head)
            print(f"{name}/{head}: loss {golden['loss'].item():.6f}, gradient norm {gradient_norm(golden):.4f}")
        batches = [inputs_of(draw_batch(spec, spec["seed"] + 100 + k), "lm") for k in range(TRAINING["batches"])]
        steps, tensors, drift = train_twice(lambda: build(spec, "lm"), batches, is_norm,
                                            lambda model, batch: loss_of(model(**batch), batch["labels"]))
        save_file(tensors, out / name / "lm" / "training.safetensors")
        print(f"{name}/lm training: loss {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}, "
              f"PyTorch's own 32-bit run strays {drift:.1e} of the first loss")


if __name__ == "__main__":
    run(__doc__, write_all)
