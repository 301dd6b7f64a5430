"""How much longer a step takes that follows the beginning of a save: two metrics files of the same steps, one of a run
that saved and one of a run that did not. Usage: save_stall.py SAVING PLAIN EVERY. Prints the stall of the step, and of
all steps together, in percent of a step."""

import json
import statistics
import sys


def durations(path):
    """Seconds from the end of one step to the end of the next, by step."""
    ends = {}
    for line in open(path, encoding="utf-8"):
        record = json.loads(line)
        if record["kind"] == "step":
            ends[record["step"]] = record["time"]["seconds"]
    return {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}


def main():
    saving, plain = durations(sys.argv[1]), durations(sys.argv[2])
    every = int(sys.argv[3])
    # Steps have different lengths, so each is compared with itself in the other run; the first save also makes its
    # buffers.
    warm = [step for step in sorted(saving) if step in plain and step > 2 * every]
    ratio = {step: saving[step] / plain[step] - 1 for step in warm}
    usual = statistics.median(value for step, value in ratio.items() if step % every not in (1, 2, 3))
    after = statistics.median(ratio[step] for step in warm if step % every == 1)
    for step in warm:
        print(f"step {step}: {plain[step]:.3f} s plain, {saving[step]:.3f} s saving", file=sys.stderr)
    whole = sum(saving[step] for step in warm) / sum(plain[step] for step in warm) - 1
    print(f"usual {100 * usual:.1f} %, all steps {100 * whole:.1f} %", file=sys.stderr)
    print(f"{100 * (after - usual):.1f}")


main()
