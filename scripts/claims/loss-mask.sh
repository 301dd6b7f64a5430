#!/usr/bin/env bash
# Conversations through the chat templates of models in use: the ids are transformers', and the learned tokens exactly
# those that the assistant wrote, by offsets in the rendered text. The figure is tokens of how many templates.
set -euo pipefail
# shellcheck source=scripts/claims/verdict.sh
source "$(dirname "${BASH_SOURCE[0]}")/verdict.sh"

# The sources of llama.cpp, as its Python package has them, have the templates of many models.
package=llama-cpp-python==0.3.36

# fetch_templates: the templates of the package into `final`.
fetch_templates() {
    mkdir -p "$final"
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$final" "$package"
    tar --extract --gzip --file "$final"/llama_cpp_python-*.tar.gz --directory "$final" --strip-components=5 \
        --wildcards '*/vendor/llama.cpp/models/templates/*.jinja'
    rm "$final"/llama_cpp_python-*.tar.gz
}

# install_once reports them.
# shellcheck disable=SC2034
packages=("$package") key="$(key_of "$package")"
install_once chat-templates "chat templates" "make sure 200 MB are free" fetch_templates
build data
python="$("$root/scripts/python_env.sh")"
scratch
exec "$python" "$root/scripts/claims/loss_mask.py" "$bin/data" "$final" "$scratch"
