//! The backward pass: scores and probabilities are made again, tile by tile, from the saved log-sum-exp.
//!
//! The steps on one tile are in `gradients.rs`; here they are put in order, in one of two schemes that give the same
//! bits:
//!
//! - **whole**: one piece of work per extent and key head (per key head alone where sequences share the gradient of a
//!   bias). Blocks of keys outside, queries inside; five products a tile.
//! - **split**: first the gradients of queries and bias, a block of queries a piece, then of keys and values, a
//!   block of keys a piece. Seven products a tile, for when there are too few heads for the threads or too many queries
//!   for the scratch.
//!
//! Sums run over keys in order for a query, over heads and queries in order for a key, over sequences in order for a
//! shared bias, in both schemes; a product that adds continues the chain of sums (see `product.rs`), and both schemes
//! cut queries and keys at the same places.

use super::blocks::Wanted;
use super::extent::Extent;
use super::gradients::{MAX_WHOLE, Pass, Work};
use super::scratch::{self, Scratch};
use super::tiles::{Scheme, Settings};
use crate::error::Result;
use crate::kernel::{AttentionBackward, AttentionShape};
use crate::threads::Threads;
use std::ops::Range;

pub(super) fn run(threads: &Threads, a: AttentionBackward<'_>, settings: Settings) -> Result<()> {
    let shape = a.inputs.shape;
    // Sequences that share the gradient of a bias are done in turn, by one piece.
    let shared = a.dbias.is_some() && a.inputs.bias.as_ref().is_some_and(|bias| !bias.per_sequence);
    let (pass, delta) = Pass::new(a, settings)?;
    let count = pass.extents.count();
    let order = if shared { Order { groups: 1, in_turn: count } } else { Order { groups: count, in_turn: 1 } };
    if is_whole(&pass, &shape, threads.count(), order.groups * shape.kv_heads) {
        threads.for_each(order.groups * shape.kv_heads, |piece| {
            for extent in order.extents(&pass, piece / shape.kv_heads) {
                scratch::with(|scratch| whole(&pass, &extent, piece % shape.kv_heads, scratch));
            }
        });
    } else {
        split(threads, &pass, &shape, order, delta);
    }
    Ok(())
}

/// Division of extents among pieces of work.
#[derive(Debug, Clone, Copy)]
struct Order {
    groups: usize,
    in_turn: usize,
}

impl Order {
    fn extents(&self, pass: &Pass<'_>, group: usize) -> impl Iterator<Item = Extent> {
        (group * self.in_turn..(group + 1) * self.in_turn).filter_map(|index| pass.extents.get(index))
    }
}

fn is_whole(pass: &Pass<'_>, shape: &AttentionShape, threads: usize, pieces: usize) -> bool {
    let sums = shape.heads / shape.kv_heads * pass.extents.longest().0 * pass.tiles.head;
    match pass.settings.scheme {
        Scheme::Whole => true,
        Scheme::Split => false,
        // Threads that idle in the last round against two products more a tile.
        Scheme::Best => sums <= MAX_WHOLE && 7 * pieces >= 5 * pieces.next_multiple_of(threads.max(1)),
    }
}

/// All gradients of an extent's keys of head `kv` and of the queries that read them.
fn whole(pass: &Pass<'_>, extent: &Extent, kv: usize, scratch: &mut Scratch) {
    let (b, head, queries) = (extent.b, pass.tiles.head, extent.queries.len());
    let group = pass.group(kv);
    let (mut work, dquery, delta) = Work::new(scratch, pass.sizes_for(extent), (Wanted::All, group.len() * queries));
    dquery.fill(0.0);
    for (n, delta) in group.clone().zip(delta.chunks_exact_mut(queries.max(1))) {
        pass.deltas(b, n, &extent.queries, delta, &mut work);
        pass.clear_bias(b, n, extent.queries.clone());
    }
    for keys in pass.key_blocks(extent) {
        pass.load_keys(b, kv, &keys, &mut work);
        pass.start_key_sums(&keys, &mut work);
        for (index, n) in group.clone().enumerate() {
            for block in pass.query_blocks(&extent.queries) {
                let Some(place) = pass.place(b, n, &block, &keys) else { continue };
                let row = index * queries + block.start - extent.queries.start;
                pass.load_queries((b, n), &block, &mut work);
                pass.tile(&place, &delta[row..row + place.rows], &mut work);
                pass.add_key_sums(&place, &mut work);
                pass.add_query_sums(&place, &mut dquery[row * head..], &mut work);
                pass.add_bias(&place, &work);
            }
        }
        pass.finish_keys(b, kv, &keys, &work);
    }
    for (index, n) in group.enumerate() {
        pass.finish_queries(b, n, extent.queries.clone(), &dquery[index * queries * head..]);
    }
    pass.finish_unseen_keys(extent, kv, &mut work);
}

