//! `[data]`: the rows of its keys, which `sources.rs` reads, and its settings.

use super::super::class_weights::ClassWeights;
use super::super::data_source::DataSource;
use super::elsewhere::other_task;
use crate::recipe::engine::table::settings;
use model_center_data::{OnBadRecord, TooLong};

settings! {
    pub(super) const DATA in "data" {
        /// What is learned; `docs/tasks.md` describes each task.
        task, "0.1", foreign(other_task);
        /// How classes are told apart: by the outputs of a head, or by tokens that answer a prompt. Of task `pretrain`:
        /// which tokens are predicted.
        objective, "0.1",
            default("`\"classifier\"`, for tasks without that form `\"verbalizer\"`, for `pretrain` `\"causal\"`");
        /// Directory of a task that knows its files.
        path, "0.1";
        /// File of training records; for plain text also a directory.
        train, "0.1";
        /// The same for evaluation.
        eval, "0.1";
        /// Format of the files; `auto` derives it from the file name's ending.
        format, "0.1";
        /// The character between columns of CSV where it is not a comma.
        delimiter, "0.2";
        /// Names of the classes, in the order of their indices; a model with classes of these names keeps its own
        /// order.
        labels, "0.1";
        /// The prompt, with names of columns in braces.
        template, "0.1";
        /// The verbalizer: one label word per label, in the order of `data.labels`.
        words, "0.1";
        /// Tokens that consecutive windows of a long passage share, at most half of a window.
        stride, "0.2";
        /// Most tokens of a predicted answer.
        answer_length, "0.2";
        /// Data sets of task `sft`, mixed by `proportion`: a file, or a directory with `train` and `val`.
        /// `docs/sft.md`.
        sets, "0.2";
        /// Form of the records; `auto` is the one that the first record has.
        records, "0.2";
        /// Tokens with a loss: of all turns of the assistant, of the last one, or all tokens. Of a prompt with a
        /// completion, the completion, or all.
        loss_on, "0.2";
        /// The side on which samples of task `sft` that are too long are cut.
        truncate, "0.2";
        /// Make prompts and completions messages of a user and the assistant.
        as_chat, "0.2";
        /// Text of an input, `__input__` in it is replaced by the record's.
        input_format, "0.2";
        /// The same of an output, with `__output__`.
        output_format, "0.2";
        /// Token files of task `pretrain`, without `.bin` and `.idx`: a list of paths, or of tables with `path` and
        /// `weight`. Without weights they are mixed by their number of tokens.
        corpora, "0.2";
        /// Shares of training, validation and test of `data.corpora`.
        split, "0.2";
        /// Split a random order of the documents, which depends on `data.seed` alone.
        permute_documents, "0.2";
        /// Validation sets of their own, in place of a part of `data.corpora`.
        valid, "0.2";
        /// The same of test sets, which are evaluated once, at the end.
        test, "0.2";
        /// Tokens of a sample of task `pretrain`.
        sequence_length, "0.2";
        /// Rule of the orders of documents and samples, `docs/corpus.md`.
        sample_order, "0.2";
        /// Directory of index maps.
        maps, "0.2";
        /// Threads of a rank that form batches before a step asks for them.
        loading_threads, "0.2", fixed("1");
        /// The token that ends a document in token files.
        eod_token, "0.2";
        /// Of `causal`: the token after EOD has no loss.
        eod_mask_loss, "0.2";
        /// Of `causal`: tokens attend to their own document alone, and positions count from its beginning.
        document_mask, "0.2";
        /// Rows of tokens are packed documents, cut one after the other, or windows at random places.
        row_sampler, "0.2";
        /// Parse control tokens that texts spell, for texts that are rendered already; otherwise they are text.
        parse_special, "0.2";
        /// Most tokens of an input, special tokens included.
        max_length, "0.1";
        /// Most tokens of a target.
        target_length, "0.1", follows("data.max_length");
        /// Name of the model's chat template, of several with names. `docs/chat-templates.md`.
        chat_template, "0.2";
        /// Whether longer inputs are truncated or an error.
        too_long, "0.1";
        /// Whether a record that cannot be used is an error or left out.
        on_bad_record, "0.1";
        /// Largest share of records that may be left out.
        bad_record_limit, "0.1";
        /// Give each epoch a random order of its own; otherwise samples keep the order of the files.
        shuffle, "0.2", later("true");
        /// Samples that do not fill the last batch of an epoch: left out of it (`drop`), or a smaller batch (`keep`),
        /// whose loss is the mean of the samples that it has.
        last_batch, "0.2", later("\"drop\"");
        /// Batch samples of similar length together.
        length_grouped, "0.1";
        /// Join the samples of a micro-batch to one sequence without padding; each attends to itself alone, at
        /// positions from 0.
        packing, "0.1";
        /// Most records that are evaluated.
        eval_limit, "0.1";
        /// Weight of each class in the training loss, `{ name = 2.0, … }`; `balanced` is samples / (classes × samples
        /// of the class). Evaluation is not weighted.
        class_weights, "0.1";
        /// Seed of the orders and the split of token files.
        seed, "0.2", follows("train.seed");
    }
}

