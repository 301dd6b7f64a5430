"""Golden data for Gemma 3: writes gemma3_a, gemma3_b and gemma3_c. decoders.py describes them and how to run this
script."""

from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Gemma3TextForSequenceClassification

from decoders import like_llama, main

# Shapes that share no size, so that a transposed or mixed-up axis cannot pass all.
MODELS = {
    # Windows shorter than the text in the first and the last layer; biases; heads that are not D / N long; other bases
    # in layers with and without a window; scores scaled by another number than the size of a head.
    "gemma3_a": {
        "seed": 411,
        "labels": 3,
        "heads": ["lm", "cls"],
        "config": {
            "vocab_size": 43, "hidden_size": 20, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 40,
            "rms_norm_eps": 1e-5, "pad_token_id": 0, "attention_bias": True, "query_pre_attn_scalar": 7,
            "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 90.0},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}},
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # Every second layer without a window, where positions are stretched.
    "gemma3_b": {
        "seed": 423,
        "labels": 1,
        "heads": ["lm", "cls"],
        "config": {
            "vocab_size": 31, "hidden_size": 15, "intermediate_size": 22, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "max_position_embeddings": 16,
            "rms_norm_eps": 1e-3, "pad_token_id": 0, "query_pre_attn_scalar": 10, "sliding_window": 5,
            "sliding_window_pattern": 2,
            "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.5},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 15.0}},
        },
        "masks": ["#" * 16, "#" * 9 + "." * 7, "." * 7 + "#" * 9, "#" * 9 + ".." + "#" * 5, "." * 8 + "#" + "." * 7],
    },
    # Tokens attend to later ones too, as in EmbeddingGemma; windows to both sides.
    "gemma3_c": {
        "seed": 437,
        "labels": 4,
        "heads": ["cls"],
        "trained": "cls",
        "config": {
            "vocab_size": 37, "hidden_size": 14, "intermediate_size": 19, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 24,
            "rms_norm_eps": 1e-6, "pad_token_id": 0, "query_pre_attn_scalar": 8, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"], "use_bidirectional_attention": True,
        },
        "masks": ["############", "#######.....", "....########", "#####..#####", "...#........"],
    },
}

if __name__ == "__main__":
    main(like_llama(Gemma3TextConfig, Gemma3ForCausalLM, Gemma3TextForSequenceClassification, MODELS, norm_mean=0.0))
