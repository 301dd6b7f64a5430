"""Golden data for sentence encoders and cross-encoders of several families: writes `sentence_families` and
`cross_encoders`, the directories that sentence-transformers saves for tiny seeded models, and what it computes of them:
embeddings, scores, losses, and the gradients of `Dense` modules.

crates/model-center/tests/golden/README.md describes every file. The data are committed; run this only to change them,
in the environment that make_sentence_encoders.py names:

    PYTHONPATH="$TMPDIR/packages" "$python" scripts/golden/make_sentence_families.py            # or with --check
"""

import json
import shutil
import tempfile
from pathlib import Path

import sentence_transformers
import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from goldens import initialize_weights, run

assert sentence_transformers.__version__ == "6.2.0"

WORDS = "the film was good bad fine and query title none text task search result : | . is what".split()
# As MPNet has them, whose positions are counted from the number of its padding token.
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
VOCABULARY = {token: at for at, token in enumerate([*SPECIAL, *WORDS])}
IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
TEXTS = ["the film was good", "bad", "fine and good and the film was bad . " * 5, "what is the film"]
# Anchors and the texts that belong to them.
PAIRS = [("what is good", "the film was good"), ("bad", "the text is bad ."), ("query : fine", "fine and good")]
SIZES = {"vocab_size": len(VOCABULARY), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 12}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ROPE = {"rope_type": "default"}


def is_norm(name):
    return "norm" in name.lower()


