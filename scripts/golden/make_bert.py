"""Golden data for BERT: tiny seeded models of the transformers library, evaluated in 64-bit floats.

Writes crates/model-center/tests/golden/bert_a and bert_b; crates/model-center/tests/golden/README.md
describes every file and tensor. The data are committed; run this only to change them:

    python="$(scripts/python_env.sh)"
    "$python" scripts/golden/make_bert.py            # writes the directories
    "$python" scripts/golden/make_bert.py --check    # recomputes them and compares with the committed files
"""

import transformers
from transformers import BertConfig

from encoders import Family, main

HEADS = {
    "cls": transformers.BertForSequenceClassification,
    "mlm": transformers.BertForMaskedLM,
    "nsp": transformers.BertForNextSentencePrediction,
    "pretraining": transformers.BertForPreTraining,
    "tokens": transformers.BertForTokenClassification,
    "qa": transformers.BertForQuestionAnswering,
}

# Two shapes that share no size, so that a transposed or mixed-up axis cannot pass both.
MODELS = {
    "bert_a": {
        "seed": 11,
        "labels": 2,
        "config": {
            "vocab_size": 101, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64,
            "num_hidden_layers": 2, "max_position_embeddings": 24, "type_vocab_size": 2,
            "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        },
        # Right padding: a full row, a row of one token, and lengths between.
        "masks": ["############", "#######.....", "#...........", "#########..."],
    },
    "bert_b": {
        "seed": 23,
        "labels": 5,
        "config": {
            "vocab_size": 67, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40,
            "num_hidden_layers": 3, "max_position_embeddings": 16, "type_vocab_size": 3,
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-5,
        },
        # A full row, right padding, left padding, a hole in the middle, a row of one token that is not the first.
        "masks": ["#########", "#####....", "...######", "####..###", "....#...."],
    },
}

FAMILY = Family(models={name: spec | {"kind": BertConfig, "heads": HEADS} for name, spec in MODELS.items()})

if __name__ == "__main__":
    main(FAMILY)
