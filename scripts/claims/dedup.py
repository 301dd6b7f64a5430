"""Near-duplicates of known similarity: how many `corpus clean --near` finds, beside the formula and datasketch.

Usage: dedup.py write FILE
       dedup.py compare FILE PAIRS

`write` makes documents in pairs whose sets of 5-character shingles have Jaccard indices from 0.5 to 1. `compare` reads
the pairs that were reported and prints, for pairs from 0.9 on and for those from 0.5 on, the recall, what the formula
1 - (1 - J^10)^10 predicts, and datasketch's recall with the same 10 bands of 10 hashes; then how many pairs are
reported wrongly. Deterministic.
"""

import json
import random
import sys

HASHES, BANDS = 100, 10
PAIRS = 6000
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def shingles(text):
    return {text[at:at + 5] for at in range(len(text) - 4)}


def jaccard(a, b):
    return len(a & b) / len(a | b)


def write(path):
    rng = random.Random(1)
    token = lambda: "".join(rng.choices(LETTERS, k=rng.randrange(2, 10)))
    with open(path, "w") as out:
        for number in range(PAIRS):
            base = [token() for _ in range(rng.randrange(80, 160))]
            # Half of the pairs are very similar. A changed token changes some ten shingles of either text.
            share = rng.uniform(0, 0.035) if number % 2 == 0 else rng.uniform(0, 0.25)
            changed = [token() if rng.random() < share else each for each in base]
            for side, tokens in (("a", base), ("b", changed)):
                out.write(json.dumps({"url": f"{number}{side}", "text": " ".join(tokens)}) + "\n")


def compare(path, reported):
    import datasketch

    texts = {}
    with open(path) as lines:
        for line in lines:
            record = json.loads(line)
            texts[record["url"]] = record["text"]
    found = {}
    with open(reported) as lines:
        for line in lines:
            pair = json.loads(line)
            found[pair["a"], pair["b"]] = pair["similarity"]
    similar, wrong, theirs = {}, 0, set()
    for number in range(PAIRS):
        sets = [shingles(texts[f"{number}{side}"]) for side in "ab"]
        similar[number] = jaccard(*sets)
        hashes = []
        for each in sets:
            minhash = datasketch.MinHash(num_perm=HASHES, seed=1)
            minhash.update_batch([shingle.encode() for shingle in sorted(each)])
            hashes.append(minhash.hashvalues.reshape(BANDS, -1))
        # The rule of datasketch's MinHashLSH with params=(10, 10), one pair at a time.
        if (hashes[0] == hashes[1]).all(axis=1).any():
            theirs.add(number)
        reported_as = found.pop((f"{number}a", f"{number}b"), None)
        if reported_as is not None:
            found[number] = reported_as
            wrong += abs(reported_as - similar[number]) > 1e-9
    wrong += sum(isinstance(key, tuple) for key in found)
    for least in (0.9, 0.5):
        pairs = [number for number, each in similar.items() if each >= least and each > 0.5]
        ours = 100 * sum(number in found for number in pairs) / len(pairs)
        formula = 100 * sum(1 - (1 - similar[number] ** 10) ** 10 for number in pairs) / len(pairs)
        peer = 100 * sum(number in theirs for number in pairs) / len(pairs)
        print(f"{least} {len(pairs)} {ours:.2f} {formula:.2f} {peer:.2f}")
    print(f"wrong {wrong}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path]:
            write(path)
        case ["compare", path, reported]:
            compare(path, reported)
        case _:
            sys.exit(__doc__)
