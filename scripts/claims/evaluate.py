"""For scripts/claims/evaluate.sh: files in the formats of published evaluations, and what transformers makes of them.

    evaluate.py make NOVEL DIRECTORY       # writes wiki.test.tokens, corpus.jsonl, lambada.jsonl and requests.jsonl
    evaluate.py compare MODEL DIRECTORY    # prints the largest relative difference between the program's and PyTorch's
"""

import json
import math
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))


def make(novel, directory):
    paragraphs = [" ".join(p.split()) for p in Path(novel).read_text().split("\n\n")]
    paragraphs = [p for p in paragraphs if 300 < len(p) < 900][40:]
    # As WikiText has its texts: marks for hyphens and thousands, spaces around punctuation.
    marked = [re.sub(r'([,.;:!?"()])', r" \1 ", p.replace("-", " @-@ ").replace("'s", " 's")) for p in paragraphs[:16]]
    text = " = Loomings = \n \n" + "".join(f" {' '.join(p.split())} \n" for p in marked)
    (directory / "wiki.test.tokens").write_text(text)
    write = lambda name, rows: (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write("corpus.jsonl", [{"text": p} for p in paragraphs[20:40]])
    passages = [re.sub(r"[^A-Za-z]+$", "", p) for p in paragraphs[40:64]]
    write("lambada.jsonl", [{"text": p} for p in passages])
    write("requests.jsonl", [{"prompt": " ".join(p.split()[:30]), "continuation": " " + " ".join(p.split()[30:36])}
                             for p in paragraphs[64:84]])


def compare(model_directory, directory):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from make_evaluate import wikitext

    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32).eval()
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]

    def log_probs(tokens):
        """For each token but the first its log-probability, and whether it is the most probable one."""
        with torch.no_grad():
            predicted = torch.log_softmax(model(torch.tensor([tokens])).logits[0, :-1].double(), dim=-1)
        targets = torch.tensor(tokens[1:])
        return predicted.gather(1, targets[:, None])[:, 0].tolist(), (predicted.argmax(-1) == targets).tolist()

    def windows(tokens, length, stride, most=None):
        total, start, scored, count = 0.0, 0, 0, 0
        while scored < len(tokens) - 1 and count != most:
            end = min(start + length + 1, len(tokens))
            fresh = end - 1 - scored
            total -= sum(log_probs(tokens[start:end])[0][-fresh:])
            scored, start, count = end - 1, start + stride, count + 1
        return total / scored

    read = lambda name: json.loads((directory / name).read_text())
    lines = lambda name: [json.loads(line) for line in (directory / name).read_text().splitlines()]
    pairs, tokens = [], encode(wikitext((directory / "wiki.test.tokens").read_text()))
    for overlap in (512, 64):
        ours = read(f"perplexity-{overlap}.json")
        assert ours["tokens"] == len(tokens), (ours["tokens"], len(tokens))
        pairs.append((ours["loss"], windows(tokens, 512, overlap)))
    corpus = []
    for row in lines("corpus.jsonl"):
        corpus += ([tokenizer.eos_token_id] if corpus else []) + encode(row["text"])
    pairs.append((read("corpus.json")["loss"], windows(corpus, 256, 256, 6)))

    losses, last, strict, passages = [], 0, 0, lines("lambada.jsonl")
    for row in passages:
        context, word = row["text"].rsplit(None, 1)
        whole, before = encode(f"{context} {word}"), len(encode(context))
        scores, right = log_probs(whole)
        losses.append(-sum(scores[before - 1:]))
        last, strict = last + right[-1], strict + all(right[before - 1:])
    ours = read("lambada.json")
    assert round(ours["last_token_accuracy"] * len(passages)) == last, (ours, last)
    assert round(ours["strict_accuracy"] * len(passages)) == strict, (ours, strict)
    pairs.append((math.log(ours["word_perplexity"]), sum(losses) / len(losses)))

    for row in lines("scores.jsonl"):
        before = len(encode(row["prompt"]))
        whole = encode(row["prompt"] + row["continuation"])
        scores, right = log_probs(whole)
        assert row["is_greedy"] == all(right[before - 1:]) and row["tokens"] == len(whole) - before
        pairs.append((row["log_likelihood"], sum(scores[before - 1:])))
    print(f"{max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs):.1e}")


if __name__ == "__main__":
    what, first, directory = sys.argv[1:]
    {"make": make, "compare": compare}[what](first, Path(directory))
