"""Golden data for adapters: writes `adapters`, PEFT's LoRA, DoRA, IA3, prompt and prefix tuning on tiny models of
other goldens in 64-bit floats.

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
from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    BertForSequenceClassification, BloomForCausalLM, GPT2LMHeadModel, LlamaForCausalLM, OPTForCausalLM,
    Qwen3ForCausalLM, T5ForConditionalGeneration,
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


def prompted_loss(output, labels):
    """The loss of a decoder, or of a decoder beside an encoder, where virtual tokens may precede its tokens."""
    virtual = output.logits.shape[1] - labels.shape[1]
    labels = torch.cat([torch.full((labels.shape[0], virtual), -100), labels], dim=1)
    logits = output.logits
    if "encoder_last_hidden_state" not in output:
        # The first token is predicted from the last virtual one.
        logits, labels = logits[:, :-1], labels[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def outputs_of(tuned, batch):
    """The outputs of a model with its adapter."""
    config = tuned.peft_config["default"]
    if getattr(config, "num_transformer_submodules", None) != 2:
        return tuned(**batch)
    base, virtual = tuned.base_model, config.num_virtual_tokens
    prompt = tuned.prompt_encoder["default"].embedding.weight
    rows, embed = len(batch["labels"]), base.get_input_embeddings()
    encoder, decoder = (half.expand(rows, -1, -1) for half in (prompt[:virtual], prompt[virtual:]))

    def before(mask):
        return None if mask is None else torch.cat([torch.ones(rows, virtual, dtype=torch.int64), mask], dim=1)

    read = batch.get("decoder_input_ids")
    read = base.prepare_decoder_input_ids_from_labels(batch["labels"]) if read is None else read
    return base(inputs_embeds=torch.cat([encoder, embed(batch["input_ids"])], dim=1),
                attention_mask=before(batch["attention_mask"]),
                decoder_inputs_embeds=torch.cat([decoder, embed(read)], dim=1),
                decoder_attention_mask=before(batch.get("decoder_attention_mask")))


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
    # Virtual tokens of models with rotary and with learned positions.
    "prompt_llama": ("llama_a/lm", LlamaForCausalLM, prompted_loss, {
        "task_type": "CAUSAL_LM", "num_virtual_tokens": 3}),
    "prompt_gpt2": ("gpt2_a/lm", GPT2LMHeadModel, prompted_loss, {"task_type": "CAUSAL_LM", "num_virtual_tokens": 2}),
    # Before the encoder alone, as PEFT has it, and before the decoder too, as PEFT had it once: its own code computes
    # that no longer.
    "prompt_t5": ("t5_b/lm", T5ForConditionalGeneration, prompted_loss, {
        "task_type": "SEQ_2_SEQ_LM", "num_virtual_tokens": 4, "num_transformer_submodules": 1}),
    "prompt_t5_both": ("t5_b/lm", T5ForConditionalGeneration, prompted_loss, {
        "task_type": "SEQ_2_SEQ_LM", "num_virtual_tokens": 2, "num_transformer_submodules": 2}),
    # Trained lengths of rows: of parts of fused projections, beside biases of matrices stored transposed, of rows that
    # are interleaved, beside a classifier.
    "dora_llama": ("llama_a/lm", LlamaForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"], "r": 4,
        "lora_alpha": 6, "use_dora": True}),
    "dora_gpt2": ("gpt2_a/lm", GPT2LMHeadModel, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["c_attn", "mlp.c_proj"], "r": 3, "lora_alpha": 5,
        "use_dora": True, "fan_in_fan_out": True}),
    "dora_bloom": ("bloom_a/lm", BloomForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["query_key_value", "dense_h_to_4h"], "r": 4, "lora_alpha": 4,
        "use_dora": True}),
    "dora_bert": ("bert_a/cls", BertForSequenceClassification, class_loss, {
        "task_type": "SEQ_CLS", "target_modules": ["query", "value", "intermediate.dense"], "r": 2, "lora_alpha": 8,
        "use_dora": True}),
    # Learned factors of the same, and of keys and values of an encoder's states.
    "ia3_llama": ("llama_a/lm", LlamaForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["k_proj", "v_proj", "down_proj"],
        "feedforward_modules": ["down_proj"]}),
    "ia3_gpt2": ("gpt2_a/lm", GPT2LMHeadModel, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["c_attn", "mlp.c_proj"], "feedforward_modules": ["mlp.c_proj"],
        "fan_in_fan_out": True}),
    "ia3_bloom": ("bloom_a/lm", BloomForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "target_modules": ["query_key_value", "dense_4h_to_h"],
        "feedforward_modules": ["dense_4h_to_h"]}),
    "ia3_bert": ("bert_a/cls", BertForSequenceClassification, class_loss, {
        "task_type": "SEQ_CLS", "target_modules": ["key", "value", "output.dense"],
        "feedforward_modules": ["output.dense"]}),
    "ia3_t5": ("t5_b/lm", T5ForConditionalGeneration, seq2seq.loss_of, {
        "task_type": "SEQ_2_SEQ_LM", "target_modules": ["k", "v", "wo"], "feedforward_modules": ["wo"]}),
    # Keys and values of virtual tokens: of fewer heads than queries have beside rotary positions, beside learned ones,
    # slopes and norms of heads, and where a position table begins with rows of no position.
    "prefix_llama": ("llama_a/lm", LlamaForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "num_virtual_tokens": 3, "prefix_projection": False}),
    "prefix_gpt2": ("gpt2_a/lm", GPT2LMHeadModel, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "num_virtual_tokens": 2, "prefix_projection": False}),
    "prefix_bloom": ("bloom_a/lm", BloomForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "num_virtual_tokens": 4, "prefix_projection": False}),
    "prefix_qwen3": ("qwen3_b/lm", Qwen3ForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "num_virtual_tokens": 1, "prefix_projection": False}),
    "prefix_opt": ("opt_a/lm", OPTForCausalLM, decoders.loss_of, {
        "task_type": "CAUSAL_LM", "num_virtual_tokens": 3, "prefix_projection": False}),
}


def is_norm(name):
    return "norm" in name.lower() or "ln_" in name


def name_in_file(name):
    """The name that a parameter has in PEFT's file."""
    if name.startswith("prompt_encoder."):
        return "prompt_embeddings"
    name = re.sub(r"\.(modules_to_save\.)?default\b", "", name)
    return name.removesuffix(".weight") if name.endswith("lora_magnitude_vector.weight") else name


