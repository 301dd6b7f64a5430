//! One step of Adam with moments in 8 bits: a block is widened, updated as by [`Adam`](crate::kernel::Adam), and coded
//! again.

use super::access::{read, write};
use super::floats::{Floats, FloatsMut};
use super::optimizer::{Elements, piece};
use super::rows::Strided;
use crate::error::Result;
use crate::kernel::{Adam8bit, AdamNumbers, STATE_BLOCK};
use crate::quantised::{DynamicMap, SIGNED, UNSIGNED};
use crate::threads::Threads;

/// Blocks of a piece of work.
const BLOCKS: usize = 64;

pub(super) fn adam_8bit(threads: &Threads, a: Adam8bit<'_>) -> Result<()> {
    const NAME: &str = "adam_8bit";
    let factor = read::<f32>(NAME, a.factor)?[0];
    if !factor.is_finite() {
        return Ok(());
    }
    let numbers = a.settings.numbers(factor);
    let (parameter, grad) = (FloatsMut::of(NAME, a.parameter)?, Floats::of(NAME, a.grad)?);
    let master = a.master.map(|master| write::<f32>(NAME, master)).transpose()?;
    let master = master.map(|data| Strided { data, stride: STATE_BLOCK });
    let codes = |data| Strided { data, stride: STATE_BLOCK };
    let (m, v) = (codes(write::<u8>(NAME, a.m)?), codes(write::<u8>(NAME, a.v)?));
    let (m_scale, v_scale) = (write::<f32>(NAME, a.m_scale)?, write::<f32>(NAME, a.v_scale)?);
    let (len, written) = (m_scale.len(), (parameter.rows(STATE_BLOCK), master, (m, v), (m_scale, v_scale)));
    threads.for_each_part(written, len, BLOCKS, |first, _, (parameter, master, (m, v), (m_scale, v_scale))| {
        let (mut parameter, mut master, first) =
            (parameter.data, master.map(|master| master.data), first * STATE_BLOCK);
        let moments = m.data.chunks_mut(STATE_BLOCK).zip(v.data.chunks_mut(STATE_BLOCK));
        for (block, ((m, v), (m_scale, v_scale))) in moments.zip(m_scale.iter_mut().zip(v_scale)).enumerate() {
            let (start, len) = (block * STATE_BLOCK, m.len());
            let elements = Block {
                parameter: parameter.part(start, len),
                master: master.as_mut().map(|master| &mut master[start..start + len]),
                grad: grad.part(first + start, len),
            };
            update_block(numbers, elements, Moment { codes: m, scale: m_scale }, Moment { codes: v, scale: v_scale });
        }
    });
    Ok(())
}

/// Operands of a block's step except the moments.
struct Block<'a> {
    parameter: FloatsMut<'a>,
    master: Option<&'a mut [f32]>,
    grad: Floats<'a>,
}

/// A block of a moment.
struct Moment<'a> {
    codes: &'a mut [u8],
    scale: &'a mut f32,
}

fn update_block(
    numbers: AdamNumbers,
    Block { parameter, master, grad }: Block<'_>,
    coded_m: Moment<'_>,
    coded_v: Moment<'_>,
) {
    let len = coded_m.codes.len();
    let (mut m, mut v) = ([0.0; STATE_BLOCK], [0.0; STATE_BLOCK]);
    widen(&SIGNED, coded_m.codes, *coded_m.scale, &mut m[..len]);
    widen(&UNSIGNED, coded_v.codes, *coded_v.scale, &mut v[..len]);
    let states = [Some(&mut m[..len]), Some(&mut v[..len]), None];
    piece(numbers, Elements { parameter, master, states, grad });
    *coded_m.scale = code(&SIGNED, &m[..len], coded_m.codes);
    *coded_v.scale = code(&UNSIGNED, &v[..len], coded_v.codes);
}

fn widen(map: &DynamicMap, from: &[u8], scale: f32, to: &mut [f32]) {
    for (to, code) in to.iter_mut().zip(from) {
        *to = map.values[usize::from(*code)] * scale;
    }
}

/// Code a block; its scale.
fn code(map: &DynamicMap, from: &[f32], to: &mut [u8]) -> f32 {
    let scale = from.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    for (to, value) in to.iter_mut().zip(from) {
        *to = map.nearest(if scale > 0.0 { value / scale } else { 0.0 });
    }
    scale
}
