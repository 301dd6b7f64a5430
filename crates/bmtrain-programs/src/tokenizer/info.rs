//! A description of a directory's tokenizer.

use super::open;
use crate::cli::terminal;
use model_center_base::Result;
use model_center_base::file::printable;
use model_center_formats::tokenizer::{
    AutoTokenizer, ChatTemplate, SpecialIds, Template, TemplateSlot, TextSpecials, Tokenizer,
};
use serde_json::{Map, Value, json};

/// Control tokens beyond this many are counted, not listed.
const LISTED: usize = 20;

pub(super) fn run(model: &str, as_json: bool) -> Result<()> {
    let (directory, tokenizer) = open(model, TextSpecials::AsText)?;
    let tokenizer = tokenizer.as_ref();
    let kind = AutoTokenizer::format_of(&directory)?.unwrap_or("unknown");
    let special = named(tokenizer);
    let mut control = tokenizer.control_tokens();
    control.sort_by_key(|token| token.id);
    let chat = ChatTemplate::from_directory(&directory)?;
    let chat: Vec<&str> = chat.iter().flat_map(ChatTemplate::names).collect();
    let surround = [false, true].map(|pair| spelled(tokenizer, tokenizer.template(pair)));
    if as_json {
        let special: Map<String, Value> =
            special.iter().map(|(name, id, token)| ((*name).to_owned(), json!({"id": id, "token": token}))).collect();
        let control: Vec<Value> = control.iter().map(|token| json!({"id": token.id, "token": token.text})).collect();
        let record = json!({
            "folder": directory.display().to_string(), "kind": kind, "tokens": tokenizer.vocab_size(),
            "special": special,
            "control": control, "single": surround[0], "pair": surround[1], "chat_templates": chat,
        });
        return terminal::print(&record.to_string());
    }
    let mut lines = vec![format!("kind      {kind}"), format!("tokens    {}", tokenizer.vocab_size())];
    lines.extend(special.iter().map(|(name, id, token)| format!("{name:<8}  {id}  {}", shown(token))));
    let listed: Vec<String> = control.iter().take(LISTED).map(|token| shown(&token.text)).collect();
    let more = control.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    lines.push(format!("control   {}{more}", listed.join(" ")));
    lines.push(format!("single    {}", surround[0]));
    lines.push(format!("pair      {}", surround[1]));
    lines.push(format!(
        "chat      {}",
        if chat.is_empty() { "no template".to_owned() } else { shown(&chat.join(", ")) }
    ));
    terminal::print(&lines.join("\n"))
}

fn named(tokenizer: &dyn Tokenizer) -> Vec<(&'static str, u32, String)> {
    let SpecialIds { pad, unk, cls, sep, mask, bos, eos } = tokenizer.special_ids();
    let all = [("pad", pad), ("unk", unk), ("cls", cls), ("sep", sep), ("mask", mask), ("bos", bos), ("eos", eos)];
    all.into_iter().filter_map(|(name, id)| Some((name, id?, tokenizer.token(id?).unwrap_or_default()))).collect()
}

/// Special tokens around texts, such as `[CLS] A [SEP] B [SEP]`.
fn spelled(tokenizer: &dyn Tokenizer, template: &Template) -> String {
    let piece = |piece: &TemplateSlot| match piece {
        TemplateSlot::Special { id, .. } => shown(&tokenizer.token(*id).unwrap_or_default()),
        TemplateSlot::First { .. } => "A".to_owned(),
        TemplateSlot::Second { .. } => "B".to_owned(),
    };
    template.pieces.iter().map(piece).collect::<Vec<_>>().join(" ")
}

/// A token as a terminal may show it.
pub(super) fn shown(token: &str) -> String {
    printable(token, 100)
}