settings! {
    pub(super) const COLUMNS in "data.columns" {
        /// Column of the text; for `language` with a prompt, of the completion.
        text, "0.1";
        /// Column of the second text of a pair.
        text_pair, "0.1";
        /// Column of the label; of `preference` with KTO, of whether a completion is good.
        label, "0.1";
        /// Column of the prompt, which is read and not learned.
        prompt, "0.1";
        /// Column of the target.
        target, "0.1";
        /// Column of the list of words.
        tokens, "0.2";
        /// Column of the list of tags of the words, texts or numbers of `data.labels`.
        tags, "0.2";
        /// Columns of 0 and 1, one for each label, of task `multi-label-classification`; without them
        /// `data.columns.label` has lists.
        labels, "0.2";
        /// Column of the anchor, to which another text belongs.
        anchor, "0.2";
        /// Column of the text that belongs to the anchor.
        positive, "0.2";
        /// Column of a text that does not; without it samples are pairs.
        negative, "0.2";
        /// Column of the list of messages.
        messages, "0.2";
        /// Column of the completion or output, which is learned.
        completion, "0.2";
        /// Of Alpaca's records, column of the input beside an instruction.
        input, "0.2";
        /// Column of a text that becomes the system message of a conversation.
        system, "0.2";
        /// Column of the better completion of a pair.
        chosen, "0.2";
        /// Column of the worse completion of a pair.
        rejected, "0.2";
    }
}

settings! {
    pub(super) const MASKING in "data.masking" {
        /// Share of the tokens that are predicted.
        share, "0.2";
        /// The second segment: the sentences that follow, in half of the samples of another document (`next`) or in
        /// swapped order (`order`), or none.
        second_sentence, "0.2";
        /// Mask words with all their tokens.
        whole_words, "0.2";
        /// Words of the longest masked n-gram.
        longest_ngram, "0.2";
        /// Share of the groups of sentences that are made short.
        short, "0.2";
        /// Groups of consecutive sentences, each once in an epoch, or sentences of random documents.
        pair_sampler, "0.2";
    }
}

settings! {
    pub(super) const SPANS in "data.spans" {
        /// Whose samples: the T5 paper's, Megatron-LM's T5 or CPM-2's, `docs/objectives.md`.
        preset, "0.2";
        /// Share of hidden tokens.
        share, "0.2";
    }
}

/// `[data]`: what is learnt from.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSettings {
    /// The task and its files.
    pub source: DataSource,
    /// Whether control tokens that texts spell are parsed.
    pub parse_special: bool,
    /// Most tokens of one input, special tokens included.
    pub max_length: usize,
    /// Maximum length of a target.
    pub target_length: usize,
    /// The name of the chat template, of several that the model has; `None`: the default one.
    pub chat_template: Option<String>,
    /// Treatment of longer inputs.
    pub too_long: TooLong,
    /// Treatment of unusable records.
    pub on_bad_record: OnBadRecord,
    /// Whether each epoch has a random order of its own; else the order of the files.
    pub shuffle: bool,
    /// Treatment of the samples that do not fill the last batch of an epoch.
    pub last_batch: LastBatch,
    /// Whether inputs of like length are batched together.
    pub length_grouped: bool,
    /// Whether the sequences of a micro-batch are joined to one without padding.
    pub packing: bool,
    /// At most this many records are evaluated on; `None` is all.
    pub eval_limit: Option<u64>,
    /// Weight of each class in the training loss; `None`: all samples weigh the same.
    pub class_weights: Option<ClassWeights>,
}

/// Treatment of the samples that do not fill the last batch of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastBatch {
    /// They are left out of this epoch.
    Drop,
    /// They are a smaller batch.
    Keep,
}
