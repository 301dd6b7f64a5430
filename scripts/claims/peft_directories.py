"""Directories that PEFT writes, of many methods and options on tiny models, against what the programs here compute.

Usage: python peft_directories.py BIN SCRATCH

Each directory is opened by `forward` beside its base model and, where it can be merged, by `convert --merge`, whose
result is opened by transformers too. Each gives PEFT's logits within 1e-5 of the largest, or is refused. Then
`finetune` writes directories of its own, and PEFT opens them.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import torch
from peft import (
    IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model,
)
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
    LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, T5Config, T5ForConditionalGeneration, logging,
)

torch.set_num_threads(1)
logging.set_verbosity_error()
logging.disable_progress_bar()

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from goldens import in_64_bits

BOUND = 1e-5
# Of what is trained: small enough that softmaxes are not saturated.
DEVIATION = 0.15
VOCABULARY = 50
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
         "vocab_size": VOCABULARY, "max_position_embeddings": 64, "initializer_range": 0.2}


def llama(**options):
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, **options))


# By name: the model, the linear layers of attention, its embedding, its head, a norm.
BASES = {
    "llama": (lambda: llama(), ["q_proj", "v_proj"], "embed_tokens", "lm_head", "norm"),
    "llama_tied": (lambda: llama(tie_word_embeddings=True), ["q_proj", "v_proj"], "embed_tokens", "lm_head", "norm"),
    "llama_biases": (lambda: llama(attention_bias=True, mlp_bias=True), ["q_proj", "v_proj"], "embed_tokens",
                     "lm_head", "norm"),
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=1)), ["q_proj", "v_proj"],
              "embed_tokens", "lm_head", "norm"),
    "qwen2_tied": (lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=1, tie_word_embeddings=True)),
                   ["q_proj", "v_proj"], "embed_tokens", "lm_head", "norm"),
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=2, n_layer=2, n_positions=64, vocab_size=VOCABULARY,
                                                initializer_range=0.2)), ["c_attn"], "wte", "lm_head", "ln_f"),
    "bert": (lambda: BertForSequenceClassification(BertConfig(**SIZES, num_labels=3)), ["query", "value"],
             "word_embeddings", "classifier", "LayerNorm"),
    "t5": (lambda: T5ForConditionalGeneration(T5Config(
        d_model=32, d_ff=48, d_kv=16, num_layers=2, num_heads=2, vocab_size=VOCABULARY, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False)), ["q", "v"], "shared", "lm_head", "layer_norm"),
    "t5_tied": (lambda: T5ForConditionalGeneration(T5Config(
        d_model=32, d_ff=48, d_kv=16, num_layers=2, num_heads=2, vocab_size=VOCABULARY)), ["q", "v"], "shared",
        "lm_head", "layer_norm"),
}
DECODERS = [base for base in BASES if not base.startswith(("bert", "t5"))]


def grown(model):
    """Four tokens more, with random rows."""
    torch.manual_seed(9)
    model.resize_token_embeddings(VOCABULARY + 4, mean_resizing=False)


def case(base, name, targets, change, options):
    config = LoraConfig(**{"target_modules": targets, "r": 3, "lora_alpha": 5} | options)
    return f"{base}-{name}", base, config, change


def cases(scratch):
    """Name, base, configuration, change of the base before the adapter."""
    for base, (_, targets, embedding, head, norm) in BASES.items():
        def lora(name, change=None, **options):
            return case(base, name, targets, change, options)

        task = {"task_type": "SEQ_CLS"} if base == "bert" else {}
        yield lora("lora", **task)
        yield lora("all-linear", target_modules="all-linear", use_rslora=True, **task)
        yield lora("dora", use_dora=True)
        yield lora("bias-only", bias="lora_only")
        yield lora("bias-all", bias="all")
        yield lora("saved-embedding", modules_to_save=[embedding])
        yield lora("saved-head", modules_to_save=[head])
        yield lora("saved-both", modules_to_save=[embedding, head])
        yield lora("saved-norm", modules_to_save=[norm])
        yield lora("pissa", init_lora_weights="pissa", r=rank_with_a_gap(base, scratch))
        yield lora("olora", init_lora_weights="olora")
        yield lora("patterns", rank_pattern={targets[0]: 2}, alpha_pattern={rf"1\..*\.?{targets[-1]}": 9})
        yield lora("dot-pattern", alpha_pattern={f"self.attn.{targets[0]}": 64, targets[0]: 3})
        yield f"{base}-ia3", base, IA3Config(target_modules=targets, feedforward_modules=[]), None
    for base in DECODERS:
        _, targets, embedding, head, _ = BASES[base]
        def lora(name, change=None, **options):
            return case(base, name, targets, change, options)

        yield lora("grown", grown)
        yield lora("of-embedding", target_modules=[*targets, embedding])
        yield lora("of-head", target_modules=[*targets, head])
        yield lora("tokens", trainable_token_indices={embedding: [1, 7, 9]})
        yield lora("update-bias", lora_bias=True)
        yield lora("pattern-target", target_modules=rf".*\.1\..*({'|'.join(targets)})")
        if base.endswith("_tied") or base == "gpt2":
            yield lora("ensured", modules_to_save=[embedding], ensure_weight_tying=True)
        virtual = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
        yield f"{base}-prompt", base, PromptTuningConfig(**virtual), None
        yield f"{base}-prefix", base, PrefixTuningConfig(**virtual), None
        yield f"{base}-p-tuning", base, PromptEncoderConfig(**virtual, encoder_hidden_size=16), None
    for base in ("llama", "gpt2"):
        virtual = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3, "modules_to_save": ["lm_head"]}
        yield f"{base}-prompt-head", base, PromptTuningConfig(**virtual), None
        yield f"{base}-prefix-head", base, PrefixTuningConfig(**virtual), None
    targets = ["q_proj", "v_proj"]
    for name, options in {
        "gaussian": {"init_lora_weights": "gaussian"},
        "orthogonal": {"init_lora_weights": "orthogonal", "r": 4},
        "pissa-niter": {"init_lora_weights": "pissa_niter_4"},
        "layers": {"layers_to_transform": [1], "layers_pattern": "layers"},
        "excluded": {"exclude_modules": ["layers.0.self_attn.q_proj"]},
        "replicated": {"layer_replication": [(0, 2), (1, 2)]},
        "parameters": {"target_parameters": ["layers.0.mlp.up_proj.weight"]},
        "suffix": {"modules_to_save": ["p_proj"]},
        "list-of-tokens": {"trainable_token_indices": [2, 3]},
    }.items():
        yield case("llama", name, targets, None, options)


def inputs_of(base):
    ids = torch.arange(3, 13)[None]
    return {"input_ids": ids, "decoder_input_ids": ids[:, :4].clone()} if base.startswith("t5") else {"input_ids": ids}


def logits_of(model, base):
    with in_64_bits(), torch.no_grad():
        return model.double().eval()(**inputs_of(base)).logits


def rank_with_a_gap(base, scratch):
    """A rank after which the singular values of the updated weights have the widest gap: PEFT decomposes in 32 bits,
    and singular vectors are as exact as the gap is wide."""
    model, _ = opened(base, scratch)
    gaps = torch.full((8,), float("inf"))
    for name, module in model.named_modules():
        if name.split(".")[-1] in BASES[base][1]:
            values = torch.linalg.svdvals(module.weight.detach())
            gaps = torch.minimum(gaps, values[:8] - values[1:9])
    return int(gaps.argmax()) + 1


def opened(base, scratch, change=None):
    """The base model, saved on first use."""
    directory = scratch / "bases" / base
    if not directory.exists():
        torch.manual_seed(0)
        model = BASES[base][0]().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(std=0.2)
        model.save_pretrained(directory)
    model = type(BASES[base][0]()).from_pretrained(directory)
    if change:
        change(model)
    return model.eval(), directory


def run(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith(("note", "warning"))]
    return done.returncode, " ".join(lines)[:300]


def error_of(ours, theirs):
    """The largest difference, over the largest logit; infinite for other shapes."""
    if ours.shape != theirs.shape:
        return float("inf")
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def made(name, base, config, change, scratch):
    """PEFT's directory and its logits after PEFT has opened it again; None if PEFT cannot."""
    directory = scratch / "adapters" / name
    shutil.rmtree(directory, ignore_errors=True)
    try:
        model, _ = opened(base, scratch, change)
        tuned = get_peft_model(model, config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in tuned.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * DEVIATION)
        tuned.save_pretrained(directory)
        again = PeftModel.from_pretrained(opened(base, scratch, change)[0], directory)
        return directory, logits_of(again, base)
    except Exception as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"


