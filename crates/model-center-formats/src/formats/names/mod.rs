//! Hugging Face's names for our parameters: a table per family, and its driver.
//!
//! - [`NameTable`], [`Rule`], [`Alias`]: what a family writes down, once, for both directions.
//! - [`LoadPlan`]: every parameter matched with the tensors of a file before any data are read; [`Difference`]: the
//!   report when they do not match. `plan` builds it, `load` executes it; [`NotFinite`]: a tensor with NaN or infinity,
//!   found by `finite` meanwhile.
//! - [`BlockPlan`]: the matrices that stay in the quantised blocks of a file.
//! - [`export()`]: the same table the other way.
//!
//! Example: our `encoder.layers.{i}.attention.project_qkv.weight` is their
//! `bert.encoder.layer.{i}.attention.self.{query|key|value}.weight`, concatenated on the first axis. Numbers in braces
//! are equal on both sides; alternatives in braces are parts in the order of ours.

mod blocks;
mod export;
pub(crate) mod finite;
mod ignored;
mod load;
mod pattern;
mod plan;
mod report;

pub use blocks::BlockPlan;
pub use export::export;
pub use finite::NotFinite;
pub use ignored::shortened;
pub use plan::{Allow, LoadPlan};
pub use report::{Difference, MisShaped, Missing};

use std::borrow::Cow;
use std::ops::Range;

use crate::{Error, Result};
use bmtrain_dist::param::{Fusion, FusionTable};

/// One of our parameters: its name and its whole shape, whatever part of it this rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamShape {
    /// Our name.
    pub name: String,
    /// The global shape.
    pub shape: Vec<usize>,
}

impl ParamShape {
    /// A parameter from its parts.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }
}

/// One line of a [`NameTable`].
#[derive(Debug, Clone)]
pub struct Rule {
    ours: Cow<'static, str>,
    theirs: Cow<'static, str>,
    rows: Cow<'static, [usize]>,
    transposed: bool,
    groups: Option<usize>,
    paired: Option<usize>,
    optional: bool,
}

impl Rule {
    /// Our name and theirs, as patterns: `{i}` is the same number on both sides, `{i+1}` in theirs the next one,
    /// `{a|b|c}` in theirs the parts that ours concatenates on its first axis, of equal size unless [`Rule::rows`]
    /// specifies otherwise.
    pub const fn new(ours: &'static str, theirs: &'static str) -> Self {
        Rule::from_names(Cow::Borrowed(ours), Cow::Borrowed(theirs))
    }

    /// Like [`Rule::new`], for tables that are made at run time.
    pub fn owned(ours: String, theirs: String) -> Self {
        Rule::from_names(Cow::Owned(ours), Cow::Owned(theirs))
    }

    const fn from_names(ours: Cow<'static, str>, theirs: Cow<'static, str>) -> Self {
        Rule { ours, theirs, rows: Cow::Borrowed(&[]), transposed: false, groups: None, paired: None, optional: false }
    }

    /// Their matrix is `[in, out]`, ours `[out, in]`.
    pub const fn transposed(mut self) -> Self {
        self.transposed = true;
        self
    }

    /// The parts that [`Rule::rows`] defines are one tensor of theirs, which interleaves them in `groups` groups of
    /// rows, each with its share of every part. Ours concatenates the parts. So `[N, 3, H]` of theirs is `[3, N, H]` of
    /// ours with three parts of `N H` rows in `N` groups.
    pub const fn interleaved(mut self, groups: usize) -> Self {
        self.groups = Some(groups);
        self
    }

    /// Queries and keys, the first two of the parts that [`Rule::rows`] defines, have the rows of each head of `head`
    /// rows in pairs, as an interleaved rotary embedding rotates them: row `2 k + j` of a head there is row
    /// `j head/2 + k` of ours, which has the two halves one after the other.
    pub const fn paired(mut self, head: usize) -> Self {
        self.paired = Some(head);
        self
    }

    /// A file without the tensor is complete; the parameter keeps its initial value.
    pub const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Rows of ours in each part, for parts of unequal size such as queries and fewer keys and values.
    pub fn rows(mut self, rows: Vec<usize>) -> Self {
        self.rows = Cow::Owned(rows);
        self
    }
}