fn split(threads: &Threads, pass: &Pass<'_>, shape: &AttentionShape, order: Order, delta: &mut [f32]) {
    threads.for_each_piece(delta, shape.queries, |piece, delta| {
        scratch::with(|scratch| {
            let (mut work, ..) = Work::new(scratch, (&pass.tiles, None), (Wanted::All, 0));
            pass.deltas(piece / shape.heads, piece % shape.heads, &(0..shape.queries), delta, &mut work);
        });
    });
    let delta = &*delta;
    let (most_queries, most_keys) = pass.extents.longest();
    // Of the longest extent: documents that are shorter and padding that is skipped can make it fewer, never more.
    let count = most_queries.div_ceil(pass.tiles.queries);
    // Documents of sequences that share the gradient of a bias are cut elsewhere in each: blocks would share its rows.
    let blocks = if order.in_turn > 1 && pass.extents.are_documents() { count } else { 1 };
    let pieces = count.checked_div(blocks).unwrap_or(0);
    threads.for_each(order.groups * shape.heads * pieces, |piece| {
        let (group, n, first) = (piece / pieces / shape.heads, piece / pieces % shape.heads, piece % pieces);
        for extent in order.extents(pass, group) {
            for block in pass.query_blocks(&extent.queries).skip(first).take(blocks) {
                scratch::with(|scratch| split_queries(pass, (&extent, n), &block, delta, scratch));
            }
        }
    });
    let count = most_keys.div_ceil(pass.tiles.keys).max(1);
    threads.for_each(pass.extents.count() * shape.kv_heads * count, |piece| {
        let (index, kv, block) = (piece / count / shape.kv_heads, piece / count % shape.kv_heads, piece % count);
        if let Some(extent) = pass.extents.get(index) {
            scratch::with(|scratch| split_keys(pass, (&extent, kv), block, delta, scratch));
        }
    });
}

/// The gradients of a block of an extent's queries of head `n`, and of their bias.
fn split_queries(
    pass: &Pass<'_>,
    (extent, n): (&Extent, usize),
    block: &Range<usize>,
    delta: &[f32],
    scratch: &mut Scratch,
) {
    let b = extent.b;
    let (mut work, dquery, _) = Work::new(scratch, pass.sizes_for(extent), (Wanted::OfQueries, pass.tiles.queries));
    dquery.fill(0.0);
    pass.clear_bias(b, n, block.clone());
    let kv = n / (pass.rules.shape.heads / pass.rules.shape.kv_heads);
    pass.load_queries((b, n), block, &mut work);
    for keys in pass.key_blocks(extent) {
        let Some(place) = pass.place(b, n, block, &keys) else { continue };
        pass.load_keys(b, kv, &keys, &mut work);
        pass.tile(&place, &delta[pass.rules.row(b, n, block.start)..][..place.rows], &mut work);
        pass.add_query_sums(&place, dquery, &mut work);
        pass.add_bias(&place, &work);
    }
    pass.finish_queries(b, n, block.clone(), dquery);
}

/// The gradients of one block of an extent's keys and values of head `kv`; with the first also of unseen keys.
fn split_keys(pass: &Pass<'_>, (extent, kv): (&Extent, usize), block: usize, delta: &[f32], scratch: &mut Scratch) {
    let b = extent.b;
    let (mut work, ..) = Work::new(scratch, pass.sizes_for(extent), (Wanted::OfKeys, 0));
    if let Some(keys) = pass.key_blocks(extent).nth(block) {
        pass.load_keys(b, kv, &keys, &mut work);
        pass.start_key_sums(&keys, &mut work);
        for n in pass.group(kv) {
            for block in pass.query_blocks(&extent.queries) {
                let Some(place) = pass.place(b, n, &block, &keys) else { continue };
                pass.load_queries((b, n), &block, &mut work);
                pass.tile(&place, &delta[pass.rules.row(b, n, block.start)..][..place.rows], &mut work);
                pass.add_key_sums(&place, &mut work);
            }
        }
        pass.finish_keys(b, kv, &keys, &work);
    }
    if block == 0 {
        pass.finish_unseen_keys(extent, kv, &mut work);
    }
}
