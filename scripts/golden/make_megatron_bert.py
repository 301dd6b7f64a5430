"""Golden data for Megatron-LM's BERT: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/megatron_bert_a and megatron_bert_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_megatron_bert.py            # writes the directories
    "$python" scripts/golden/make_megatron_bert.py --check    # recomputes them and compares with the committed files
"""

import transformers

from encoders import Family, main

HEADS = {
    "cls": transformers.MegatronBertForSequenceClassification,
    "mlm": transformers.MegatronBertForMaskedLM,
    "nsp": transformers.MegatronBertForNextSentencePrediction,
    "pretraining": transformers.MegatronBertForPreTraining,
    "tokens": transformers.MegatronBertForTokenClassification,
    "qa": transformers.MegatronBertForQuestionAnswering,
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    "megatron_bert_a": {
        "seed": 311,
        "labels": 2,
        "config": {
            "vocab_size": 89, "hidden_size": 20, "num_attention_heads": 4, "intermediate_size": 36,
            "num_hidden_layers": 2, "max_position_embeddings": 19, "type_vocab_size": 2,
            "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["############", "#######.....", "#...........", "#########..."],
    },
    "megatron_bert_b": {
        "seed": 323,
        "labels": 5,
        "config": {
            "vocab_size": 61, "hidden_size": 27, "num_attention_heads": 3, "intermediate_size": 31,
            "num_hidden_layers": 3, "max_position_embeddings": 13, "type_vocab_size": 3,
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-12,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
    },
}

if __name__ == "__main__":
    kind = transformers.MegatronBertConfig
    main(Family(models={name: spec | {"kind": kind, "heads": HEADS} for name, spec in MODELS.items()}))
