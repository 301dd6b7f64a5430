//! The backward pass: scores and probabilities are made again, tile by tile, from the saved log-sum-exp.
//!
//! The steps on one tile are in `gradients.rs`; here they are put in order, in one of two schemes that give the same
//! bits:
//!
//! - **whole**: one piece of work per sequence and key head (per key head alone where sequences share the gradient of a
//!   bias). Blocks of keys outside, queries inside; five products a tile.
//! - **split**: first the gradients of queries and bias, a block of queries a piece, then of keys and values, a
//!   block of keys a piece. Seven products a tile, for when there are too few heads for the threads or too many queries
//!   for the scratch.
//!
//! Sums run over keys in order for a query, over heads and queries in order for a key, over sequences in order for a
//! shared bias, in both schemes; a product that adds continues the chain of sums (see `product.rs`).

use super::gradients::{Pass, WHOLE_LIMIT, Work};
use super::scratch::{self, Scratch};
use super::tiles::{Scheme, Settings};
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::{AttentionBackward, AttentionShape};
use std::ops::Range;

pub(super) fn run(threads: &Threads, a: AttentionBackward<'_>, settings: Settings) -> Result<()> {
    let shape = a.inputs.shape;
    // Sequences that share the gradient of a bias are done in turn, by one piece.
    let shared = a.dbias.is_some() && a.inputs.bias.as_ref().is_some_and(|bias| !bias.per_sequence);
    let order =
        if shared { Order { groups: 1, in_turn: shape.batch } } else { Order { groups: shape.batch, in_turn: 1 } };
    let (pass, delta) = Pass::new(a, settings)?;
    if is_whole(&pass, &shape, threads.count(), order.groups * shape.kv_heads) {
        threads.for_each(order.groups * shape.kv_heads, |piece| {
            for b in order.sequences(piece / shape.kv_heads) {
                scratch::with(|scratch| whole(&pass, b, piece % shape.kv_heads, scratch));
            }
        });
    } else {
        split(threads, &pass, &shape, order, delta);
    }
    Ok(())
}

/// How sequences are divided among pieces of work.
#[derive(Debug, Clone, Copy)]
struct Order {
    groups: usize,
    in_turn: usize,
}

impl Order {
    fn sequences(&self, group: usize) -> Range<usize> {
        group * self.in_turn..(group + 1) * self.in_turn
    }
}

fn is_whole(pass: &Pass<'_>, shape: &AttentionShape, threads: usize, pieces: usize) -> bool {
    let sums = shape.heads / shape.kv_heads * shape.queries * pass.tiles.head;
    match pass.settings.scheme {
        Scheme::Whole => true,
        Scheme::Split => false,
        // Threads that idle in the last round against two products more a tile.
        Scheme::Best => sums <= WHOLE_LIMIT && 7 * pieces >= 5 * pieces.next_multiple_of(threads.max(1)),
    }
}

/// All gradients of key head `kv` of sequence `b` and of the queries that read it.
fn whole(pass: &Pass<'_>, b: usize, kv: usize, scratch: &mut Scratch) {
    let (queries, head) = (pass.rules.shape.queries, pass.tiles.head);
    let group = pass.group(kv);
    let (mut work, dquery, delta) = Work::new(scratch, &pass.tiles, group.len() * queries);
    dquery.fill(0.0);
    for (n, delta) in group.clone().zip(delta.chunks_exact_mut(queries.max(1))) {
        pass.deltas(b, n, delta, &mut work);
        pass.clear_bias(b, n, 0..queries);
    }
    for keys in pass.key_blocks(b) {
        pass.load_keys(b, kv, &keys, &mut work);
        pass.start_key_sums(&keys, &mut work);
        for (index, n) in group.clone().enumerate() {
            for block in pass.query_blocks() {
                let Some(place) = pass.place(b, n, &block, &keys) else { continue };
                let row = index * queries + block.start;
                pass.load_queries(&place, &mut work);
                pass.tile(&place, &delta[row..row + place.rows], &mut work);
                pass.add_key_sums(&place, &mut work);
                pass.add_query_sums(&place, &mut dquery[row * head..], &mut work);
                pass.add_bias(&place, &work);
            }
        }
        pass.finish_keys(b, kv, &keys, &work);
    }
    for (index, n) in group.enumerate() {
        pass.finish_queries(b, n, 0..queries, &dquery[index * queries * head..]);
    }
    pass.finish_unseen_keys(b, kv, &mut work);
}

