#!/usr/bin/env bash
# A family of models in a crate of its own, which depends on the published crates alone, is trained by a finetune and
# run by a forward that this crate builds, on one rank and on two under ZeRO-3. The figure is tests passed / all.
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
wc -l "$own"/src/lib.rs "$own"/src/bin/*.rs >&2

tests_verdict --package bmtrain-examples --test it -- recipes::own_model