/// A tensor that is another one under a second name, such as a tied output projection and its embedding.
///
/// Read when the file has only this name; when it has both they must be equal, bit for bit. Written into ModelCenter's
/// directories, whose classes ask for both, and into no other.
#[derive(Debug, Clone)]
pub struct Alias {
    name: Cow<'static, str>,
    of: Cow<'static, str>,
}

impl Alias {
    /// `name` is another name for `of`, both without numbers.
    pub const fn new(name: &'static str, of: &'static str) -> Self {
        Alias { name: Cow::Borrowed(name), of: Cow::Borrowed(of) }
    }

    /// The second name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Parameter of the alias.
    pub fn of(&self) -> &str {
        &self.of
    }

    /// Like [`Alias::new`], for tables that are made at run time.
    pub fn owned(name: String, of: String) -> Self {
        Alias { name: Cow::Owned(name), of: Cow::Owned(of) }
    }
}

/// The names of a family.
///
/// ```
/// use model_center_formats::formats::{Alias, NameTable, Rule};
/// static TINY: NameTable = NameTable {
///     base_prefix: "tiny.",
///     rules: std::borrow::Cow::Borrowed(&[
///         Rule::new("embedding.weight", "tiny.wte.weight"),
///         Rule::new("layers.{i}.qkv.weight", "tiny.layer.{i}.{query|key|value}.weight"),
///         Rule::new("layers.{i}.out.weight", "tiny.layer.{i}.proj.weight").transposed(),
///     ]),
///     aliases: std::borrow::Cow::Borrowed(&[Alias::new("lm_head.weight", "tiny.wte.weight")]),
///     ignored: std::borrow::Cow::Borrowed(&["tiny.position_ids"]),
///     old_names: std::borrow::Cow::Borrowed(&[("LayerNorm.gamma", "LayerNorm.weight")]),
/// };
/// let pieces = TINY.pieces("layers.3.qkv.weight", &[12, 4], true).unwrap();
/// assert_eq!(pieces[1].name, "tiny.layer.3.key.weight");
/// assert_eq!(pieces[1].rows, 4..8);
/// ```
#[derive(Debug, Clone, Default)]
pub struct NameTable {
    /// The prefix of the base model's tensors, with its dot, as rules write it; files may lack it. Empty if there is
    /// none.
    pub base_prefix: &'static str,
    /// All parameters; the first rule that matches one of our names counts.
    pub rules: Cow<'static, [Rule]>,
    /// Second names.
    pub aliases: Cow<'static, [Alias]>,
    /// Tensors of files that hold nothing learned, such as position ids; `*` stands for any text.
    pub ignored: Cow<'static, [&'static str]>,
    /// Old endings of their names and what replaced them, such as `LayerNorm.gamma` and `LayerNorm.weight`.
    pub old_names: Cow<'static, [(&'static str, &'static str)]>,
}

/// One of their tensors as a part of one of our parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPart {
    /// Their name.
    pub name: String,
    /// Their shape.
    pub shape: Vec<usize>,
    /// Rows of ours, on the first axis.
    pub rows: Range<usize>,
    /// Whether theirs is the transpose of those rows.
    pub transposed: bool,
    /// Interleaving of those rows in their tensor, if there is one.
    pub interleaved: Option<Interleaved>,
}

/// Parts of a parameter that a tensor of theirs has by turns, a share of each in every group; and the same again for
/// the rows that follow, `repeats` times in all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interleaved {
    parts: Vec<usize>,
    groups: usize,
    repeats: usize,
}

impl Interleaved {
    /// The two halves of each head of `head` rows, row by row by turns.
    fn of_pairs(head: usize, rows: usize) -> Self {
        Interleaved { parts: vec![head / 2; 2], groups: head / 2, repeats: rows.checked_div(head).unwrap_or(0) }
    }

    /// Whether the parts together have `rows` rows and can be divided into groups.
    fn is_of(&self, rows: usize) -> bool {
        let sum = self.parts.iter().try_fold(0usize, |sum, part| sum.checked_add(*part));
        let all = sum.and_then(|sum| sum.checked_mul(self.repeats));
        all == Some(rows) && self.groups > 0 && self.parts.iter().all(|part| part.is_multiple_of(self.groups))
    }

