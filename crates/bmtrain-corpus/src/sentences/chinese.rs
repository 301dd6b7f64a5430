//! Sentences of Chinese: its marks end them, with the quotation marks that close after.

/// Characters that end a sentence.
const ENDS: [char; 7] = ['。', '！', '？', '；', '…', '!', '?'];
/// Characters that close after the end and belong to the sentence.
const CLOSERS: [char; 14] = ['”', '’', '」', '』', '）', '】', '》', '〉', '"', '\'', ')', ']', '〕', '﹂'];
/// Characters that continue the sentence after a quotation.
const CONTINUATIONS: [char; 9] = ['，', '、', '：', ',', '—', '～', '·', ':', ';'];

/// The sentences of a line.
pub(super) fn split(line: &str) -> Vec<&str> {
    let (mut sentences, mut start) = (Vec::new(), 0);
    let mut characters = line.char_indices().peekable();
    while let Some((_, c)) = characters.next() {
        if !ENDS.contains(&c) {
            continue;
        }
        while characters.next_if(|(_, c)| ENDS.contains(c) || CLOSERS.contains(c)).is_some() {}
        let end = characters.peek().map_or(line.len(), |(at, _)| *at);
        if characters.peek().is_some_and(|(_, c)| CONTINUATIONS.contains(c)) {
            continue;
        }
        sentences.push(&line[start..end]);
        start = end;
    }
    if start < line.len() {
        sentences.push(&line[start..]);
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn marks_end_sentences_with_what_closes() {
        for (line, expected) in [
            ("今天天气很好。我们去公园！好吗？", vec!["今天天气很好。", "我们去公园！", "好吗？"]),
            ("他说：“走吧！”我们就走了。", vec!["他说：“走吧！”", "我们就走了。"]),
            ("“走吧！”，他说。", vec!["“走吧！”，他说。"]),
            ("第一；第二……第三", vec!["第一；", "第二……", "第三"]),
            ("真的吗？！真的。", vec!["真的吗？！", "真的。"]),
            ("圆周率是3.14，对。", vec!["圆周率是3.14，对。"]),
            ("", vec![]),
        ] {
            assert_eq!(split(line), expected, "{line}");
        }
    }
}
