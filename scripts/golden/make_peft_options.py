"""Golden data for PEFT's options: writes `adapters_peft`, directories that change the base model when PEFT opens them,
on tiny models of other goldens, and PEFT's logits in 64-bit floats.

crates/model-center/tests/golden/README.md describes every file and tensor. The data are committed; run the script only
to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_peft_options.py            # writes the directories
    "$python" scripts/golden/make_peft_options.py --check    # recomputes them and compares with the committed files
"""

import json

import peft
import torch
from peft import IA3Config, LoraConfig, PeftModel, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel, LlamaForCausalLM, Qwen2ForCausalLM

from goldens import DEFAULT_OUT, in_64_bits, run

DEVIATION = 0.2
PINNED_PEFT = "0.21.2"
UPDATES = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 5}
VIRTUAL = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
GPT2 = {"target_modules": ["c_attn"], "fan_in_fan_out": True}


def lora(**options):
    return LoraConfig(lora_dropout=0.0, **(UPDATES | options))


def ia3(**options):
    return IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj", "v_proj", "down_proj"],
                     feedforward_modules=["down_proj"], **options)


def grown(model):
    """Four tokens more, with sampled rows."""
    torch.manual_seed(9)
    model.resize_token_embeddings(model.config.vocab_size + 4, mean_resizing=False)


# By directory: the model, its class, the configuration, what happens to the model before.
CASES = {
    # Biases of the updated modules, which are parts of a fused bias here; of all modules and norms.
    "bias_only": ("qwen2_a/lm", Qwen2ForCausalLM, lora(bias="lora_only"), None),
    "bias_all": ("gpt2_a/lm", GPT2LMHeadModel, lora(**GPT2, bias="all"), None),
    # Modules of tied models, which PEFT unties, and does not.
    "tied_embedding": ("llama_a/lm", LlamaForCausalLM, lora(modules_to_save=["embed_tokens"]), None),
    "tied_head": ("llama_a/lm", LlamaForCausalLM, lora(modules_to_save=["lm_head"]), None),
    "tied_both": ("llama_a/lm", LlamaForCausalLM, lora(modules_to_save=["embed_tokens", "lm_head"]), None),
    "tied_gpt2": ("gpt2_a/lm", GPT2LMHeadModel, lora(**GPT2, modules_to_save=["wte"]), None),
    "ensured": ("llama_a/lm", LlamaForCausalLM, lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True), None),
    # A name that is the end of others without a dot.
    "suffix": ("llama_a/lm", LlamaForCausalLM, lora(modules_to_save=["norm"]), None),
    # Updates that do not begin with zero. PEFT decomposes in 32 bits: the rank is one after which the singular values
    # have a gap.
    "pissa": ("llama_a/lm", LlamaForCausalLM, lora(init_lora_weights="pissa"), None),
    "pissa_gpt2": ("gpt2_a/lm", GPT2LMHeadModel, lora(**GPT2, r=7, init_lora_weights="pissa"), None),
    "olora": ("llama_a/lm", LlamaForCausalLM, lora(init_lora_weights="olora", use_rslora=True), None),
    # Embeddings that PEFT saves by itself.
    "grown": ("llama_a/lm", LlamaForCausalLM, lora(), grown),
    # Virtual tokens beside a head that is trained as a whole, and such that an encoder computed.
    "prompt_head": ("llama_a/untied", LlamaForCausalLM, PromptTuningConfig(**VIRTUAL, modules_to_save=["lm_head"]),
                    None),
    "p_tuning": ("gpt2_a/lm", GPT2LMHeadModel, PromptEncoderConfig(**VIRTUAL, encoder_hidden_size=8), None),
    # Updates of embedding and output projection, tied and not; replaced rows; biases of updates.
    "of_embedding": ("llama_a/untied", LlamaForCausalLM, lora(target_modules=["q_proj", "embed_tokens"]), None),
    "of_head": ("llama_a/lm", LlamaForCausalLM, lora(target_modules=["q_proj", "lm_head"]), None),
    "tokens": ("llama_a/lm", LlamaForCausalLM, lora(trainable_token_indices=[3, 5, 8, 30]), None),
    "update_bias": ("qwen2_a/lm", Qwen2ForCausalLM, lora(lora_bias=True), None),
    # Patterns: a dot that stands for any letter, the first of two that match; targets by a regular expression.
    "patterns": ("llama_a/lm", LlamaForCausalLM, lora(
        alpha_pattern={"self.attn.q_proj": 64, "q_proj": 3, r"1\..*v_proj": 9},
        rank_pattern={r"layers\.0\.[a-z_]+\.v_proj": 2},
        target_modules=r".*\.self_attn\.(q|v)_proj"), None),
    # Learned factors beside modules of a tied model.
    "ia3_embedding": ("llama_a/lm", LlamaForCausalLM, ia3(modules_to_save=["embed_tokens"]), None),
    "ia3_head": ("llama_a/lm", LlamaForCausalLM, ia3(modules_to_save=["lm_head"]), None),
    "ia3_both": ("llama_a/lm", LlamaForCausalLM, ia3(modules_to_save=["embed_tokens", "lm_head"]), None),
}


# A directory of the first versions of PEFT, which wrote pickles.
PICKLED = ("pickled", "llama_a/lm", LlamaForCausalLM, lora(), None)


def opened(model, kind, change):
    model = kind.from_pretrained(DEFAULT_OUT / model, attn_implementation="eager")
    if change:
        change(model)
    return model


def write_case(out, name, seed, case, **saving):
    model, kind, config, change = case
    directory = out / "adapters_peft" / name
    directory.mkdir(parents=True, exist_ok=True)
    tuned = get_peft_model(opened(model, kind, change), config)
    tuned.peft_config["default"].base_model_name_or_path = str(DEFAULT_OUT / model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in sorted(tuned.named_parameters()):
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * DEVIATION)
    tuned.save_pretrained(directory, **saving)
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / "adapter_config.json"
    fields = json.loads(path.read_text()) | {"base_model_name_or_path": model}
    if isinstance(fields.get("target_modules"), list):
        # Of a set, whose order changes.
        fields["target_modules"].sort()
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
    again = PeftModel.from_pretrained(opened(model, kind, change), directory)
    inputs = load_file(DEFAULT_OUT / model / "inputs.safetensors")
    labels = inputs.pop("labels")
    with in_64_bits(), torch.no_grad():
        logits = again.double().eval()(**inputs).logits[:, -labels.shape[1]:]
    save_file({"logits": logits.clone().contiguous()}, directory / "golden.safetensors")
    print(f"{name}: logits up to {logits.abs().max().item():.3f}")


def write_all(out):
    assert peft.__version__ == PINNED_PEFT, peft.__version__
    for number, (name, case) in enumerate(CASES.items()):
        write_case(out, name, 700 + number, case)
    name, *case = PICKLED
    write_case(out, name, 740, case, safe_serialization=False)


if __name__ == "__main__":
    run(__doc__, write_all)