def check(name, base, config, change, bin_, scratch):
    """The outcome of a directory, with its figure or message."""
    directory, theirs = made(name, base, config, change, scratch)
    if directory is None:
        return "not made", theirs
    files = scratch / "in.safetensors", scratch / "out.safetensors"
    save_file({key: value.contiguous() for key, value in inputs_of(base).items()}, files[0])
    model = scratch / "bases" / base
    passes = ["--inputs", files[0], "--out", files[1]]
    status, message = run(bin_ / "forward", "--model", model, "--adapter", directory, *passes)
    if status != 0:
        return ("refused", message) if status in (2, 3) else ("WRONG", f"status {status}: {message}")
    # PEFT has logits of virtual tokens, too.
    ours = load_file(files[1])["logits"]
    error = error_of(ours, theirs[:, -ours.shape[1]:] if ours.dim() == 3 else theirs)
    if error > BOUND:
        return "WRONG", f"forward {error:.2g}"
    if isinstance(config, (LoraConfig, IA3Config)):
        merged = scratch / "merged" / name
        shutil.rmtree(merged, ignore_errors=True)
        status, message = run(bin_ / "convert", model, merged, "--merge", directory)
        if status != 0:
            return "WRONG", f"merge: status {status}: {message}"
        status, message = run(bin_ / "forward", "--model", merged, *passes)
        error = max(error, error_of(load_file(files[1])["logits"], theirs)) if status == 0 else float("inf")
        by_transformers = error_of(logits_of(type(opened(base, scratch)[0]).from_pretrained(merged), base), theirs)
        if max(error, by_transformers) > BOUND:
            return "WRONG", f"merged {error:.2g}, in transformers {by_transformers:.2g} {message}"
    return "equal", f"{error:.2g}"


