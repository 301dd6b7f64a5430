//! Rows of attention: masks, windows, biases, dropout, grouped heads, projections in one, two and three tensors.

use super::*;
use crate::ops::{AttentionMask, AttentionOptions, Documents, KeyValues, PackedKeyValues, PackedTokens};

/// Mask of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Masked {
    None,
    Padding,
    Full,
    /// Some queries see no key at all.
    Blind,
}

/// Additive bias of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Biased {
    None,
    Shared,
    PerSequence,
    /// One row for every query.
    Row,
    /// One row for every query of a sequence.
    RowPerSequence,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Placed {
    Separate,
    Cross,
    Fused,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_size: usize,
    masked: Masked,
    /// Whether sequences are packed documents.
    packed: bool,
    biased: Biased,
    causal: bool,
    window: Option<usize>,
    soft_cap: Option<f32>,
    dropped: bool,
    placed: Placed,
    role: Role,
}

const SMALL: Call = Call {
    batch: 2,
    heads: 4,
    kv_heads: 4,
    queries: 5,
    keys: 5,
    head_size: 6,
    masked: Masked::None,
    packed: false,
    biased: Biased::None,
    causal: false,
    window: None,
    soft_cap: None,
    dropped: false,
    placed: Placed::Separate,
    role: Role::Variable,
};

