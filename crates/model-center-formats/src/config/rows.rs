//! The fields that a family has beyond [`TextConfig`], one row each: names in both dialects and the member of the
//! configuration. Reading and writing follow from the rows.
//!
//! Defines [`Row`], [`Slot`], [`ConfigRows`] and [`RowConfig`]; a family declares its fields in its file of
//! the models.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Names, Spoken};
use super::ranges::Ranges;
use super::{
    ClassFields, Fields, HfHeader, LayerRotary, LayerWindows, RotaryFields, TextConfig, TokenPooling, WindowFields,
    activations, labels, model_center,
};
use crate::Result;
use model_center_base::json::number;

/// A member of a configuration, by the type of its field in files.
#[derive(Debug)]
pub enum Slot<'a> {
    /// A positive integer.
    Size(&'a mut usize),
    /// `true` or `false`.
    Flag(&'a mut bool),
    /// A finite number.
    Number(&'a mut f32),
    /// A dropout probability, in `[0, 1)`.
    Dropout(&'a mut f32),
    /// A standard deviation of initial values.
    Deviation(&'a mut f32),
    /// A positive integer; `null` is `None`, and a missing field the default.
    OptionalSize(&'a mut Option<usize>),
    /// An integer from 0; `null` is `None`, and a missing field the default.
    OptionalIndex(&'a mut Option<usize>),
    /// A number above 0 that limits scores or logits; `null` is `None`, and a missing field the default.
    SoftCap(&'a mut Option<f32>),
    /// Key and value heads, a divisor of the query heads, whose number `null` and ModelCenter's -1 mean, and silence
    /// where no file must state it.
    KvHeads(&'a mut usize),
    /// Rotary positions of whole heads, which have several fields.
    Rotary(&'a mut RotaryFields),
    /// Rotary positions of a part of each head, or of whole ones.
    PartRotary(&'a mut RotaryFields),
    /// Windows of attention, which have several fields.
    Windows(&'a mut WindowFields),
    /// Rotary positions by the kind of a layer; named are the bases outside of the parameters.
    LayerRotary(&'a mut LayerRotary),
    /// Windows of a regular part of the layers; named are the size and the period.
    LayerWindows(&'a mut LayerWindows),
    /// A function between two layers, by its name.
    Activation(&'a mut Activation),
    /// Input of a classifier of sequences.
    Pooling(&'a mut TokenPooling),
}

/// One field of a configuration.
pub struct Row<C: 'static> {
    /// Names in Hugging Face files; the first is written; none if transformers has no such field.
    pub hugging_face: Names,
    /// Names in ModelCenter files; all are written.
    pub model_center: Names,
    /// Whether a Hugging Face file must state it.
    pub required: bool,
    /// The member.
    pub slot: fn(&mut C) -> Slot<'_>,
}

impl<C> Row<C> {
    /// A field that files may leave out.
    pub const fn new(hugging_face: Names, model_center: Names, slot: fn(&mut C) -> Slot<'_>) -> Self {
        Row { hugging_face, model_center, required: false, slot }
    }

    /// A field with the same name in both dialects.
    pub const fn same(names: Names, slot: fn(&mut C) -> Slot<'_>) -> Self {
        Row::new(names, names, slot)
    }

    /// A field that Hugging Face files must state.
    pub const fn required(hugging_face: Names, model_center: Names, slot: fn(&mut C) -> Slot<'_>) -> Self {
        Row { hugging_face, model_center, required: true, slot }
    }
}

/// Take the fields of `rows` out of a file into `config`, which has the defaults.
///
/// # Errors
/// A value of another type, two names that disagree; all required fields that a Hugging Face file lacks.
pub fn take<C>(rows: &[Row<C>], config: &mut C, fields: &mut Fields, text: &TextConfig, spoken: Spoken) -> Result<()> {
    let mut missing = Vec::new();
    for row in rows {
        let names = [row.hugging_face, row.model_center].concat();
        let required = row.required && spoken == Spoken::HuggingFace;
        let stated = match (row.slot)(config) {
            Slot::Size(size) => set(size, fields.take_any(&names, Fields::take_size)?),
            Slot::Flag(flag) => set(flag, fields.take_any(&names, Fields::take_flag)?),
            Slot::Number(value) | Slot::Dropout(value) | Slot::Deviation(value) => {
                set(value, fields.take_any(&names, Fields::take_number)?)
            }
            Slot::OptionalSize(size) => {
                let stated = names.iter().any(|name| fields.has(name));
                let given = fields.take_any(&names, Fields::take_size)?;
                set(size, stated.then_some(given))
            }
            Slot::OptionalIndex(index) => {
                let stated = names.iter().any(|name| fields.has(name));
                let given = fields.take_any(&names, Fields::take_index)?;
                set(index, stated.then_some(given))
            }
            Slot::SoftCap(cap) => {
                let stated = names.iter().any(|name| fields.has(name));
                let given = fields.take_any(&names, Fields::take_number)?;
                if let Some(given) = given.filter(|given| *given <= 0.0) {
                    let reason = format!("a soft cap of {given} leaves nothing of scores");
                    return Err(fields.error(names[0], &reason, "give a number above 0, or null for none"));
                }
                set(cap, stated.then_some(given))
            }
            Slot::KvHeads(heads) => {
                // Where a file need not state it, there is one for each query head.
                *heads = if row.required { *heads } else { text.num_heads };
                let silent = (!required).then_some(*heads);
                set(heads, take_kv_heads(fields, &names, text.num_heads, silent)?)
            }
            Slot::Rotary(rotary) => {
                let stated = RotaryFields::take_whole_heads(fields, text, rotary)?;
                set(rotary, Some(stated))
            }
            Slot::PartRotary(rotary) => {
                let stated = RotaryFields::take_parts(fields, text, rotary)?;
                set(rotary, Some(stated))
            }
            Slot::Windows(windows) => {
                let stated = WindowFields::take(fields, text, windows)?;
                set(windows, Some(stated))
            }
            Slot::LayerRotary(rotary) => {
                let stated = LayerRotary::take(fields, text, rotary, row.hugging_face)?;
                set(rotary, Some(stated))
            }
            Slot::LayerWindows(windows) => {
                let stated = windows.take(fields, text, row.hugging_face)?;
                set(windows, Some(stated))
            }
            Slot::Activation(function) => {
                let stated = activations::take(fields, &names)?;
                if stated.is_some_and(|stated| stated.gated) {
                    let reason = "a function with a gate has two inputs, and there is one";
                    return Err(fields.error(names[0], reason, "name the function alone, such as gelu"));
                }
                set(function, stated.map(|stated| stated.activation))
            }
            Slot::Pooling(pooling) => set(pooling, fields.take_any(&names, TokenPooling::take)?),
        };
        if required && !stated {
            missing.push(names[0]);
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(fields.missing_sizes(&missing)),
    }
}

fn set<T>(target: &mut T, value: Option<T>) -> bool {
    value.map(|value| *target = value).is_some()
}

/// Write the fields of `rows` under the names of one dialect.
pub fn write<C: Clone>(rows: &[Row<C>], config: &C, text: &TextConfig, spoken: Spoken, map: &mut Map<String, Value>) {
    let mut config = config.clone();
    for row in rows {
        let names = match spoken {
            Spoken::HuggingFace => row.hugging_face.get(..1).unwrap_or_default(),
            Spoken::ModelCenter => row.model_center,
        };
        let value = match (row.slot)(&mut config) {
            Slot::Size(size) | Slot::KvHeads(size) => json!(size),
            Slot::Flag(flag) => json!(flag),
            Slot::Number(value) | Slot::Dropout(value) | Slot::Deviation(value) => number(*value),
            Slot::OptionalSize(size) | Slot::OptionalIndex(size) => json!(size),
            Slot::SoftCap(cap) => cap.map_or(Value::Null, number),
            Slot::Rotary(rotary) => {
                rotary.write(text.position_size, map);
                continue;
            }
            Slot::PartRotary(rotary) => {
                rotary.write_parts(text.position_size, map);
                continue;
            }
            Slot::Windows(windows) => {
                windows.write(text.num_layers, map);
                continue;
            }
            Slot::LayerRotary(rotary) => {
                rotary.write(row.hugging_face, text.position_size, map);
                continue;
            }
            Slot::LayerWindows(windows) => {
                windows.write(row.hugging_face, text.num_layers, map);
                continue;
            }
            Slot::Activation(function) => json!(activations::name(*function)),
            Slot::Pooling(pooling) => json!(pooling.name()),
        };
        map.extend(names.iter().map(|name| ((*name).to_owned(), value.clone())));
    }
}

/// Take numbers that have one name, `common`, in Hugging Face files, and one each in ModelCenter's.
pub fn take_common<C>(rows: &[Row<C>], common: &str, config: &mut C, fields: &mut Fields) -> Result<()> {
    let all = fields.take_number(common)?;
    for row in rows {
        let (&[name], Slot::Deviation(target)) = (row.model_center, (row.slot)(config)) else { continue };
        let own = fields.take_number(name)?;
        if let (Some(a), Some(b)) = (all, own)
            && a != b
        {
            let reason = format!("the file states {common} = {a} and {name} = {b}, two names of one thing");
            return Err(fields.error(name, &reason, "remove one of the two fields, or make them equal"));
        }
        *target = own.or(all).unwrap_or(*target);
    }
    Ok(())
}

/// Check sizes, dropout probabilities and standard deviations; `place` names the source.
///
/// # Errors
/// A value out of range, under ModelCenter's name of the field, or Hugging Face's where it has none.
pub fn check<C: Clone>(rows: &[Row<C>], config: &C, place: &str) -> Result<()> {
    let (mut config, ranges) = (config.clone(), Ranges { place });
    for row in rows {
        let Some(name) = row.model_center.first().or(row.hugging_face.first()) else { continue };
        match (row.slot)(&mut config) {
            Slot::Size(size) => ranges.sizes(&[(name, *size)])?,
            Slot::Dropout(rate) => ranges.dropouts(&[(name, *rate)])?,
            Slot::Deviation(std) => ranges.deviations(&[(name, *std)])?,
            _ => {}
        }
    }
    Ok(())
}

/// Key and value heads, if the file states them; else `silent` is what it means, which must divide too.
fn take_kv_heads(fields: &mut Fields, names: &[&str], heads: usize, silent: Option<usize>) -> Result<Option<usize>> {
    let stated = names.iter().any(|name| fields.has(name));
    let ours = names[names.len() - 1];
    if fields.peek(ours).and_then(Value::as_i64) == Some(-1) {
        fields.take(ours);
    }
    let given = fields.take_any(names, Fields::take_size)?.or(stated.then_some(heads));
    if let Some(given) = given.or(silent).filter(|given| !heads.is_multiple_of(*given)) {
        let reason = format!("{given} key heads do not divide {heads} query heads");
        return Err(fields.error(names[0], &reason, "correct one of the two"));
    }
    Ok(given)
}

/// The fields of a configuration: [`TextConfig`] and one row for each other. [`model_config!`](crate::model_config)
/// declares and implements it.
pub trait ConfigRows: Clone + Default + 'static {
    /// Its fields beyond the fields of all families.
    const ROWS: &'static [Row<Self>] = &[];

    /// Fields that all families have.
    fn text(&self) -> &TextConfig;

    /// The same, to change it.
    fn text_mut(&mut self) -> &mut TextConfig;
}

/// A configuration that is a [`TextConfig`] and rows: it implements [`Config`](super::Config) by them.
pub trait RowConfig: ConfigRows {
    /// Dialect of its files.
    const DIALECT: Dialect;

    /// The dialect of this configuration, where several families have one type of configuration.
    fn dialect(&self) -> &'static Dialect {
        const { &Self::DIALECT }
    }

    /// The dialect of a file, likewise.
    fn dialect_of(_fields: &Fields) -> Result<&'static Dialect> {
        Ok(const { &Self::DIALECT })
    }

    /// Take the fields out of a file: the fields of [`take_config`], and what the family checks or derives besides.
    ///
    /// # Errors
    /// A file that is not of this family, or states a model that is not supported.
    fn read(fields: &mut Fields) -> Result<Self> {
        Ok(take_config(fields)?.0)
    }

    /// Check the fields, as reading a file ends with; `place` names the source.
    fn validate(&self, place: &str) -> Result<()> {
        self.text().validate(place)?;
        check(Self::ROWS, self, place)
    }

    /// Change what [`Config::to_dict`](super::Config::to_dict) gives where it differs from the rows.
    fn adjust_dict(&self, _map: &mut Map<String, Value>) {}

    /// Change what [`Config::to_hf_json`](super::Config::to_hf_json) gives where it differs from the rows.
    fn adjust_hf(&self, _map: &mut Map<String, Value>) -> Result<()> {
        Ok(())
    }

    /// [`Config::to_model_center`](super::Config::to_model_center).
    ///
    /// # Errors
    /// A family without a class in ModelCenter, or a model that the class does not compute.
    fn to_class(&self, header: &HfHeader) -> Result<ClassFields> {
        model_center::class_fields(self, header)
    }
}

/// Take the common fields and the fields of the rows.
pub fn take_config<C: RowConfig>(fields: &mut Fields) -> Result<(C, Spoken)> {
    let mut config = C::default();
    let (text, spoken) = C::dialect_of(fields)?.take(fields, config.text().clone())?;
    take(C::ROWS, &mut config, fields, &text, spoken)?;
    *config.text_mut() = text;
    Ok((config, spoken))
}

/// The fields in a file of a family that only ModelCenter has: its own names, and what a directory states besides.
pub(super) fn with_header(
    text: &TextConfig,
    mut map: Map<String, Value>,
    header: &HfHeader,
) -> Result<Map<String, Value>> {
    map.insert("architectures".to_string(), json!([header.architecture]));
    map.insert("torch_dtype".to_string(), json!(header.torch_dtype()?));
    labels::write_counted(&text.labels, text.cls_head, text.problem_type, &mut map);
    map.sort_keys();
    Ok(map)
}
