//! Attention with a KV cache of earlier calls is the attention over all tokens at once, however they are cut into
//! calls.

use bmtrain_core::ops::{self, AttentionMask, AttentionOptions, KeyValues, PackedKeyValues, PackedTokens};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use std::ops::Range;

const ROWS: usize = 3;
const LENGTH: usize = 11;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SIZE: usize = 6;
const WIDTH: usize = (HEADS + 2 * KV_HEADS) * SIZE;

/// Numbers between -1 and 1 that repeat late.
pub fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

fn tensor(device: &Device, shape: impl Into<bmtrain_core::Shape>, values: &[f32]) -> Tensor {
    Tensor::from_slice_in(device, shape, values, Segment::Data).unwrap()
}

/// Columns of tokens of every row.
fn cut(all: &[f32], tokens: Range<usize>, columns: Range<usize>) -> Vec<f32> {
    let row = |row: usize| tokens.clone().map(move |token| (row * LENGTH + token) * WIDTH);
    (0..ROWS).flat_map(row).flat_map(|start| all[start + columns.start..start + columns.end].iter().copied()).collect()
}

/// Mask and bias of a case.
#[derive(Clone, Copy)]
struct Case {
    window: Option<usize>,
    is_padded: bool,
    has_bias: bool,
}

/// 1 for tokens; the second row is padded on the left, the third has a hole.
fn mask(tokens: usize) -> Vec<u8> {
    let is_token = |row: usize, token: usize| match row {
        1 => token >= 4,
        2 => token != 2,
        _ => true,
    };
    (0..ROWS).flat_map(|row| (0..tokens).map(move |token| u8::from(is_token(row, token)))).collect()
}

/// Biases of keys `[1, N, 1, S]`.
fn bias(tokens: usize) -> Vec<f32> {
    (0..HEADS).flat_map(|head| (0..tokens).map(move |token| (head * token % 5) as f32 * 0.3)).collect()
}

