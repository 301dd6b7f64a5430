"""Golden data for GPT-NeoX: writes gpt_neox_a and gpt_neox_b. decoders.py describes them and how to run this script."""

from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, GPTNeoXForSequenceClassification

from decoders import Family, main

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    # Attention and feed-forward in parallel; half of each head is rotated.
    "gpt_neox_a": {
        "seed": 277,
        "labels": 3,
        "config": {
            "vocab_size": 43, "hidden_size": 24, "intermediate_size": 25, "num_hidden_layers": 3,
            "num_attention_heads": 3, "max_position_embeddings": 40, "layer_norm_eps": 1e-5, "pad_token_id": 0,
            "rotary_pct": 0.5, "rotary_emb_base": 20.0,
        },
        "masks": ["###########", "#######....", "#..........", "#########..", "..#########", "##.....####"],
    },
    # One after the other; a quarter of each head, as where a file is silent; no biases in attention, another function.
    "gpt_neox_b": {
        "seed": 281,
        "labels": 1,
        "config": {
            "vocab_size": 31, "hidden_size": 16, "intermediate_size": 29, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 26, "layer_norm_eps": 1e-2, "pad_token_id": 0,
            "use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new",
        },
        "masks": ["#############", "#########....", "....#########", "#####..######", "......#......"],
    },
}

if __name__ == "__main__":
    main(Family(
        config=GPTNeoXConfig, off={"attention_dropout": 0.0, "hidden_dropout": 0.0},
        heads={"lm": (GPTNeoXForCausalLM, True), "untied": (GPTNeoXForCausalLM, False),
               "cls": (GPTNeoXForSequenceClassification, False)},
        models=MODELS, is_norm=lambda name: "norm" in name, fields={"bos_token_id": 1, "eos_token_id": 2},
        stored={"lm_head.weight": "embed_out.weight"}))