# By base: recipes' keys of adapters that `finetune` trains.
OWN = {
    "lora": {"adapter.method": "lora", "adapter.rank": 3},
    "dora": {"adapter.method": "lora", "adapter.rank": 3, "adapter.dora": "true"},
    "saved-embedding": {"adapter.method": "lora", "adapter.trained": '["EMBEDDING"]'},
    "saved-head": {"adapter.method": "lora", "adapter.trained": '["HEAD"]'},
    "ia3": {"adapter.method": "ia3"},
    "ia3-embedding": {"adapter.method": "ia3", "adapter.trained": '["EMBEDDING"]'},
    "prompt": {"adapter.method": "prompt", "adapter.virtual_tokens": 3},
}


def own(base, name, keys, bin_, scratch):
    """A directory that a run here writes, opened by PEFT."""
    _, model = opened(base, scratch)
    _, _, embedding, head, _ = BASES[base]
    if not (model / "tokenizer.json").exists():
        write_tokenizer(model)
    data, out = scratch / "texts.jsonl", scratch / "own" / f"{base}-{name}"
    data.write_text("".join(json.dumps({"text": f"a b c d {'e f g' if n % 2 else 'h a'}"}) + "\n" for n in range(8)))
    shutil.rmtree(out, ignore_errors=True)
    keys = {key: str(value).replace("EMBEDDING", embedding).replace("HEAD", head) for key, value in keys.items()}
    settings = {"model.path": model, "data.task": "language", "data.train": data, "output.dir": out, "train.steps": 3,
                "train.lr": 0.05, "train.batch_size": 4, "data.max_length": 16, "device.threads": 1} | keys
    status, message = run(bin_ / "finetune", *(f"{key}={value}" for key, value in settings.items()))
    if status != 0:
        return ("refused", message) if status in (2, 3) else ("WRONG", f"status {status}: {message}")
    files = scratch / "in.safetensors", scratch / "out.safetensors"
    save_file({key: value.contiguous() for key, value in inputs_of(base).items()}, files[0])
    passes = ["--inputs", files[0], "--out", files[1]]
    status, message = run(bin_ / "forward", "--model", model, "--adapter", out / "model", *passes)
    if status != 0:
        return "WRONG", message
    try:
        tuned = PeftModel.from_pretrained(opened(base, scratch)[0], out / "model")
    except Exception as error:  # noqa: BLE001
        return "WRONG", f"PEFT: {type(error).__name__} {str(error)[:120]}"
    ours = load_file(files[1])["logits"]
    moved = error_of(ours, logits_of(opened(base, scratch)[0], base)[:, -ours.shape[1]:])
    error = error_of(ours, logits_of(tuned, base)[:, -ours.shape[1]:])
    return ("equal" if error <= BOUND and moved > 1e-4 else "WRONG"), f"{error:.2g}, moved by {moved:.2g}"


