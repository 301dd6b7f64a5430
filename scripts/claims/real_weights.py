"""A real Llama's next-token predictions at 200 positions of a text, by transformers and by ours.

    python real_weights.py text                        prints a line of inputs with the text
    python real_weights.py compare GGUF DIRECTORY OUT  compares DIRECTORY, which convert made of GGUF, and OUT, which
                                                       forward made of DIRECTORY and the text; prints
                                                       `FIGURE ok|short`

transformers reads the GGUF file by a reader of its own and computes in 64-bit floats. Three tokenizers must give the
same ids: the one that transformers makes of the GGUF file, the one it finds in DIRECTORY, and ours. The weights of
DIRECTORY must equal the ones that transformers reads, bit for bit. FIGURE is `SAME/PLACES,N_ties,ERROR`: positions with
the same token on both sides, positions that need not agree, because transformers' two best are less than TIE apart, and
the relative difference of the two perplexities, which may be BOUND. Called by real-weights.sh; runs in the environment
of scripts/python_env.sh.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

from goldens import in_64_bits  # noqa: E402

PLACES, TIE, BOUND = 200, 1e-4, 1e-4

# The beginning of Moby-Dick, which is in the public domain.
TEXT = (
    "Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my purse, and "
    "nothing "
    "particular to interest me on shore, I thought I would sail about a little and see the watery part of the world. "
    "It is a way "
    "I have of driving off the spleen and regulating the circulation. Whenever I find myself growing grim about the "
    "mouth; "
    "whenever it is a damp, drizzly November in my soul; whenever I find myself involuntarily pausing before coffin "
    "warehouses, "
    "and bringing up the rear of every funeral I meet; and especially whenever my hypos get such an upper hand of "
    "me, that it "
    "requires a strong moral principle to prevent me from deliberately stepping into the street, and methodically "
    "knocking "
    "people's hats off - then, I account it high time to get to sea as soon as I can. This is my substitute for "
    "pistol and ball. "
    "With a philosophical flourish Cato throws himself upon his sword; I quietly take to the ship. There is nothing "
    "surprising in "
    "this. If they but knew it, almost all men in their degree, some time or other, cherish very nearly the same "
    "feelings towards "
    "the ocean with me."
)


def fail(place, reason, fix):
    sys.exit(f"error: {place}\n  reason: {reason}\n  fix: {fix}")


def same_ids(gguf, directory, ours):
    """The ids of the text, on which all three must agree."""
    found = {
        "GGUF by transformers": AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)(TEXT).input_ids,
        "directory by transformers": AutoTokenizer.from_pretrained(directory)(TEXT).input_ids,
        "ours": ours.flatten().tolist(),
    }
    first = next(iter(found.values()))
    for name, ids in found.items():
        if ids != first:
            at = next((at for at, (a, b) in enumerate(zip(ids, first)) if a != b), min(len(ids), len(first)))
            fail(f"ids, {name}", f"{len(ids)} ids against {len(first)}, another one from place {at} on: "
                                 f"{ids[at:at + 5]}",
                 "look at what decides how the text is cut")
    if len(first) <= PLACES:
        fail("ids", f"{len(first)} are too few", f"take a text of more than {PLACES} tokens")
    return torch.tensor(first)  # [L]


def same_weights(model, directory):
    """The directory's tensors are the model's, bit for bit."""
    ours, theirs = load_file(directory / "model.safetensors"), model.state_dict()
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if ours.keys() != theirs.keys() - tied:
        fail(directory, f"tensors on one side only: {sorted(ours.keys() ^ (theirs.keys() - tied))[:5]}",
             "look at the names")
    other = [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]
    if other:
        fail(directory, f"{len(other)} tensors have other values, such as {other[0]}", "look at how blocks are decoded")


def perplexity(logits, targets):
    return torch.nn.functional.cross_entropy(logits.double(), targets).exp().item()


def compare(gguf, directory, out):
    found = load_file(out)
    ids = same_ids(gguf, directory, found["input_ids"])
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager").eval()
    same_weights(model, directory)
    with torch.no_grad(), in_64_bits():
        theirs = model.double()(ids[None]).logits[0, :PLACES]  # [PLACES, V]
    ours = found["logits"][0, :PLACES]  # [PLACES, V]
    if theirs.dtype != torch.float64 or ours.shape != theirs.shape:
        fail(out, f"logits of {list(ours.shape)} against {list(theirs.shape)} of {theirs.dtype}",
             "look at the two models")
    best = theirs.topk(2).values  # [PLACES, 2]
    ties = best[:, 0] - best[:, 1] < TIE  # [PLACES]
    same = ours.argmax(1) == theirs.argmax(1)  # [PLACES]
    targets = ids[1:PLACES + 1]
    expected = perplexity(theirs, targets)
    error = abs(perplexity(ours, targets) / expected - 1)
    difference = (ours - theirs).abs().max().item()
    print(f"{len(ids)} tokens; perplexity {expected:.4f}; logits at most {difference:.1e} apart, "
          f"of up to {theirs.abs().max().item():.1f}; the closest two tokens "
          f"{(best[:, 0] - best[:, 1]).min().item():.1e}",
          file=sys.stderr)
    outcome = "ok" if bool((same | ties).all()) and error < BOUND else "short"
    print(f"{same.sum().item()}/{PLACES},{ties.sum().item()}_ties,{error:.1e} {outcome}")


def main():
    if sys.argv[1:] == ["text"]:
        print(json.dumps({"text": TEXT}))
    elif len(sys.argv) == 5 and sys.argv[1] == "compare":
        compare(*map(Path, sys.argv[2:]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
