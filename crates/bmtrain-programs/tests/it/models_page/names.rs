//! Names that families of models are known by, and the tokenizers of their directories.

/// Byte pairs of bytes, as GPT-2 has them.
const BYTES: &str = "byte-level BPE";
const WORD_PIECE: &str = "WordPiece";
const UNIGRAM: &str = "SentencePiece unigram";
/// The published files are not read, see `docs/tokenizers.md`.
const CONVERTED: &str = "SentencePiece unigram, converted to `tokenizer.json`";
const PAIRS: &str = "SentencePiece BPE";
const CPM: &str = "segments of jieba, then pieces";

/// The family, models of it, and its tokenizers.
pub const NAMES: [(&str, &str, &str); 37] = [
    ("albert", "ALBERT base to xxlarge", UNIGRAM),
    ("bart", "BART base and large", BYTES),
    ("bert", "BERT base and large, MiniLM sentence encoders", WORD_PIECE),
    ("bloom", "BLOOM 560M to 176B, BLOOMZ", BYTES),
    ("camembert", "CamemBERT base and large", CONVERTED),
    ("cpm1", "CPM-1", CPM),
    ("cpm2", "CPM-2", CPM),
    ("cpm_t5", "T5 of CPM-Pretrain", CPM),
    ("cwm", "Code World Model 32B", BYTES),
    ("distilbert", "DistilBERT base", WORD_PIECE),
    ("electra", "ELECTRA small, base and large", WORD_PIECE),
    ("gemma2", "Gemma 2 2B, 9B and 27B", PAIRS),
    ("gemma3_text", "Gemma 3 270M and 1B, EmbeddingGemma 300M", PAIRS),
    ("glm4", "GLM-4-0414 9B and 32B", BYTES),
    ("gpt2", "GPT-2 124M to 1.5B, DistilGPT2", BYTES),
    ("gpt_neox", "GPT-NeoX-20B, Pythia 14M to 12B", BYTES),
    ("gptj", "GPT-J 6B", BYTES),
    ("granite", "Granite 3 2B and 8B", BYTES),
    ("llama", "Llama 1, 2 and 3, SmolLM2, TinyLlama", "SentencePiece BPE; byte-level BPE (Llama 3, SmolLM2)"),
    ("marian", "OPUS-MT", CONVERTED),
    ("megatron-bert", "BERT 345M of Megatron-LM", WORD_PIECE),
    ("ministral", "Ministral 8B", BYTES),
    ("mistral", "Mistral 7B, Mistral NeMo 12B", "SentencePiece BPE; byte-level BPE (NeMo)"),
    ("modernbert", "ModernBERT base and large", BYTES),
    ("mpnet", "MPNet base, its sentence encoders", WORD_PIECE),
    ("mt5", "mT5 small to XXL", UNIGRAM),
    ("olmo2", "OLMo 2 1B to 32B", BYTES),
    ("olmo3", "OLMo 3 7B and 32B", BYTES),
    ("opt", "OPT 125M to 66B", BYTES),
    ("phi3", "Phi-3 mini and medium, Phi-4", "SentencePiece BPE; byte-level BPE (Phi-4)"),
    ("qwen2", "Qwen 2 and 2.5, 0.5B to 72B", BYTES),
    ("qwen3", "Qwen 3 0.6B to 32B", BYTES),
    ("roberta", "RoBERTa base and large, DistilRoBERTa", BYTES),
    ("seed_oss", "Seed-OSS 36B", BYTES),
    ("smollm3", "SmolLM3 3B", BYTES),
    ("t5", "T5, T5 1.1 and FLAN-T5, small to 11B", UNIGRAM),
    ("xlm-roberta", "XLM-RoBERTa base and large", UNIGRAM),
];