def tokenizer(pair_type):
    """Of words, with a special token at either end; `pair_type` is the token type of the second text of a pair."""
    own = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pair = f"<s>:0 $A:0 </s>:0 $B:{pair_type} </s>:{pair_type}"
    own.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
             "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>"}
    inputs = ["input_ids", *(["token_type_ids"] if pair_type else []), "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=own, model_input_names=inputs, model_max_length=24, **names)


def configs():
    """By family."""
    gemma = {"head_dim": 6, "num_key_value_heads": 1, "sliding_window": 4, "query_pre_attn_scalar": 6,
             "layer_types": ["sliding_attention", "full_attention"], "use_bidirectional_attention": True,
             "rope_parameters": {"full_attention": ROPE | {"rope_theta": 90.0},
                                 "sliding_attention": ROPE | {"rope_theta": 20.0}}}
    modern = {"local_attention": 4, "global_attn_every_n_layers": 2, "attention_dropout": 0.0,
              "cls_token_id": 0, "sep_token_id": 2, "rope_parameters": gemma["rope_parameters"]}
    distil = {"vocab_size": len(VOCABULARY), "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "dropout": 0.0,
              "attention_dropout": 0.0, "pad_token_id": 1}
    return {
        "mpnet": transformers.MPNetConfig(**SIZES, **OFF, **IDS, max_position_embeddings=26),
        "xlm_roberta": transformers.XLMRobertaConfig(**SIZES, **OFF, **IDS, max_position_embeddings=26,
                                                     type_vocab_size=1),
        "distilbert": transformers.DistilBertConfig(**distil, max_position_embeddings=24),
        "modernbert": transformers.ModernBertConfig(**SIZES, **IDS, **modern, max_position_embeddings=24),
        "embedding_gemma": transformers.Gemma3TextConfig(**SIZES, **IDS, **gemma, max_position_embeddings=24),
        "bert": transformers.BertConfig(**SIZES, **OFF, pad_token_id=1, max_position_embeddings=24),
    }


def write_base(out, family, seed, auto=transformers.AutoModel, **more):
    config = configs()[family]
    for name, value in more.items():
        setattr(config, name, value)
    model = auto.from_config(config, attn_implementation="eager").eval()
    initialize_weights(model, seed, is_norm, deviation=0.3)
    model.save_pretrained(out)
    tokenizer(int(family == "bert")).save_pretrained(out)


def dense(inputs, outputs, seed, **more):
    module = Dense(inputs, outputs, **more)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return module


def encoders():
    """By family: what follows the transformer, and the prompts."""
    flat = {"bias": False, "activation_function": torch.nn.Identity()}
    prompts = {"query": "task : search result | query : ", "document": "title : none | text : "}
    return {
        "mpnet": ([Pooling(8, pooling_mode="mean"), Normalize()], {}),
        "xlm_roberta": ([Pooling(8, pooling_mode="cls"), Normalize()], {}),
        "distilbert": ([Pooling(8, pooling_mode="mean"), dense(8, 6, 7)], {}),
        "modernbert": ([Pooling(8, pooling_mode="cls")], {}),
        "embedding_gemma": ([Pooling(8, pooling_mode="mean"), dense(8, 12, 5, **flat), dense(12, 8, 6, **flat),
                             Normalize()], prompts),
    }


def write_encoder(out, family, seed, modules, prompts):
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as saved:
        write_base(base, family, seed)
        model = SentenceTransformer(modules=[Transformer(base), *modules], device="cpu", prompts=prompts)
        model.save(saved, create_model_card=False)
        shutil.copytree(saved, out, dirs_exist_ok=True)
    model = SentenceTransformer(str(out), device="cpu")
    found = {"texts": TEXTS, "embeddings": model.encode(TEXTS).tolist()}
    for name, prompt in model.prompts.items():
        if prompt:
            found[f"embeddings of {name}"] = model.encode(TEXTS, prompt_name=name).tolist()
    model.eval()
    features = [model.preprocess([pair[side] for pair in PAIRS]) for side in range(2)]
    loss = MultipleNegativesRankingLoss(model)(features, None)
    loss.backward()
    found |= {"pairs": PAIRS, "loss": loss.item()}
    found["gradients"] = {f"{at}_Dense.{name}": parameter.grad.flatten().tolist()
                          for at, module in enumerate(model) if isinstance(module, Dense)
                          for name, parameter in module.named_parameters()}
    write_expected(out, found)


def write_reranker(out, family, seed, older=None, **settings):
    """`older` has the fields of `config.json` that older versions wrote in place of files."""
    with tempfile.TemporaryDirectory() as base:
        write_base(base, family, seed, transformers.AutoModelForSequenceClassification, num_labels=1)
        model = CrossEncoder(base, device="cpu", **settings)
        model.save_pretrained(str(out), create_model_card=False)
    if older:
        config = json.loads((out / "config.json").read_text())
        (out / "config.json").write_text(json.dumps(config | older, indent=2) + "\n")
        for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"]:
            (out / name).unlink(missing_ok=True)
    model = CrossEncoder(str(out), device="cpu")
    found = {"pairs": PAIRS, "scores": model.predict(PAIRS).tolist(),
             "logits": model.predict(PAIRS, activation_fn=torch.nn.Identity()).tolist()}
    # Labels between 0 and 1 are probabilities.
    labels = [1.0, 0.0, 0.25]
    model.eval()
    columns = [[pair[side] for pair in PAIRS] for side in range(2)]
    found |= {"labels": labels, "loss": BinaryCrossEntropyLoss(model)(columns, torch.tensor(labels)).item()}
    write_expected(out, found)


def write_expected(out, found):
    (out / "expected.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
    # Without names of machines or versions that change nothing.
    file = out / "config_sentence_transformers.json"
    if file.exists():
        settings = json.loads(file.read_text())
        settings["__version__"] = {"sentence_transformers": sentence_transformers.__version__}
        file.write_text(json.dumps(settings, indent=2) + "\n")


def write_all(out):
    for number, (family, (modules, prompts)) in enumerate(encoders().items()):
        write_encoder(out / "sentence_families" / family, family, 1009 + number, modules, prompts)
    rerankers = out / "cross_encoders"
    write_reranker(rerankers / "bert", "bert", 1103)
    write_reranker(rerankers / "identity", "bert", 1105, activation_fn=torch.nn.Identity())
    identity = "torch.nn.modules.linear.Identity"
    block = {"sentence_transformers": {"activation_fn": identity, "version": "5.1.0"}}
    write_reranker(rerankers / "block", "modernbert", 1107, older=block)
    write_reranker(rerankers / "older", "xlm_roberta", 1109, older={"sbert_ce_default_activation_function": identity})


if __name__ == "__main__":
    run(__doc__, write_all)
