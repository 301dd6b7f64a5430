//! Prompts of passages with several questions, whose samples are judged together: MultiRC and ReCoRD.
//!
//! Defines their `parse` functions, called through [`super::prompts::PROMPTS`].

use super::prompts::{ParseContext, Prompt};
use super::superglue::truth;
use crate::Result;
use crate::metrics::{exact_match, token_f1};
use model_center_base::batch::Member;
use model_center_formats::io::record::Record;

/// Bytes of all prompts of one record: each repeats the passage, so a short record could ask for a lot of memory. Real
/// ones take less than a hundredth.
const MAX_BYTES: usize = 64 << 20;
/// Entities of a passage, or answers to a query; real ones have about a hundred.
const MAX_ITEMS: usize = 1000;

/// The placeholder of the missing entity in a query.
const GAP: &str = "@placeholder";

/// One sample for each answer, judged by itself and with the other answers to its question.
pub(crate) fn multirc(record: &Record<'_>, asking: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    let text = record.text("passage.text")?;
    for asked in record.list("passage.questions")? {
        let member = Some(Member { question: asking.next_question(), credit: None });
        let question = asked.text("question")?;
        let answers = asked.list("answers")?;
        if answers.is_empty() {
            let fix = "give it answers, or leave the question out";
            return Err(asked.error("answers", "the question has no answer to judge", fix));
        }
        for answer in answers {
            let class = usize::from(truth(&answer)?);
            let answer = answer.text("text")?;
            let before = format!("{text} Is answer \"{answer}\" the answer to the question \"{question}\"?");
            add(record, prompts, Prompt { member, ..Prompt::new(before, class) })?;
        }
    }
    refuse_none(record, prompts, "passage.questions")
}

/// One sample for each entity of the passage, put into the gap of the query. The one that the model is surest of is its
/// answer.
///
/// Source: the passage as in the predecessor's prompt, which asks for all entities at once and has no label for it.
pub(crate) fn record_task(record: &Record<'_>, asking: &mut ParseContext, prompts: &mut Vec<Prompt>) -> Result<()> {
    let passage = record.text("passage.text")?;
    let entities = entities(record, passage)?;
    let listed = entities.join(", ");
    // As GPT-3's authors did with the marks of news summaries.
    let text = passage.replace("@highlight\n", "- ");
    for asked in record.list("qas")? {
        let query = asked.text("query")?;
        if !query.contains(GAP) {
            let reason = format!("a query has no {GAP}");
            return Err(asked.error("query", reason, "correct the record"));
        }
        if !asked.has("answers") {
            let fix = "use the splits with labels, train and val: a test split has none";
            return Err(asked.error("answers", "the record has no answers", fix));
        }
        let answers = asked.list("answers")?;
        bound(&asked, "answers", answers.len())?;
        let answers = answers.iter().map(|answer| answer.text("text")).collect::<Result<Vec<_>>>()?;
        let question = asking.next_question();
        for entity in &entities {
            let credit = [exact_match(entity, &answers), token_f1(entity, &answers)].map(|value| value as f32);
            let filled = query.replace(GAP, entity);
            let before =
                format!("{text} Question: {filled} Entities: {listed} Can \"{entity}\" be filled in the placeholder?");
            let member = Some(Member { question, credit: Some(credit) });
            add(record, prompts, Prompt { member, ..Prompt::new(before, usize::from(credit[0] == 1.0)) })?;
        }
    }
    refuse_none(record, prompts, "qas")
}

/// The texts of a passage's entities, each once, in their order.
fn entities(record: &Record<'_>, passage: &str) -> Result<Vec<String>> {
    // Places are counted in characters.
    let places: Vec<usize> = passage.char_indices().map(|(at, _)| at).chain([passage.len()]).collect();
    let listed = record.list("passage.entities")?;
    bound(record, "passage.entities", listed.len())?;
    let mut found: Vec<String> = Vec::new();
    for entity in listed {
        let (start, end) = (entity.whole("start")?, entity.whole("end")?);
        let bounds = places.get(start).zip(end.checked_add(1).and_then(|end| places.get(end)));
        let text = bounds.filter(|(start, end)| start < end).and_then(|(start, end)| passage.get(*start..*end));
        let Some(text) = text else {
            let reason =
                format!("an entity from {start} to {end} is not in a passage of {} characters", places.len() - 1);
            return Err(entity.error("start", reason, "correct the record"));
        };
        if !found.iter().any(|known| known == text) {
            found.push(text.to_owned());
        }
    }
    Ok(found)
}

fn bound(record: &Record<'_>, column: &str, items: usize) -> Result<()> {
    match items <= MAX_ITEMS {
        true => Ok(()),
        false => {
            let reason = format!("{items} of them, more than the accepted {MAX_ITEMS}");
            Err(record.error(column, reason, "leave the record out"))
        }
    }
}

/// Adds a prompt if there is room for all of the record's.
fn add(record: &Record<'_>, prompts: &mut Vec<Prompt>, prompt: Prompt) -> Result<()> {
    // The prompts of a record have similar lengths.
    if prompt.before.len().saturating_mul(prompts.len() + 1) > MAX_BYTES {
        let reason = format!("its prompts take more than {MAX_BYTES} bytes, for each of them repeats the passage");
        return Err(record.error("passage", reason, "split the record, or leave it out"));
    }
    prompts.push(prompt);
    Ok(())
}

fn refuse_none(record: &Record<'_>, prompts: &[Prompt], column: &str) -> Result<()> {
    match prompts.is_empty() {
        false => Ok(()),
        true => Err(record.error(column, "the record asks nothing", "give it questions with answers, or leave it out")),
    }
}
