"""Golden data for BERT: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/bert_a and bert_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_bert.py            # writes the folders
    "$python" scripts/golden/make_bert.py --check    # recomputes them and compares with the committed files

Weights are drawn in 32-bit floats, saved as they are, and widened for all arithmetic, so a reader of the
32-bit file starts from exactly the numbers the goldens were computed with.
"""

import torch
import transformers
from safetensors.torch import save_file
from transformers import BertConfig

from goldens import TRAINING, check_saved, draw_weights, gradient_norm, run, train_twice

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

def is_norm(name):
    """Whether a parameter is a layer norm's."""
    return "LayerNorm" in name


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
    draw_weights(model, spec["seed"], is_norm)
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


def write_training(folder, spec):
    """The training run of the classification head, with its batches."""
    batches = [inputs_of(draw_batch(spec, spec["seed"] + 100 + k), "cls") for k in range(TRAINING["batches"])]
    steps, tensors, drift = train_twice(lambda: build(spec, "cls"), batches, is_norm,
                                        lambda model, batch: model(**batch).loss)
    save_file(tensors, folder / "training.safetensors")
    return steps, drift


def write_all(out):
    for name, spec in MODELS.items():
        for head in HEADS:
            folder = out / name / head
            folder.mkdir(parents=True, exist_ok=True)
            golden = write_head(folder, spec, head)
            print(f"{name}/{head}: loss {golden['loss'].item():.6f}, gradient norm {gradient_norm(golden):.4f}")
        steps, drift = write_training(out / name / "cls", spec)
        print(f"{name}/cls training: loss {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}, "
              f"PyTorch's own 32-bit run strays {drift:.1e} of the first loss")


if __name__ == "__main__":
    run(__doc__, write_all)