def config_of(settings):
    """The configuration of an adapter."""
    if "prefix_projection" in settings:
        return PrefixTuningConfig(**settings)
    if "num_virtual_tokens" in settings:
        return PromptTuningConfig(**settings)
    return LoraConfig(lora_dropout=0.0, **settings) if "r" in settings else IA3Config(**settings)


def build(model, kind, settings, seed):
    """The model with an adapter whose matrices are all sampled; dropout off."""
    tuned = kind.from_pretrained(DEFAULT_OUT / model, attn_implementation="eager")
    tuned = get_peft_model(tuned, config_of(settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(tuned.named_parameters()):
            if "lora_" in name or "prompt_encoder" in name or "ia3_l" in name:
                sampled = torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * DEVIATION
                # Lengths of rows are multiplied: they are positive.
                parameter.copy_(parameter * (1 + sampled) if "magnitude" in name else
                                1 + sampled if "ia3_l" in name else sampled)
    return tuned


def save(tuned, model, directory):
    """Write an adapter of a model as a directory without what differs from one machine or run to the next."""
    directory.mkdir(parents=True, exist_ok=True)
    tuned.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / "adapter_config.json"
    fields = json.loads(path.read_text()) | {"base_model_name_or_path": model}
    if fields.get("num_transformer_submodules") == 2:
        fields["decoder_prompt"] = True
    for field in ("target_modules", "feedforward_modules"):
        # Of sets, whose order changes.
        if fields.get(field):
            fields[field].sort()
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def write_golden(directory, model, loss_of, build, outputs_of, name_in_file):
    """Write logits, loss and gradients of the adapter that is saved in a directory, and a course of training, in 64-bit
    floats: of the models that `build` returns."""
    inputs = load_file(DEFAULT_OUT / model / "inputs.safetensors")
    with in_64_bits():
        wide = build().double().eval()
        output = outputs_of(wide, inputs)
        loss = loss_of(output, inputs["labels"])
        loss.backward()
    # Without the logits of virtual tokens.
    logits = output.logits if output.logits.dim() == 2 else output.logits[:, -inputs["labels"].shape[1]:]
    golden = {"logits": logits, "loss": loss}
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
        steps = train(build().double().train(), batches, is_norm,
                      lambda model, batch: loss_of(outputs_of(model, batch), batch["labels"]))
    save_file(steps, directory / "training.safetensors")
    print(f"{directory.name}: loss {loss.item():.6f}; training {steps['losses'][0]:.4f} -> {steps['losses'][-1]:.4f}")


def write_adapter(out, name, seed):
    model, kind, loss_of, settings = ADAPTERS[name]
    directory = out / "adapters" / name
    save(build(model, kind, settings, seed), model, directory)
    write_golden(directory, model, loss_of, lambda: build(model, kind, settings, seed), outputs_of, name_in_file)


# Two adapters of one model and their weights, with the seed of the second.
COMBINED = ("llama_a/lm", ("llama", 0.75), ("combined_llama", 601, -0.5))
SECOND = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj", "down_proj"], "r": 3, "lora_alpha": 5}


def write_combined(out):
    """A second adapter of the Llama, and the logits with both: PEFT's concatenated matrices."""
    model, (first, first_weight), (name, seed, weight) = COMBINED
    directory = out / "adapters" / name
    tuned = build(model, LlamaForCausalLM, SECOND, seed)
    save(tuned, model, directory)
    inputs = load_file(DEFAULT_OUT / model / "inputs.safetensors")
    tuned.load_adapter(out / "adapters" / first, "first")
    with in_64_bits():
        wide = tuned.double().eval()
        wide.add_weighted_adapter(["first", "default"], [first_weight, weight], "both", combination_type="cat")
        wide.set_adapter("both")
        logits = wide(**inputs).logits
    save_file({"logits": logits.detach().clone().contiguous()}, directory / "golden.safetensors")
    print(f"{name}: logits of two adapters")


# Keys and values that are projected from smaller embeddings: the model, the seed, the configuration.
PROJECTED = ("prefix_projected", "llama_a/lm", 611, {
    "task_type": "CAUSAL_LM", "num_virtual_tokens": 3, "prefix_projection": True, "encoder_hidden_size": 6})


def write_projected(out):
    """An adapter whose projection PEFT has computed in the tensor that it saved, and the logits with it."""
    name, model, seed, settings = PROJECTED
    directory = out / "adapters" / name
    tuned = build(model, LlamaForCausalLM, settings, seed)
    save(tuned, model, directory)
    inputs = load_file(DEFAULT_OUT / model / "inputs.safetensors")
    tuned = peft.PeftModel.from_pretrained(
        LlamaForCausalLM.from_pretrained(DEFAULT_OUT / model, attn_implementation="eager"), directory)
    with in_64_bits():
        logits = tuned.double().eval()(**inputs).logits
    save_file({"logits": logits.detach().clone().contiguous()}, directory / "golden.safetensors")
    print(f"{name}: logits of projected keys and values")


def write_all(out):
    assert peft.__version__ == PINNED_PEFT, f"peft is {peft.__version__}, the goldens are of {PINNED_PEFT}"
    for number, name in enumerate(ADAPTERS):
        write_adapter(out, name, 501 + number)
    write_combined(out)
    write_projected(out)


if __name__ == "__main__":
    run(__doc__, write_all)
