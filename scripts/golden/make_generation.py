"""Golden data for generation: the completions that transformers generates with the tiny models of the other golden
data.

Writes crates/model-center/tests/golden/generation.json: for each model the settings, the prompts, and the token ids and
score of each completion, computed in 64-bit floats without a cache and for each prompt alone, so that neither padding
nor a cache has a part in them. The same in 32-bit floats must give the same tokens, or a test of them would test
rounding. The data are committed; run this only to change them:

    $(scripts/python_env.sh) scripts/golden/make_generation.py            # writes the file
    $(scripts/python_env.sh) scripts/golden/make_generation.py --check    # recomputes it and compares with the old one
"""

import json
import sys

import torch
import transformers
from goldens import DEFAULT_OUT, in_64_bits, start
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

# Directories of golden data with a language-modelling head.
MODELS = ["gpt2_a/lm", "gpt2_a/untied", "gptj_a/lm", "llama_a/lm", "mistral_a/lm", "mistral_b/lm", "qwen2_a/lm",
          "qwen3_a/lm",
          "opt_a/lm", "bloom_a/lm", "t5_a/lm", "t5_b/lm", "t5_mt5/lm", "bart_a/lm", "marian_a/lm"]
LENGTHS = [5, 3, 6]
NEW_TOKENS = 9

# Names and meaning are transformers'.
SETTINGS = {
    "greedy": {},
    "greedy_penalty": {"repetition_penalty": 1.7, "min_new_tokens": 4},
    "beams": {"num_beams": 3, "num_return_sequences": 3},
    "beams_long": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 2.0, "min_new_tokens": 2},
    "beams_short_first": {"num_beams": 3, "length_penalty": 0.3, "early_stopping": True},
    "beams_never": {"num_beams": 2, "num_return_sequences": 2, "length_penalty": -0.5, "early_stopping": "never"},
    "beams_penalty": {"num_beams": 3, "num_return_sequences": 1, "repetition_penalty": 1.3},
    "greedy_no_repeat": {"no_repeat_ngram_size": 2, "suppress_tokens": [5], "bad_words_ids": [[6]]},
    "beams_renormalized": {"num_beams": 3, "num_return_sequences": 2, "suppress_tokens": [5, 7], "bad_words_ids": [[6]],
                           "renormalize_logits": True},
    "beams_forced": {"num_beams": 3, "num_return_sequences": 2, "no_repeat_ngram_size": 2, "forced_bos_token_id": 7,
                     "forced_eos_token_id": 4},
}


def prompts_of(seed, vocabulary):
    """Token ids of three prompts; the smallest ids are special tokens of these models."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocabulary - 2, (length,), generator=generator).tolist() for length in LENGTHS]


def write(model, prompts, ends, settings):
    """The texts of each prompt, with their scores where there are any."""
    config = model.config
    written = []
    for prompt in prompts:
        generation = GenerationConfig(
            do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=ends, pad_token_id=config.pad_token_id,
            use_cache=False,
            decoder_start_token_id=getattr(config, "decoder_start_token_id", None), output_scores=True,
            return_dict_in_generate=True, **settings)
        # Other generation settings of the family's configuration are not used.
        model.generation_config = generation
        ids = torch.tensor([prompt])
        result = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=generation)
        begun = 1 if config.is_encoder_decoder else len(prompt)
        scores = getattr(result, "sequences_scores", None)
        texts = []
        for index, row in enumerate(result.sequences[:, begun:].tolist()):
            # Shorter texts are padded after their EOS token.
            last = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
            texts.append({"words": row[:last + 1], "score": None if scores is None else scores[index].item()})
        written.append(texts)
    return written


def token_ids_of(written):
    return [[text["words"] for text in texts] for texts in written]


def model_data(directory, root):
    """Prompts, EOS ids, and the completions with each of the settings."""
    config = AutoConfig.from_pretrained(root / directory)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    narrow = kind.from_pretrained(root / directory, attn_implementation="eager").eval()
    wide = kind.from_pretrained(root / directory, attn_implementation="eager").double().eval()
    for seed in range(100):
        prompts = prompts_of(seed, config.vocab_size)
        # Tokens that come early in some texts serve as EOS, so that some of the texts end.
        free = write(narrow, prompts, [config.vocab_size - 1], {})
        ends = sorted({free[0][0]["words"][min(5, len(free[0][0]["words"]) - 1)], free[1][0]["words"][-1]})
        with in_64_bits():
            texts = {name: write(wide, prompts, ends, settings) for name, settings in SETTINGS.items()}
        rounded = {name: write(narrow, prompts, ends, settings) for name, settings in SETTINGS.items()}
        lengths = {len(text["words"]) for written in texts.values() for one in written for text in one}
        if all(token_ids_of(texts[name]) == token_ids_of(rounded[name]) for name in SETTINGS) and len(lengths) > 2:
            return {"folder": directory, "prompts": prompts, "ends": ends, "texts": texts}
    sys.exit(f"error: no prompts for {directory} whose texts do not depend on rounding")


def close(old, new):
    """Whether two golden values are the same; scores but for the order of sums on another processor."""
    if isinstance(new, float) and isinstance(old, float):
        return abs(old - new) <= 1e-9 * max(1.0, abs(new))
    if isinstance(new, dict) and isinstance(old, dict):
        return old.keys() == new.keys() and all(close(old[key], new[key]) for key in new)
    if isinstance(new, list) and isinstance(old, list):
        return len(old) == len(new) and all(close(*pair) for pair in zip(old, new))
    return old == new


def main():
    arguments = start(__doc__)
    transformers.utils.logging.set_verbosity_error()
    data = {"new_tokens": NEW_TOKENS, "settings": SETTINGS,
            "models": [model_data(directory, DEFAULT_OUT) for directory in MODELS]}
    path = arguments.out / "generation.json"
    if arguments.check:
        same = close(json.loads(path.read_text()), data)
        print("golden data are as committed" if same else f"{path} differs")
        sys.exit(0 if same else 1)
    path.write_text(json.dumps(data, separators=(",", ":")).replace('{"directory"', '\n{"directory"') + "\n")


if __name__ == "__main__":
    main()