/// Runs `attend` with the options of a case, over `total` tokens.
fn with_options<T>(device: &Device, case: Case, tokens: usize, attend: impl FnOnce(&AttentionOptions<'_>) -> T) -> T {
    let mask = Tensor::from_slice_in(device, [ROWS, tokens], &mask(tokens), Segment::Data).unwrap();
    let bias = Var::constant(tensor(device, [1, HEADS, 1, tokens], &bias(tokens)));
    attend(&AttentionOptions {
        kv_heads: KV_HEADS,
        causal: true,
        window: case.window,
        mask: if case.is_padded { AttentionMask::Padding(&mask) } else { AttentionMask::None },
        bias: case.has_bias.then_some(&bias),
        ..AttentionOptions::new(HEADS, SIZE)
    })
}

fn whole(device: &Device, case: Case, all: &[f32]) -> Vec<f32> {
    let cx = Ctx::inference(device);
    let qkv = Var::constant(tensor(device, [ROWS, LENGTH, WIDTH], all));
    with_options(device, case, LENGTH, |options| {
        ops::attention_fused(&cx, &qkv, options).unwrap().value().to_vec().unwrap()
    })
}

/// In pieces of these lengths, with one tensor or with three, with capacity for that number of tokens; the output `[B,
/// L, N*H]` of the pieces put together.
fn in_pieces(
    device: &Device,
    case: Case,
    all: &[f32],
    pieces: &[usize],
    (is_fused, expected): (bool, usize),
) -> Vec<f32> {
    let cx = Ctx::inference(device);
    let mut cache = KeyValues::expecting(expected);
    let width = HEADS * SIZE;
    let mut out = vec![0.0; ROWS * LENGTH * width];
    let mut first = 0;
    for &length in pieces {
        let part = |columns: Range<usize>| {
            let shape = [ROWS, length, columns.len()];
            Var::constant(tensor(device, shape, &cut(all, first..first + length, columns)))
        };
        let got = with_options(device, case, first + length, |options| match is_fused {
            true => ops::attention_fused_cached(&cx, &part(0..WIDTH), &mut cache, options).unwrap(),
            false => {
                let (q, k) = (part(0..width), part(width..width + KV_HEADS * SIZE));
                let v = part(width + KV_HEADS * SIZE..WIDTH);
                ops::attention_cached(&cx, [&q, &k, &v], &mut cache, options).unwrap()
            }
        });
        let got: Vec<f32> = got.value().to_vec().unwrap();
        for (index, row) in got.chunks(width).enumerate() {
            let place = (index / length * LENGTH + first + index % length) * width;
            out[place..place + width].copy_from_slice(row);
        }
        first += length;
    }
    assert_eq!((cache.len(), cache.is_empty()), (LENGTH, false));
    out
}

#[test]
fn pieces_are_the_whole() {
    let device = Device::cpu(1).unwrap();
    let all = values(ROWS * LENGTH * WIDTH, 1);
    for (window, is_padded, has_bias) in
        [(None, false, false), (Some(3), false, false), (None, true, false), (None, false, true), (Some(4), true, true)]
    {
        let case = Case { window, is_padded, has_bias };
        let want = whole(&device, case, &all);
        for pieces in [&[LENGTH][..], &[1; LENGTH], &[7, 1, 1, 2], &[1, 10]] {
            for how in [(true, LENGTH), (false, LENGTH), (true, 0), (false, 4)] {
                let got = in_pieces(&device, case, &all, pieces, how);
                let furthest = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
                assert!(
                    furthest < 1e-6,
                    "window {window:?}, padded {is_padded}, bias {has_bias}, {pieces:?}: {furthest}"
                );
            }
        }
    }
}

#[test]
fn rows_continue_from_others() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let options = AttentionOptions { kv_heads: KV_HEADS, causal: true, ..AttentionOptions::new(HEADS, SIZE) };
    let all = values(ROWS * LENGTH * WIDTH, 2);
    let begin = || {
        let mut cache = KeyValues::expecting(LENGTH);
        let first = Var::constant(tensor(&device, [ROWS, 5, WIDTH], &cut(&all, 0..5, 0..WIDTH)));
        ops::attention_fused_cached(&cx, &first, &mut cache, &options).unwrap();
        cache
    };
    let decode = |cache: &mut KeyValues, from: &[usize]| -> Vec<f32> {
        let next = cut(&all, 5..6, 0..WIDTH);
        let next: Vec<f32> = from.iter().flat_map(|&row| next[row * WIDTH..(row + 1) * WIDTH].to_vec()).collect();
        let next = Var::constant(tensor(&device, [from.len(), 1, WIDTH], &next));
        ops::attention_fused_cached(&cx, &next, cache, &options).unwrap().value().to_vec().unwrap()
    };
    let want = decode(&mut begin(), &[0, 1, 2]);
    for from in [&[2, 0, 0, 1][..], &[1], &[0, 1, 2], &[0, 1]] {
        let mut cache = begin();
        cache.reorder(from).unwrap();
        let got = decode(&mut cache, from);
        let width = HEADS * SIZE;
        for (got, &from) in got.chunks(width).zip(from) {
            assert_eq!(got, &want[from * width..(from + 1) * width], "row {from}");
        }
    }
}

#[test]
fn other_rows_are_errors() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let options = AttentionOptions { kv_heads: KV_HEADS, causal: true, ..AttentionOptions::new(HEADS, SIZE) };
    let qkv = |rows: usize, length: usize| {
        Var::constant(tensor(&device, [rows, length, WIDTH], &values(rows * length * WIDTH, 3)))
    };
    let mut cache = KeyValues::default();
    assert!(cache.reorder(&[5]).is_ok());
    let mut attend = |cx: &Ctx, qkv: &Var| {
        ops::attention_fused_cached(cx, qkv, &mut cache, &options).map(|_| ()).map_err(|e| e.to_string())
    };
    attend(&cx, &qkv(2, 3)).unwrap();
    assert!(attend(&cx, &qkv(3, 1)).unwrap_err().contains("cache"));
    attend(&cx, &qkv(2, 1)).unwrap();
    assert!(cache.reorder(&[0, 2]).unwrap_err().to_string().contains("row 2 of 2"));
}