def write_tokenizer(directory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<s>", "</s>", "<unk>", *"abcdefgh", *(f"w{n}" for n in range(VOCABULARY - 11))]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
                                   pad_token="</s>")
    fast.save_pretrained(directory)


def unknown_fields():
    """Fields of PEFT's configurations that crates/model-center-models/src/adapter/peft/fields.rs does not list."""
    import dataclasses
    import re

    listed = (Path(__file__).resolve().parents[2] / "crates/model-center-models/src/adapter/peft/fields.rs").read_text()
    names = set(re.findall(r'^    \("(\w+)", ', listed, re.MULTILINE))
    kinds = (LoraConfig, IA3Config, PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig)
    return sorted({f"{kind.__name__}.{field.name}" for kind in kinds for field in dataclasses.fields(kind)
                   if field.name not in names})


def main():
    bin_, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    wanted = sys.argv[3:]
    outcomes = {}
    for name, base, config, change in cases(scratch):
        if not wanted or any(part in name for part in wanted):
            outcomes[name] = check(name, base, config, change, bin_, scratch)
            print(f"{name:32} {outcomes[name][0]:9} {outcomes[name][1]}", file=sys.stderr, flush=True)
    for base in DECODERS:
        for name, keys in OWN.items():
            name = f"own-{base}-{name}"
            if not wanted or any(part in name for part in wanted):
                outcomes[name] = own(base, name[len(f"own-{base}-"):], keys, bin_, scratch)
                print(f"{name:32} {outcomes[name][0]:9} {outcomes[name][1]}", file=sys.stderr, flush=True)
    counts = {kind: sum(kind == outcome for outcome, _ in outcomes.values())
              for kind in ("equal", "refused", "not made", "WRONG")}
    missing = unknown_fields()
    if missing:
        print(f"fields that are not listed: {', '.join(missing)}", file=sys.stderr)
    print(f"equal:{counts['equal']},refused:{counts['refused']},wrong:{counts['WRONG']},not_made:{counts['not made']},"
          f"unknown_fields:{len(missing)}")
    sys.exit(counts["WRONG"] > 0 or bool(missing))


if __name__ == "__main__":
    main()
