"""Golden data for pretraining: tiny GPT-2, BERT and T5 models trained from their own random initialization.

Writes crates/model-center/tests/golden/pretraining/gpt2, bert and t5: the initial weights and the losses of thirty
AdamW steps in 64-bit floats. The batches are made by our objectives; the test wrote them beside, batches.safetensors.
The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    cargo test -p model-center --test it pretraining::training::write_batches -- --ignored
    "$python" scripts/golden/make_pretraining.py            # writes weights and losses
    "$python" scripts/golden/make_pretraining.py --check    # recomputes them and compares with the committed files
"""

import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel, T5Config,
                          T5ForConditionalGeneration)

from goldens import DEFAULT_OUT, TRAINING, check_saved, run, train_twice

SHARED = {"attn_implementation": "eager"}


def gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=61, n_positions=24, n_embd=32, n_head=4, n_layer=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, **SHARED))


def bert():
    return BertForPreTraining(BertConfig(
        vocab_size=61, hidden_size=32, num_attention_heads=4, intermediate_size=64, num_hidden_layers=2,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SHARED))


def t5():
    return T5ForConditionalGeneration(T5Config(
        vocab_size=61, d_model=24, d_kv=6, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=16, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **SHARED))


def causal_loss(model, batch):
    """Each label is the target of its own position: nothing is shifted."""
    logits = model(input_ids=batch["input_ids"]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def model_loss(model, batch):
    return model(**batch).loss


def batches_of(name):
    path = DEFAULT_OUT / "pretraining" / name / "batches.safetensors"
    tensors = load_file(path)
    batches = [{} for _ in range(TRAINING["steps"])]
    for key, tensor in tensors.items():
        _, number, field = key.split(".")
        batches[int(number)][field] = tensor
    assert all(batches), f"{path} has {len(tensors)} tensors"
    return batches


MODELS = {
    "gpt2": (gpt2, causal_loss, lambda name: ".ln_" in name),
    "bert": (bert, model_loss, lambda name: "LayerNorm" in name),
    "t5": (t5, model_loss, lambda name: "layer_norm" in name),
}


def write_all(directory):
    for seed, (name, (build, loss_of, is_norm)) in enumerate(MODELS.items()):
        out = directory / "pretraining" / name
        out.mkdir(parents=True, exist_ok=True)

        def seeded(build=build, seed=seed):
            torch.manual_seed(31 + seed)
            return build()

        model = seeded()
        model.save_pretrained(out)
        (out / "generation_config.json").unlink(missing_ok=True)
        check_saved(out, model.double())
        training, _, drift = train_twice(seeded, batches_of(name), is_norm, loss_of)
        save_file(training, out / "training.safetensors")
        first, last = training["losses"][0].item(), training["losses"][-1].item()
        print(f"{name}: loss {first:.4f} to {last:.4f}, 32-bit PyTorch strays by {drift:.1e}", file=sys.stderr)


if __name__ == "__main__":
    run(__doc__, write_all)