/// Rows of a table by sequence and token.
fn packed(all: &[f32], parts: &[(usize, Range<usize>)], columns: Range<usize>) -> Vec<f32> {
    let tokens = parts.iter().flat_map(|(row, tokens)| tokens.clone().map(move |token| (row * LENGTH + token) * WIDTH));
    tokens.flat_map(|start| all[start + columns.start..start + columns.end].iter().copied()).collect()
}

#[test]
fn packed_sequences_are_what_each_is_alone() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let all = values(ROWS * LENGTH * WIDTH, 4);
    let width = HEADS * SIZE;
    // Sequences join and leave; slot 2 begins with the first tokens of slot 0.
    let passes: [&[(usize, Range<usize>)]; 4] =
        [&[(0, 0..3)], &[(1, 0..7), (0, 3..4)], &[(0, 4..9), (2, 4..5), (1, 7..8)], &[(2, 5..11), (1, 8..11)]];
    for (window, has_bias) in [(None, false), (Some(3), false), (None, true)] {
        let case = Case { window, is_padded: false, has_bias };
        let options =
            AttentionOptions { kv_heads: KV_HEADS, causal: true, window, ..AttentionOptions::new(HEADS, SIZE) };
        let by_key = |tokens: usize| Var::constant(tensor(&device, [1, HEADS, 1, tokens], &bias(tokens)));
        // Sequence 2 begins with the first four tokens of sequence 0.
        let mut all = all.clone();
        all.copy_within(0..4 * WIDTH, 2 * LENGTH * WIDTH);
        let want = in_pieces(&device, case, &all, &[LENGTH], (true, LENGTH));
        for is_fused in [true, false] {
            let mut caches = PackedKeyValues::default();
            for slot in 0..2 {
                caches.open(slot, 5);
            }
            for (number, parts) in passes.iter().enumerate() {
                if number == 2 {
                    caches.copy(0, 2, 6).unwrap();
                }
                let of = |(slot, tokens): &(usize, Range<usize>)| PackedTokens {
                    slot: *slot,
                    tokens: tokens.len(),
                    bias: has_bias.then(|| by_key(tokens.end)),
                };
                caches.begin(parts.iter().map(of).collect());
                let length = parts.iter().map(|(_, tokens)| tokens.len()).sum::<usize>();
                let row = |columns: Range<usize>| {
                    let shape = [1, length, columns.len()];
                    Var::constant(tensor(&device, shape, &packed(&all, parts, columns)))
                };
                let got = match is_fused {
                    true => ops::attention_fused_packed(&cx, &row(0..WIDTH), &mut caches, &options).unwrap(),
                    false => {
                        let (q, k) = (row(0..width), row(width..width + KV_HEADS * SIZE));
                        let v = row(width + KV_HEADS * SIZE..WIDTH);
                        ops::attention_packed(&cx, [&q, &k, &v], &mut caches, &options).unwrap()
                    }
                };
                let got: Vec<f32> = got.value().to_vec().unwrap();
                let tokens =
                    parts.iter().flat_map(|(row, tokens)| tokens.clone().map(move |token| row * LENGTH + token));
                for (got, token) in got.chunks(width).zip(tokens) {
                    let want = &want[token * width..(token + 1) * width];
                    let furthest = got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
                    assert!(furthest < 1e-6, "window {window:?}, bias {has_bias}, pass {number}, {token}: {furthest}");
                }
            }
            assert_eq!([caches.len(0), caches.len(1), caches.len(2), caches.len(3)], [9, 11, 11, 0]);
            caches.close(1);
            assert_eq!(caches.len(1), 0);
        }
    }
}

#[test]
fn a_packed_row_has_the_tokens_of_its_sequences() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let options = AttentionOptions { kv_heads: KV_HEADS, causal: true, ..AttentionOptions::new(HEADS, SIZE) };
    let mut caches = PackedKeyValues::default();
    caches.open(0, 4);
    let row = Var::constant(tensor(&device, [1, 3, WIDTH], &values(3 * WIDTH, 5)));
    for (slot, tokens, want) in [(0, 2, "2 tokens of 1 sequences"), (1, 3, "slot 1 was not opened")] {
        caches.begin(vec![PackedTokens { slot, tokens, bias: None }]);
        let error = ops::attention_fused_packed(&cx, &row, &mut caches, &options).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    assert!(caches.copy(3, 1, 0).is_err());
}