fn split(threads: &Threads, pass: &Pass<'_>, shape: &AttentionShape, order: Order, delta: &mut [f32]) {
    threads.for_each_piece(delta, shape.queries, |piece, delta| {
        scratch::with(|scratch| {
            let (mut work, ..) = Work::new(scratch, &pass.tiles, 0);
            pass.deltas(piece / shape.heads, piece % shape.heads, delta, &mut work);
        });
    });
    let delta = &*delta;
    let count = pass.query_blocks().count();
    threads.for_each(order.groups * shape.heads * count, |piece| {
        let (group, n, block) = (piece / count / shape.heads, piece / count % shape.heads, piece % count);
        let Some(block) = pass.query_blocks().nth(block) else { return };
        for b in order.sequences(group) {
            scratch::with(|scratch| split_queries(pass, (b, n), &block, delta, scratch));
        }
    });
    // Padding that is skipped can make it fewer, never more.
    let count = shape.keys.div_ceil(pass.tiles.keys).max(1);
    threads.for_each(shape.batch * shape.kv_heads * count, |piece| {
        let (b, kv, block) = (piece / count / shape.kv_heads, piece / count % shape.kv_heads, piece % count);
        scratch::with(|scratch| split_keys(pass, (b, kv), block, delta, scratch));
    });
}

/// The gradients of a block of queries of head `n` of sequence `b`, and of their bias.
fn split_queries(pass: &Pass<'_>, (b, n): (usize, usize), block: &Range<usize>, delta: &[f32], scratch: &mut Scratch) {
    let (mut work, dquery, _) = Work::new(scratch, &pass.tiles, pass.tiles.queries);
    dquery.fill(0.0);
    pass.clear_bias(b, n, block.clone());
    let kv = n / (pass.rules.shape.heads / pass.rules.shape.kv_heads);
    for keys in pass.key_blocks(b) {
        let Some(place) = pass.place(b, n, block, &keys) else { continue };
        pass.load_queries(&place, &mut work);
        pass.load_keys(b, kv, &keys, &mut work);
        pass.tile(&place, &delta[pass.rules.row(b, n, block.start)..][..place.rows], &mut work);
        pass.add_query_sums(&place, dquery, &mut work);
        pass.add_bias(&place, &work);
    }
    pass.finish_queries(b, n, block.clone(), dquery);
}

/// The gradients of one block of keys and values of head `kv` of sequence `b`; with the first also of unseen
/// keys.
fn split_keys(pass: &Pass<'_>, (b, kv): (usize, usize), block: usize, delta: &[f32], scratch: &mut Scratch) {
    let (mut work, ..) = Work::new(scratch, &pass.tiles, 0);
    if let Some(keys) = pass.key_blocks(b).nth(block) {
        pass.load_keys(b, kv, &keys, &mut work);
        pass.start_key_sums(&keys, &mut work);
        for n in pass.group(kv) {
            for block in pass.query_blocks() {
                let Some(place) = pass.place(b, n, &block, &keys) else { continue };
                pass.load_queries(&place, &mut work);
                pass.tile(&place, &delta[pass.rules.row(b, n, block.start)..][..place.rows], &mut work);
                pass.add_key_sums(&place, &mut work);
            }
        }
        pass.finish_keys(b, kv, &keys, &work);
    }
    if block == 0 {
        pass.finish_unseen_keys(b, kv, &mut work);
    }
}
