"""Golden data for Gemma 2: writes gemma2_a and gemma2_b. decoders.py describes them and how to run this script."""

from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma2ForSequenceClassification

from decoders import like_llama, main

# Of both families. Shapes that share no size, so that a transposed or mixed-up axis cannot pass all: windows shorter
# than the text, biases, heads that are not D / N long.
SIZES = {
    "a": {
        "vocab_size": 43, "hidden_size": 20, "intermediate_size": 25, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
        "rms_norm_eps": 1e-5, "pad_token_id": 0, "attention_bias": True, "query_pre_attn_scalar": 7,
        "sliding_window": 3,
    },
    "b": {
        "vocab_size": 31, "hidden_size": 15, "intermediate_size": 22, "num_hidden_layers": 2,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "max_position_embeddings": 16,
        "rms_norm_eps": 1e-3, "pad_token_id": 0, "query_pre_attn_scalar": 10, "sliding_window": 5,
    },
}
MASKS = {
    "a": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    "b": ["#" * 16, "#" * 9 + "." * 7, "." * 7 + "#" * 9, "#" * 9 + ".." + "#" * 5, "." * 8 + "#" + "." * 7],
}
MODELS = {
    # Windows shorter than the text in the first and the last layer; biases; heads that are not D / N long; caps that
    # bend most scores and logits.
    "gemma2_a": {
        "seed": 451,
        "labels": 3,
        "heads": ["lm", "cls"],
        "config": {
            **SIZES["a"],
            "attn_logit_softcapping": 0.75, "final_logit_softcapping": 1.25,
            "rope_parameters": {"rope_type": "default", "rope_theta": 90.0},
        },
        "masks": MASKS["a"],
    },
    # Every second layer with a window, but the second rather than the first; no cap of scores; positions stretched.
    "gemma2_b": {
        "seed": 463,
        "labels": 1,
        "heads": ["lm", "cls"],
        "config": {
            **SIZES["b"],
            "layer_types": ["full_attention", "sliding_attention"], "attn_logit_softcapping": None,
            "final_logit_softcapping": 2.0,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.5},
        },
        "masks": MASKS["b"],
    },
}

if __name__ == "__main__":
    main(like_llama(Gemma2Config, Gemma2ForCausalLM, Gemma2ForSequenceClassification, MODELS, norm_mean=0.0))
