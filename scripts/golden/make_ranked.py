"""Golden data for checkpoints of Megatron-LM and DeepSpeed: models of other goldens in the layouts of both.

Writes crates/model-center/tests/golden/ranked; crates/model-center/tests/golden/README.md describes each directory. The
data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_ranked.py            # writes the directory
    "$python" scripts/golden/make_ranked.py --check    # takes every file apart and compares with the models

The weights are from gpt2_a/lm and the BERTs' pretraining, for which transformers computed logits and gradients. Each
layout divides them as Megatron-LM and DeepSpeed do, so that a reader that joins them has the same bits again.
"""

import argparse
import json
import shutil
import sys
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file

from goldens import DEFAULT_OUT

# Rows of the vocabulary of one rank are a multiple of this.
DIVISOR = 8


def padded(tensor, ranks):
    """The tensor with rows of large values added, which a reader has to leave out."""
    rows = tensor.shape[0]
    missing = -rows % (DIVISOR * ranks)
    return torch.cat([tensor, torch.full((missing, *tensor.shape[1:]), 77.0)])


def order_of_rows(tensor, heads, version):
    """Rows [3, heads, size] in the order of a checkpoint_version."""
    size = tensor.shape[0] // 3 // heads
    parts = tensor.reshape(3, heads, size, -1)
    axes = {0: (0, 1, 2, 3), 1: (1, 2, 0, 3), 2: (1, 0, 2, 3)}[version]
    return parts.permute(axes).reshape(tensor.shape)


def part(tensor, rank, ranks, axis):
    return tensor.chunk(ranks, axis)[rank].clone()