pub(super) fn rows(cases: &mut Vec<Case>) {
    for placed in [Placed::Separate, Placed::Fused] {
        let call = Call { placed, ..SMALL };
        let mut row = |name: &str, call: Call| cases.push(case(name, call));
        row("plain", call);
        row("padding", Call { masked: Masked::Padding, ..call });
        row("mask", Call { masked: Masked::Full, ..call });
        row("blind queries", Call { masked: Masked::Blind, ..call });
        row("causal", Call { causal: true, ..call });
        row("causal padding", Call { causal: true, masked: Masked::Padding, ..call });
        row("bias", Call { biased: Biased::Shared, ..call });
        row("bias of each sequence", Call { biased: Biased::PerSequence, ..call });
        row("bias for all queries", Call { biased: Biased::Row, ..call });
        row("bias for all queries of a sequence", Call { biased: Biased::RowPerSequence, ..call });
        row("window", Call { causal: true, window: Some(3), ..call });
        let near = Call { causal: true, window: Some(4), masked: Masked::Padding, biased: Biased::Row, ..call };
        row("window, padding, bias for all queries", Call { kv_heads: 2, dropped: true, ..near });
        row("window to both sides", Call { window: Some(2), ..call });
        row("window to both sides, padding", Call { window: Some(3), masked: Masked::Padding, kv_heads: 2, ..call });
        row("soft cap", Call { soft_cap: Some(0.7), ..call });
        let capped = Call { soft_cap: Some(0.5), causal: true, dropped: true, kv_heads: 2, ..call };
        row("soft cap, mask, dropout", Call { masked: Masked::Blind, ..capped });
        row("dropout", Call { dropped: true, ..call });
        let all = Call { dropped: true, causal: true, masked: Masked::Full, biased: Biased::Shared, ..call };
        row("everything", all);
        let packed = Call { packed: true, kv_heads: 2, ..call };
        row("documents", packed);
        row("documents, causal", Call { causal: true, ..packed });
        row("documents, window to both sides", Call { window: Some(2), queries: 9, keys: 9, ..packed });
        // Long enough that most queries see several keys: where a query sees one, nothing moves its gradient from 0.
        row("documents, everything", Call { window: Some(3), packed: true, queries: 9, keys: 9, ..all });
        row("grouped heads", Call { kv_heads: 2, ..call });
        row("one kv head, everything", Call { kv_heads: 1, ..all });
        row("only bias for all queries", Call { role: Role::Constant, biased: Biased::Row, ..call });
        row("one head of one", Call { batch: 1, heads: 1, kv_heads: 1, head_size: 1, ..call });
        row("head size 33", Call { heads: 2, kv_heads: 1, head_size: 33, ..call });
        row("head size 64, odd length", Call { heads: 1, kv_heads: 1, head_size: 64, queries: 13, keys: 13, ..call });
        let frozen = Call { role: Role::Constant, biased: Biased::Shared, ..call };
        row("only bias", frozen);
        // One probability, always 1: nothing moves it.
        let alone = case("one token", Call { queries: 1, keys: 1, ..call });
        let itself = case("window of one", Call { causal: true, window: Some(1), ..call });
        for case in [alone, itself] {
            cases.push(if placed == Placed::Fused { case } else { case.vanishing(&["q", "k"]) });
        }
        let large = Call { batch: 3, queries: 70, keys: 70, head_size: 16, ..call };
        cases.push(case("plain", large).large());
        cases.push(
            case("everything", Call { batch: 3, kv_heads: 2, queries: 70, keys: 70, head_size: 16, ..all }).large(),
        );
    }
    let cross = Call { queries: 3, keys: 8, ..SMALL };
    cases.push(case("cross", cross));
    cases.push(case("cross causal", Call { causal: true, ..cross }));
    cases.push(case(
        "cross padding bias",
        Call { masked: Masked::Padding, biased: Biased::Shared, kv_heads: 2, ..cross },
    ));
    cases.push(case("more queries than keys, causal", Call { causal: true, queries: 7, keys: 4, ..SMALL }));
    cases.push(case("cross", Call { queries: 40, keys: 90, head_size: 32, ..SMALL }).large());
    cases.push(case("cross, window", Call { causal: true, window: Some(3), ..cross }));
    cases.push(case(
        "more queries than keys, window",
        Call { causal: true, window: Some(2), queries: 7, keys: 4, biased: Biased::Row, ..SMALL },
    ));
    let two = Call { placed: Placed::Cross, ..cross };
    cases.push(case("plain", two));
    cases.push(case("grouped heads, padding", Call { masked: Masked::Padding, kv_heads: 2, ..two }));
    cases.push(case("causal, dropout, bias", Call { causal: true, dropped: true, biased: Biased::Shared, ..two }));
    cases.push(case("one token", Call { batch: 1, heads: 1, kv_heads: 1, queries: 1, keys: 5, head_size: 1, ..two }));
    cases.push(case("plain", Call { queries: 40, keys: 90, head_size: 32, ..two }).large());
    borders(cases);
    for (heads, kv_heads, head_size, window) in [(4, 2, 6, None), (2, 1, 64, None), (2, 2, 32, Some(9))] {
        cases.push(kept(heads, kv_heads, head_size, window));
        cases.push(packed_tokens(heads, kv_heads, head_size, window));
    }
    cases.push(apart("rows apart", None, 3));
    cases.push(apart("negative scale", None, 8));
    cases.push(apart("keys of another type", Some(DType::F32), 8));
    let same = Case::one("attention/one variable for all", |cx, v| {
        ops::attention(cx, &v[0], &v[0], &v[0], &AttentionOptions::new(2, 4))
    });
    cases.push(same.variable("x", [2, 5, 8]));
    let only_q = Case::one("attention/frozen keys and values", |cx, v| {
        ops::attention(cx, &v[0], &v[1], &v[2], &AttentionOptions::new(2, 4))
    });
    cases.push(only_q.variable("q", [2, 3, 8]).constant("k", [2, 5, 8]).constant("v", [2, 5, 8]));
}

