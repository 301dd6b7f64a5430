#!/usr/bin/env bash
# A family of models in a crate of its own, of at most 130 lines and 10 of programs, which depends on the published
# crates alone, is trained by a finetune, run by a forward and continued by a generate that this crate builds, on one
# rank and on two under ZeRO-3. The figure is the lines of the library + of its programs, tests passed / all.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

own="$root/examples/tests/recipes/own_model"
cargo metadata --manifest-path "$own/Cargo.toml" --format-version 1 --no-deps --offline | python3 -c '
import json, sys
packages = {package["name"]: package for package in json.load(sys.stdin)["packages"]}
ours = {each["name"] for each in packages["own_model"]["dependencies"] if each.get("path")}
print("own_model depends on", *sorted(ours), file=sys.stderr)
sys.exit(ours != {"bmtrain-core", "bmtrain-dist", "model-center"})
' || verdict dependencies short
programs="$(cat "$own"/src/bin/*.rs | wc -l)"
lines="$(find "$own/src" -name '*.rs' -not -path '*/bin/*' -exec cat {} + | wc -l)"
size="${lines}+${programs}_lines"
if [ "$lines" -gt 130 ] || [ "$programs" -gt 10 ]; then verdict "$size" short; fi

tests_of scripts/package_check.sh own_model
figure="$size,${figure}_tests"
counted_verdict