    /// Rows of ours, run by run in the order of theirs.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let once: usize = self.parts.iter().sum();
        let turns = (0..self.repeats).flat_map(move |repeat| (0..self.groups).map(move |group| (repeat, group)));
        turns.flat_map(move |(repeat, group)| {
            self.parts.iter().scan(repeat * once, move |start, part| {
                let (first, share) = (*start, part / self.groups);
                *start += part;
                Some(first + group * share..first + (group + 1) * share)
            })
        })
    }
}

impl TensorPart {
    /// This piece of the values of our whole parameter, as theirs.
    pub fn of<'a>(&self, ours: &'a [f32]) -> Result<Cow<'a, [f32]>> {
        let (range, [rows, columns]) = (self.elements(), self.matrix());
        let part = ours.get(range).ok_or_else(|| {
            let reason = format!("{} values are too few", ours.len());
            Error::model(format!("tensor {}", self.name), reason, "give the whole parameter")
        })?;
        let mut theirs = Vec::new();
        match &self.interleaved {
            Some(order) => {
                theirs.reserve_exact(part.len());
                order.runs().for_each(|run| theirs.extend_from_slice(&part[run.start * columns..run.end * columns]));
            }
            None if self.transposed => {
                theirs.resize(part.len(), 0.0);
                transpose(part, rows, columns, &mut theirs);
            }
            None => return Ok(Cow::Borrowed(part)),
        }
        Ok(Cow::Owned(theirs))
    }

    /// Columns of ours.
    pub fn columns(&self) -> usize {
        self.matrix()[1]
    }

    /// Another matrix with these rows, which begin at 0, in the same order, with other columns; it is not transposed.
    pub fn with_columns(&self, columns: usize) -> TensorPart {
        let rows = self.rows.len();
        let (name, interleaved) = (self.name.clone(), self.interleaved.clone());
        TensorPart { name, shape: vec![rows, columns], rows: 0..rows, transposed: false, interleaved }
    }

    /// Whether theirs has the values in another order than ours.
    fn is_rearranged(&self) -> bool {
        self.transposed || self.interleaved.is_some()
    }

    /// Copies their values into `part` in the order of ours: the inverse of [`TensorPart::of`].
    pub fn arrange(&self, theirs: &[f32], part: &mut [f32]) {
        let [rows, columns] = self.matrix();
        let Some(order) = &self.interleaved else {
            return match self.transposed {
                true => transpose(theirs, columns, rows, part),
                false => part.copy_from_slice(theirs),
            };
        };
        let mut rest = theirs;
        for run in order.runs() {
            let (rows, after) = rest.split_at(run.len() * columns);
            part[run.start * columns..run.end * columns].copy_from_slice(rows);
            rest = after;
        }
    }

    /// Range of our elements.
    pub fn elements(&self) -> Range<usize> {
        let stride = self.matrix()[1];
        self.rows.start * stride..self.rows.end * stride
    }

    /// Rows of ours, and elements in each.
    fn matrix(&self) -> [usize; 2] {
        let all: usize = self.shape.iter().product();
        [self.rows.len(), all.checked_div(self.rows.len()).unwrap_or(0)]
    }
}

impl NameTable {
    /// The table with further rules: of two for a name, the first counts, and these precede its own.
    #[must_use]
    pub fn preceded_by(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules = rules.into_iter().chain(self.rules.iter().cloned()).collect();
        self
    }