/// Head sizes that devices have kernels of their own for, others, and lengths around the borders of their tiles.
fn borders(cases: &mut Vec<Case>) {
    let one = Call { batch: 1, heads: 2, kv_heads: 1, head_size: 64, ..SMALL };
    let all = Call { causal: true, masked: Masked::Full, biased: Biased::Shared, dropped: true, ..one };
    let sized = |head_size: usize, queries: usize, keys: usize, call: Call| {
        let call = Call { head_size, queries, keys, ..call };
        let name = format!("head size {head_size}, {queries} queries, {keys} keys");
        let words = [
            (call.causal && call.window.is_none(), ", causal"),
            (call.window.is_some(), if call.causal { ", window" } else { ", window to both sides" }),
            (call.soft_cap.is_some(), ", soft cap"),
            (call.masked != Masked::None, ", mask"),
            (call.packed, ", documents"),
            (call.biased != Biased::None, ", bias"),
            (call.dropped, ", dropout"),
        ];
        let name = words.iter().filter(|(there, _)| *there).fold(name, |name, (_, word)| name + word);
        case(&name, call).large()
    };
    let causal = Call { causal: true, ..one };
    let padded = Call { batch: 2, masked: Masked::Padding, ..one };
    let biased = Call { batch: 2, biased: Biased::PerSequence, ..one };
    let near = Call { causal: true, window: Some(40), ..one };
    let sloped = Call { batch: 2, biased: Biased::Row, ..one };
    let packed = Call { packed: true, ..one };
    let around = Call { causal: false, ..near };
    let capped = Call { soft_cap: Some(0.6), ..causal };
    cases.extend([
        sized(32, 200, 200, Call { heads: 1, window: Some(16), ..around }),
        sized(64, 65, 333, around),
        sized(64, 333, 70, around),
        sized(64, 200, 200, Call { batch: 2, masked: Masked::Padding, placed: Placed::Fused, ..around }),
        sized(64, 150, 150, Call { packed: true, ..around }),
        sized(128, 290, 290, Call { heads: 1, window: Some(65), ..around }),
        sized(33, 150, 150, Call { masked: Masked::Padding, batch: 2, ..around }),
        sized(64, 65, 130, capped),
        sized(128, 130, 130, Call { dropped: true, window: Some(70), ..capped }),
        sized(80, 40, 40, Call { masked: Masked::Full, causal: false, ..capped }),
        sized(33, 65, 70, Call { dropped: true, ..capped }),
        sized(256, 15, 65, Call { heads: 1, masked: Masked::Padding, ..capped }),
        sized(32, 200, 200, Call { heads: 1, window: Some(16), ..near }),
        sized(64, 65, 333, near),
        sized(64, 200, 70, near),
        sized(64, 33, 150, Call { masked: Masked::Padding, dropped: true, causal: true, window: Some(70), ..sloped }),
        sized(64, 65, 65, Call { placed: Placed::Fused, ..sloped }),
        sized(80, 17, 33, Call { biased: Biased::RowPerSequence, ..sloped }),
        sized(128, 40, 130, Call { heads: 1, window: Some(64), ..near }),
        sized(33, 150, 150, Call { biased: Biased::Row, ..near }),
        sized(32, 130, 130, Call { heads: 1, ..causal }),
        sized(32, 17, 63, Call { batch: 2, heads: 4, kv_heads: 2, causal: false, ..all }),
        sized(64, 65, 65, one),
        sized(64, 130, 130, Call { heads: 1, ..causal }),
        sized(64, 65, 65, Call { batch: 2, placed: Placed::Fused, ..all }),
        sized(64, 15, 130, padded),
        sized(64, 17, 17, Call { masked: Masked::Blind, ..one }),
        sized(64, 1, 65, one),
        sized(64, 63, 17, causal),
        sized(80, 65, 65, Call { placed: Placed::Fused, ..causal }),
        sized(80, 17, 33, Call { dropped: true, ..biased }),
        sized(96, 17, 65, causal),
        sized(96, 15, 15, Call { batch: 2, placed: Placed::Fused, ..all }),
        sized(128, 65, 65, Call { heads: 1, ..causal }),
        sized(64, 300, 300, Call { batch: 2, heads: 4, kv_heads: 2, placed: Placed::Fused, ..causal }),
        sized(128, 290, 290, Call { heads: 1, ..causal }),
        sized(128, 130, 390, Call { heads: 1, ..one }),
        sized(128, 33, 17, Call { masked: Masked::Padding, ..biased }),
        sized(64, 17, 33, Call { batch: 5, biased: Biased::Shared, ..one }),
        sized(33, 65, 65, Call { heads: 1, ..all }),
        sized(33, 17, 15, Call { batch: 5, biased: Biased::Shared, ..one }),
        sized(160, 17, 33, Call { batch: 2, ..all }),
        sized(256, 15, 65, Call { heads: 1, ..causal }),
        sized(264, 3, 5, Call { heads: 1, ..all }),
        sized(64, 200, 200, Call { batch: 2, ..packed }),
        sized(64, 200, 200, Call { causal: true, kv_heads: 2, placed: Placed::Fused, ..packed }),
        sized(32, 130, 130, Call { batch: 5, packed: true, heads: 1, ..all }),
        sized(80, 150, 150, Call { masked: Masked::Padding, causal: true, window: Some(40), ..packed }),
        sized(128, 65, 65, Call { heads: 1, biased: Biased::PerSequence, dropped: true, ..packed }),
        sized(33, 150, 150, Call { heads: 1, packed: true, ..all }),
        sized(160, 70, 70, Call { heads: 1, causal: true, ..packed }),
    ]);
}