def qkv(tensor, rank, ranks, heads, version):
    """A rank's heads of queries, keys and values."""
    thirds = [part(third, rank, ranks, 0) for third in tensor.chunk(3, 0)]
    return order_of_rows(torch.cat(thirds), heads // ranks, version).contiguous()


def gpt2_rank(weights, rank, ranks, heads, version):
    """Megatron-LM's tensors of a GPT-2 on one tensor-parallel rank, by plain names."""
    base = "transformer."
    out = OrderedDict()
    out["word_embeddings.weight"] = part(padded(weights[base + "wte.weight"], ranks), rank, ranks, 0)
    out["position_embeddings.weight"] = weights[base + "wpe.weight"]
    layers = 1 + max(int(name.split(".")[2]) for name in weights if ".h." in name)
    for layer in range(layers):
        ours, theirs = f"{base}h.{layer}.", f"layers.{layer}."
        block = {
            "input_layernorm.weight": weights[ours + "ln_1.weight"],
            "input_layernorm.bias": weights[ours + "ln_1.bias"],
            "attention.query_key_value.weight":
                qkv(weights[ours + "attn.c_attn.weight"].T.contiguous(), rank, ranks, heads, version),
            "attention.query_key_value.bias":
                qkv(weights[ours + "attn.c_attn.bias"][:, None], rank, ranks, heads, version)[:, 0].clone(),
            "attention.dense.weight": part(weights[ours + "attn.c_proj.weight"].T, rank, ranks, 1),
            "attention.dense.bias": weights[ours + "attn.c_proj.bias"],
            "post_attention_layernorm.weight": weights[ours + "ln_2.weight"],
            "post_attention_layernorm.bias": weights[ours + "ln_2.bias"],
            "mlp.dense_h_to_4h.weight": part(weights[ours + "mlp.c_fc.weight"].T, rank, ranks, 0),
            "mlp.dense_h_to_4h.bias": part(weights[ours + "mlp.c_fc.bias"], rank, ranks, 0),
            "mlp.dense_4h_to_h.weight": part(weights[ours + "mlp.c_proj.weight"].T, rank, ranks, 1),
            "mlp.dense_4h_to_h.bias": weights[ours + "mlp.c_proj.bias"],
        }
        out.update((theirs + name, tensor.contiguous()) for name, tensor in block.items())
    for kind in ("weight", "bias"):
        out[f"final_layernorm.{kind}"] = weights[f"{base}ln_f.{kind}"]
    return out


def bert_rank(weights, rank, ranks, heads, version):
    """The same of a BERT: one whose norms precede its layers, as Hugging Face's MegatronBert, or one whose residuals
    follow its norms, so that the norm after a sum of Hugging Face's BERT is the one before Megatron-LM's next layer."""
    base = "bert.embeddings."
    is_pre = "bert.encoder.ln.weight" in weights
    out = OrderedDict()
    out["word_embeddings.weight"] = part(padded(weights[base + "word_embeddings.weight"], ranks), rank, ranks, 0)
    out["position_embeddings.weight"] = weights[base + "position_embeddings.weight"]
    out["tokentype_embeddings.weight"] = weights[base + "token_type_embeddings.weight"]
    layers = 1 + max(int(name.split(".")[3]) for name in weights if ".layer." in name)
    for layer in range(layers):
        ours, theirs = f"bert.encoder.layer.{layer}.", f"layers.{layer}."
        before = base + "LayerNorm" if layer == 0 else f"bert.encoder.layer.{layer - 1}.output.LayerNorm"
        between = ours + "attention.output.LayerNorm"
        if is_pre:
            before, between = ours + "attention.ln", ours + "ln"
        heads_of = [f"{ours}attention.self.{name}." for name in ("query", "key", "value")]
        block = {
            "input_layernorm.weight": weights[before + ".weight"],
            "input_layernorm.bias": weights[before + ".bias"],
            "attention.query_key_value.weight":
                qkv(torch.cat([weights[name + "weight"] for name in heads_of]), rank, ranks, heads, version),
            "attention.query_key_value.bias":
                qkv(torch.cat([weights[name + "bias"] for name in heads_of])[:, None], rank, ranks, heads,
                    version)[:, 0].clone(),
            "attention.dense.weight": part(weights[ours + "attention.output.dense.weight"], rank, ranks, 1),
            "attention.dense.bias": weights[ours + "attention.output.dense.bias"],
            "post_attention_layernorm.weight": weights[between + ".weight"],
            "post_attention_layernorm.bias": weights[between + ".bias"],
            "mlp.dense_h_to_4h.weight": part(weights[ours + "intermediate.dense.weight"], rank, ranks, 0),
            "mlp.dense_h_to_4h.bias": part(weights[ours + "intermediate.dense.bias"], rank, ranks, 0),
            "mlp.dense_4h_to_h.weight": part(weights[ours + "output.dense.weight"], rank, ranks, 1),
            "mlp.dense_4h_to_h.bias": weights[ours + "output.dense.bias"],
        }
        out.update((theirs + name, tensor.contiguous()) for name, tensor in block.items())
    after = "bert.encoder.ln" if is_pre else f"bert.encoder.layer.{layers - 1}.output.LayerNorm"
    for kind in ("weight", "bias"):
        out[f"final_layernorm.{kind}"] = weights[f"{after}.{kind}"]
        out[f"pooler.dense.{kind}"] = weights[f"bert.pooler.dense.{kind}"]
        out[f"lm_head.dense.{kind}"] = weights[f"cls.predictions.transform.dense.{kind}"]
        out[f"lm_head.layernorm.{kind}"] = weights[f"cls.predictions.transform.LayerNorm.{kind}"]
        out[f"binary_head.{kind}"] = weights[f"cls.seq_relationship.{kind}"]
    out["lm_head.bias"] = part(padded(weights["cls.predictions.bias"], ranks), rank, ranks, 0)
    return out


def flat(plain):
    """Names of 2019: one dictionary."""
    rename = {"layers.": "transformer.layers.", "final_": "transformer.final_"}
    for prefix, new in rename.items():
        plain = OrderedDict((new + name[len(prefix):] if name.startswith(prefix) else name, t)
                            for name, t in plain.items())
    return plain


def nested(plain, is_bert=False):
    """Names of versions 1 and 2: dictionaries inside of each other."""
    embedding, transformer, heads = OrderedDict(), OrderedDict(), OrderedDict()
    for name, tensor in plain.items():
        if name.endswith("_embeddings.weight"):
            embedding.setdefault(name.removesuffix(".weight"), OrderedDict())["weight"] = tensor
        elif name.startswith(("layers.", "final_")):
            transformer[name] = tensor
        elif name.startswith("pooler."):
            heads.setdefault("pooler", OrderedDict())[name.removeprefix("pooler.")] = tensor
        else:
            top, rest = name.split(".", 1)
            heads.setdefault(top, OrderedDict())[rest] = tensor
    language = OrderedDict()
    if embedding:
        language["embedding"] = embedding
    language["encoder" if is_bert else "transformer"] = transformer
    if "pooler" in heads:
        language["pooler"] = heads.pop("pooler")
    return OrderedDict(language_model=language, **heads)


def arguments(config, is_bert, ranks, **others):
    """What Megatron-LM keeps of its command line, in part."""
    name = (lambda ours, theirs: config[theirs if is_bert else ours])
    return Namespace(
        num_layers=name("n_layer", "num_hidden_layers"), hidden_size=name("n_embd", "hidden_size"),
        num_attention_heads=name("n_head", "num_attention_heads"),
        max_position_embeddings=name("n_positions", "max_position_embeddings"),
        layernorm_epsilon=name("layer_norm_epsilon", "layer_norm_eps"), openai_gelu=not is_bert,
        bias_gelu_fusion=False, apply_residual_connection_post_layernorm=config["model_type"] == "bert",
        tokenizer_type="BertWordPieceTokenizer" if is_bert else "GPT2BPETokenizer", model_parallel_size=ranks,
        make_vocab_size_divisible_by=DIVISOR, hidden_dropout=0.1, attention_dropout=0.1, params_dtype=torch.float32,
        lr=1.5e-4, save="checkpoints", train_data=None, **others)


def save(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)


def iteration(number):
    return {"iteration": number, "lr_scheduler": {"max_lr": 1.5e-4, "num_iters": number},
            "rng_tracker_states": {"model-parallel-rng": torch.ByteTensor([1, 2, 3])}}


def megatron(out, gpt2, berts):
    """Directories of Megatron-LM."""
    weights, config = gpt2
    heads = config["n_head"]
    for rank in range(2):
        model = flat(gpt2_rank(weights, rank, 2, heads, 0))
        save(out / f"gpt2_2019/iter_0000500/mp_rank_{rank:02}/model_optim_rng.pt", {"model": model, **iteration(500)})
        model = nested(gpt2_rank(weights, rank, 2, heads, 1))
        save(out / f"gpt2_v1/release/mp_rank_{rank:02}/model_optim_rng.pt",
             {"model": model, "args": arguments(config, False, 2), "checkpoint_version": 1.0, **iteration(0)})
        plain = gpt2_rank(weights, rank, 2, heads, 2)
        halves = [OrderedDict((n, t) for n, t in plain.items() if not n.startswith(("layers.1", "final"))),
                  OrderedDict((n.replace("layers.1", "layers.0"), t) for n, t in plain.items()
                              if n.startswith(("layers.1", "final", "word")))]
        for stage, half in enumerate(halves):
            model = nested(half)
            if stage == 1:
                # The last stage has a copy of the embedding for the head.
                model["word_embeddings_for_head"] = model["language_model"].pop("embedding")["word_embeddings"]
            save(out / f"gpt2_v2/iter_0000020/mp_rank_{rank:02}_{stage:03}/model_optim_rng.pt",
                 {"model": model, "args": arguments(config, False, 2), "checkpoint_version": 2.0, **iteration(20)})
        for name, bert in zip(("bert_v2", "megatron_bert_v2"), berts):
            model = nested(bert_rank(bert[0], rank, 2, bert[1]["num_attention_heads"], 2), True)
            save(out / f"{name}/iter_0000003/mp_rank_{rank:02}/model_optim_rng.pt",
                 {"model": model, "args": arguments(bert[1], True, 2), "checkpoint_version": 2.0, **iteration(3)})
    for name, text in (("gpt2_2019", "500"), ("gpt2_v1", "release"), ("gpt2_v2", "20"), ("bert_v2", "3"),
                       ("megatron_bert_v2", "3")):
        (out / name / "latest_checkpointed_iteration.txt").write_text(text)


def chunks(flat_tensor, ranks, padding):
    """Equal parts of a vector that is padded to a multiple of `padding`."""
    missing = -flat_tensor.numel() % padding
    return torch.cat([flat_tensor, torch.zeros(missing)]).chunk(ranks)


def zero_2(out, gpt2):
    """Stage 2 under two tensor-parallel ranks: parameters in f16, master weights in two groups over two data ranks."""
    weights, config = gpt2
    for rank in range(2):
        plain = flat(gpt2_rank(weights, rank, 2, config["n_head"], 0))
        decayed = [n for n, t in plain.items() if t.dim() > 1]
        groups = [decayed, [n for n in plain if n not in decayed]]
        shapes = [OrderedDict((n, plain[n].shape) for n in group) for group in groups]
        module = OrderedDict((n, t.half()) for n, t in plain.items())
        save(out / f"gpt2_zero2/global_step7/mp_rank_{rank:02}_model_states.pt",
             {"module": module, "param_shapes": shapes, "buffer_names": [], "iteration": 7, "dp_world_size": 2})
        vectors = [chunks(torch.cat([plain[n].flatten() for n in group]), 2, 4) for group in groups]
        for data in range(2):
            save(out / f"gpt2_zero2/global_step7/zero_pp_rank_{data}_mp_rank_{rank:02}_optim_states.pt",
                 {"optimizer_state_dict": {
                     "zero_stage": 2, "partition_count": [2, 2], "loss_scaler": None,
                     "single_partition_of_fp32_groups": [vector[data].clone() for vector in vectors]}})
    (out / "gpt2_zero2/latest").write_text("global_step7")


def zero_3(out, gpt2):
    """Stage 3 of a model of transformers over three data ranks: each parameter in three parts."""
    weights, _ = gpt2
    names = [name for name in weights if name != "lm_head.weight"]
    shapes = [OrderedDict((n, weights[n].shape) for n in names)]
    for data in range(3):
        save(out / f"gpt2_zero3/global_step9/zero_pp_rank_{data}_mp_rank_00_model_states.pt",
             {"module": OrderedDict(), "param_shapes": shapes, "buffer_names": []})
        parts = [chunks(weights[n].flatten(), 3, 3)[data] for n in names]
        vector = torch.cat(parts)
        # Sub-groups divide the vector anywhere.
        middle = vector.numel() // 3
        save(out / f"gpt2_zero3/global_step9/zero_pp_rank_{data}_mp_rank_00_optim_states.pt",
             {"optimizer_state_dict": {"zero_stage": 3, "partition_count": 3,
                                       "fp32_flat_groups": [vector[:middle].clone(), vector[middle:].clone()]}})
    (out / "gpt2_zero3/latest").write_text("global_step9")


def layer_files(out, gpt2):
    """A pipeline of DeepSpeed: a file for each layer and tensor-parallel rank."""
    weights, config = gpt2
    for rank in range(2):
        plain = gpt2_rank(weights, rank, 2, config["n_head"], 0)
        files = {0: OrderedDict((n, t) for n, t in plain.items() if "embeddings" in n)}
        for layer in range(config["n_layer"]):
            prefix = f"layers.{layer}."
            files[2 + layer] = OrderedDict((n.removeprefix(prefix), t) for n, t in plain.items()
                                           if n.startswith(prefix))
        files[3 + config["n_layer"]] = OrderedDict((kind, plain[f"final_layernorm.{kind}"])
                                                   for kind in ("weight", "bias"))
        for layer, content in files.items():
            save(out / f"gpt2_layers/global_step4/layer_{layer:02}-model_{rank:02}-model_states.pt", content)
        save(out / f"gpt2_layers/global_step4/mp_rank_{rank:02}_model_states.pt",
             {"module": None, "iteration": 4, "args": arguments(config, False, 2)})
    (out / "gpt2_layers/latest").write_text("global_step4")


def write_all(out, golden):
    models = []
    for directory in ("gpt2_a/lm", "bert_a/pretraining", "megatron_bert_a/pretraining"):
        weights = load_file(golden / directory / "model.safetensors")
        models.append((weights, json.loads((golden / directory / "config.json").read_text())))
    gpt2, *berts = models
    if out.exists():
        shutil.rmtree(out)
    megatron(out, gpt2, berts)
    zero_2(out, gpt2)
    zero_3(out, gpt2)
    layer_files(out, gpt2)


def contents(path):
    """The tensors of a file in the order of the file."""
    found, queue = [], [torch.load(path, weights_only=False)]
    while queue:
        value = queue.pop(0)
        if torch.is_tensor(value):
            found.append(value)
        elif isinstance(value, dict):
            queue.extend(value.values())
        elif isinstance(value, (list, tuple)):
            queue.extend(value)
    return found


def check(committed, fresh):
    """Differences between two trees, as sentences."""
    faults = []
    for path in sorted(fresh.rglob("*.pt")):
        other = committed / path.relative_to(fresh)
        old, new = (contents(other) if other.is_file() else None), contents(path)
        if old is None or len(old) != len(new) or not all(torch.equal(a, b) for a, b in zip(old, new)):
            faults.append(f"{path.relative_to(fresh)} differs")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing")
    arguments_given = parser.parse_args()
    committed = DEFAULT_OUT / "ranked"
    if not arguments_given.check:
        write_all(committed, DEFAULT_OUT)
        return
    fresh = DEFAULT_OUT.parent / "ranked.fresh"
    write_all(fresh, DEFAULT_OUT)
    faults = check(committed, fresh)
    shutil.rmtree(fresh)
    print("\n".join(faults) if faults else "golden data are as committed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