    /// Their tensors that make up one of our parameters of this global shape, in the order of its rows.
    pub fn pieces(&self, ours: &str, shape: &[usize], prefixed: bool) -> Result<Vec<TensorPart>> {
        let mistake = |reason: String| {
            Error::model(format!("name table, parameter {ours}"), reason, "correct the model's name table")
        };
        let (rule, numbers) = self
            .rules
            .iter()
            .find_map(|rule| pattern::match_name(&rule.ours, ours).map(|numbers| (rule, numbers)))
            .ok_or_else(|| mistake("no rule names this parameter".into()))?;
        let names = pattern::expand(&rule.theirs, &numbers).ok_or_else(|| {
            mistake(format!("their side, {}, has numbers that ours has not, or two lists of parts", rule.theirs))
        })?;
        let all = shape.first().copied().unwrap_or(1);
        let equal = vec![all / names.len(); names.len()];
        let interleaved = rule.groups.map(|groups| Interleaved { parts: rule.rows.to_vec(), groups, repeats: 1 });
        if interleaved.as_ref().is_some_and(|order| rule.transposed || names.len() != 1 || !order.is_of(all)) {
            let reason =
                format!("shape {shape:?} cannot be interleaved from parts of {:?} rows in one tensor", rule.rows);
            return Err(mistake(reason));
        }
        let sizes = if rule.rows.is_empty() || interleaved.is_some() { &equal } else { &*rule.rows };
        if sizes.len() != names.len() || sizes.iter().sum::<usize>() != all {
            return Err(mistake(format!("shape {shape:?} cannot be cut into {} parts of {sizes:?} rows", names.len())));
        }
        let pairs = |part: usize, rows| rule.paired.filter(|_| part < 2).map(|head| Interleaved::of_pairs(head, rows));
        if sizes.iter().enumerate().any(|(part, &rows)| pairs(part, rows).is_some_and(|order| !order.is_of(rows))) {
            return Err(mistake(format!("parts of {sizes:?} rows have no heads of {:?} rows in pairs", rule.paired)));
        }
        if rule.transposed && shape.len() != 2 {
            return Err(mistake(format!("shape {shape:?} is not a matrix and cannot be transposed")));
        }
        let mut end = 0;
        let pieces = names.into_iter().zip(sizes).enumerate().map(|(part, (name, &rows))| {
            let interleaved = interleaved.clone().or_else(|| pairs(part, rows));
            let name = if prefixed { name } else { self.without_prefix(&name).map(str::to_string).unwrap_or(name) };
            let mut theirs = shape.to_vec();
            if let Some(first) = theirs.first_mut() {
                *first = rows;
            }
            if rule.transposed {
                theirs.reverse();
            }
            end += rows;
            let (rows, transposed) = (end - rows..end, rule.transposed);
            TensorPart { name, shape: theirs, rows, transposed, interleaved }
        });
        Ok(pieces.collect())
    }

    /// The tensors of Hugging Face's models that parameters have in one. Parameters that no rule names, such as an
    /// adapter's, are what they are.
    pub fn fusion(&self) -> FusionTable {
        let names = self.clone();
        FusionTable::new(move |ours, shape| {
            let pieces = names.pieces(ours, shape.dims(), true).unwrap_or_default();
            let transposed = pieces.first().is_some_and(|piece| piece.transposed);
            let is_fused = pieces.len() > 1;
            Fusion { rows: pieces.iter().filter(|_| is_fused).map(|piece| piece.rows.len()).collect(), transposed }
        })
    }

    fn optional(&self, ours: &str) -> bool {
        let rule = self.rules.iter().find(|rule| pattern::match_name(&rule.ours, ours).is_some());
        rule.is_some_and(|rule| rule.optional)
    }

    fn without_prefix<'n>(&self, name: &'n str) -> Option<&'n str> {
        name.strip_prefix(self.base_prefix).filter(|_| !self.base_prefix.is_empty())
    }

    /// A file's name for a tensor with old endings replaced.
    fn modern<'n>(&self, name: &'n str) -> Cow<'n, str> {
        for (old, new) in self.old_names.iter() {
            if let Some(stem) = name.strip_suffix(old) {
                return Cow::Owned(format!("{stem}{new}"));
            }
        }
        Cow::Borrowed(name)
    }

    fn ignores(&self, modern: &str) -> bool {
        self.ignored.iter().any(|pattern| {
            pattern::glob(pattern, modern)
                || self.without_prefix(pattern).is_some_and(|bare| pattern::glob(bare, modern))
        })
    }
}

/// `from [rows, columns]` to `to [columns, rows]`, in tiles that fit the first-level cache.
fn transpose(from: &[f32], rows: usize, columns: usize, to: &mut [f32]) {
    const TILE: usize = 32;
    for r0 in (0..rows).step_by(TILE) {
        for c0 in (0..columns).step_by(TILE) {
            for r in r0..(r0 + TILE).min(rows) {
                for c in c0..(c0 + TILE).min(columns) {
                    to[c * rows + r] = from[r * columns + c];
                }
            }
        }
    }
}