fn read(x: &Tensor, rows: usize, width: usize) -> Result<Heads<'_>> {
    Ok(Heads { view: x.view()?, batch_stride: rows * width, row_stride: width })
}

fn written(x: &mut Tensor, rows: usize, width: usize, add: bool) -> Result<HeadsMut<'_>> {
    Ok(HeadsMut { view: x.view_mut()?, batch_stride: rows * width, row_stride: width, add })
}

/// Tokens in two pieces; the second follows cached tokens whose rows have moved.
fn kept(heads: usize, kv_heads: usize, head_size: usize, window: Option<usize>) -> Case {
    let width = (heads + 2 * kv_heads) * head_size;
    let case = Case::op(format!("attention/kept tokens, head size {head_size}"), move |cx, v| {
        let options = AttentionOptions { causal: true, kv_heads, window, ..AttentionOptions::new(heads, head_size) };
        let mut cache = KeyValues::expecting(35);
        let first = ops::attention_fused_cached(cx, &v[0], &mut cache, &options)?;
        cache.reorder(&[1, 0, 0])?;
        let next = ops::attention_fused_cached(cx, &v[1], &mut cache, &options)?;
        Ok(vec![first, next])
    });
    case.constant("first", [2, 33, width]).constant("next", [3, 1, width])
}

/// Two sequences of different lengths that share rows, one of them in pieces; the third begins as the first.
fn packed_tokens(heads: usize, kv_heads: usize, head_size: usize, window: Option<usize>) -> Case {
    let width = (heads + 2 * kv_heads) * head_size;
    let case = Case::op(format!("attention/packed tokens, head size {head_size}"), move |cx, v| {
        let options = AttentionOptions { causal: true, kv_heads, window, ..AttentionOptions::new(heads, head_size) };
        let of = |slot, tokens| PackedTokens { slot, tokens, bias: None };
        let mut caches = PackedKeyValues::default();
        caches.open(0, 40);
        caches.open(1, 0);
        caches.begin(vec![of(0, 20), of(1, 13)]);
        let first = ops::attention_fused_packed(cx, &v[0], &mut caches, &options)?;
        caches.copy(0, 2, 30)?;
        caches.begin(vec![of(1, 1), of(2, 1), of(0, 17)]);
        let next = ops::attention_fused_packed(cx, &v[1], &mut caches, &options)?;
        Ok(vec![first, next])
    });
    case.constant("first", [1, 33, width]).constant("next", [1, 19, width])
}

/// Both passes launched directly: rows `gap` elements further apart than they are wide, keys of a type of their own,
/// gradients of queries and values that are added to.
fn apart(name: &str, keys: Option<DType>, gap: usize) -> Case {
    let shape = AttentionShape { batch: 2, heads: 2, kv_heads: 1, queries: 17, keys: 33, head_size: 64 };
    let (wide, narrow) = (2 * 64 + gap, 64 + gap);
    let case = Case::kernel(format!("attention/{name}"), move |device, t| {
        let dtype = t[0].dtype();
        let like = |x: &Tensor| zeros(device, x.shape().dims(), x.dtype());
        let rows = || zeros(device, &[2, 2, 17], DType::F32);
        let (mut out, mut lse, mut delta) = (zeros(device, &[2, 17, wide], dtype)?, rows()?, rows()?);
        let (mut dq, mut dk, mut dv) = (copy(&t[0])?, like(&t[1])?, like(&t[2])?);
        let (q, k, v, dout) =
            (read(&t[0], 17, wide)?, read(&t[1], 33, narrow)?, read(&t[2], 33, narrow)?, read(&t[3], 17, wide)?);
        let (mask, documents, bias, dropout) = (Mask::None, None, None, None);
        let (scale, soft_cap, causal, window) = (-0.2, None, true, None);
        let inputs =
            AttentionInputs { shape, scale, soft_cap, causal, window, mask, documents, bias, dropout, q, k, v };
        let (to, sums) = (written(&mut out, 17, wide, false)?, lse.view_mut()?);
        device.launch(AttentionForward { inputs, out: to, lse: sums })?;
        device.launch(AttentionBackward {
            inputs,
            out: read(&out, 17, wide)?,
            lse: lse.view()?,
            dout,
            delta: delta.view_mut()?,
            dq: written(&mut dq, 17, wide, true)?,
            dk: written(&mut dk, 33, narrow, false)?,
            dv: written(&mut dv, 33, narrow, true)?,
            dbias: None,
        })?;
        Ok(vec![out, lse, dq, dk, dv])
    });
    let case = case.constant("q", [2, 17, wide]).constant("k", [2, 33, narrow]);
    let case = if let Some(keys) = keys { case.of(keys) } else { case };
    case.constant("v", [2, 33, narrow]).constant("dout", [2, 17, wide])
}

/// The first token of each token's document, of documents of other lengths in each sequence.
fn document_starts(batch: usize, length: usize) -> Vec<u32> {
    let lengths = [2, 1, 30, 64, 3, 70, 16];
    let mut starts = Vec::with_capacity(batch * length);
    for b in 0..batch {
        let (mut start, mut document) = (0, b);
        for at in 0..length {
            if at == start + lengths[document % lengths.len()] {
                (start, document) = (at, document + 1);
            }
            starts.push(start as u32);
        }
    }
    starts
}

fn case(name: &str, call: Call) -> Case {
    let Call {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_size,
        masked,
        packed,
        biased,
        causal,
        window,
        soft_cap,
        dropped,
        placed,
        role,
    } = call;
    let (op, projections) = match placed {
        Placed::Separate => ("attention", 3),
        Placed::Cross => ("attention_cross", 2),
        Placed::Fused => ("attention_fused", 1),
    };
    let case = Case::op(format!("{op}/{name}"), move |cx, v| {
        let (mut extra, projections) = (v[projections..].iter(), &v[..projections]);
        let mask = match masked {
            Masked::None => AttentionMask::None,
            Masked::Padding => extra.next().map_or(AttentionMask::None, |mask| AttentionMask::Padding(mask.value())),
            Masked::Full | Masked::Blind => {
                extra.next().map_or(AttentionMask::None, |mask| AttentionMask::Full(mask.value()))
            }
        };
        let documents = match packed {
            true => Some(Documents::new(cx.device(), [batch, queries], &document_starts(batch, queries))?),
            false => None,
        };
        let bias = extra.next();
        let dropout = Dropout::new(0.3, Key::new(11, "attention"), 2, 1)?.filter(|_| dropped);
        let options = AttentionOptions {
            kv_heads,
            causal,
            window,
            soft_cap,
            mask,
            documents: documents.as_ref(),
            bias,
            dropout,
            ..AttentionOptions::new(heads, head_size)
        };
        Ok(vec![match projections {
            [q, k, v] => ops::attention(cx, q, k, v, &options)?,
            [q, kv] => ops::attention_cross(cx, q, kv, &options)?,
            _ => ops::attention_fused(cx, &projections[0], &options)?,
        }])
    });
    let unit = Values::Normal(0.0, 1.0);
    let (wide, narrow) = (heads * head_size, kv_heads * head_size);
    let case = match placed {
        Placed::Separate => case
            .input("q", [batch, queries, wide], role, unit)
            .input("k", [batch, keys, narrow], role, unit)
            .input("v", [batch, keys, narrow], role, unit),
        Placed::Cross => {
            case.input("q", [batch, queries, wide], role, unit).input("kv", [batch, keys, 2 * narrow], role, unit)
        }
        Placed::Fused => case.input("qkv", [batch, queries, wide + 2 * narrow], role, unit),
    };
    let case = match masked {
        Masked::None => case,
        Masked::Padding => case.mask("mask", [batch, keys], keys),
        Masked::Full => case.mask("mask", [batch, queries, keys], keys),
        Masked::Blind => case.mask("mask", [batch, queries, keys], 0),
    };
    match biased {
        Biased::None => case,
        Biased::Shared => case.variable("bias", [1, heads, queries, keys]),
        Biased::PerSequence => case.leaf("bias", [batch, heads, queries, keys]),
        Biased::Row => case.variable("bias", [1, heads, 1, keys]),
        Biased::RowPerSequence => case.leaf("bias", [batch, heads, 1, keys]),
    }
}
