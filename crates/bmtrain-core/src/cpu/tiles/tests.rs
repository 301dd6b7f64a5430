//! Packing against its definition, and the models of the instructions against the manual and the processor.
#![allow(unsafe_code)]

use super::model::Instruction;
use super::*;
use crate::simd::for_each_set;
use half::bf16;

/// Random bits (xorshift).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Numbers of a matrix, all different.
fn numbers(count: usize) -> Vec<bf16> {
    assert!(count <= 1 << 16);
    (0..count).map(|at| bf16::from_bits(at as u16)).collect()
}

#[test]
fn every_element_reaches_its_place_in_a_step_and_the_rest_is_zero() {
    for_each_set(|set| {
        for across in [false, true] {
            let (lines, terms) = (150, 130);
            let stride = if across { lines } else { terms } + 5;
            let data = numbers(if across { terms * stride } else { lines * stride });
            let source = pack::Source { data: pack::Numbers::Bf16(&data), stride, across };
            let value =
                |line: usize, term: usize| data[if across { term * stride + line } else { line * stride + term }];
            for (lines, terms) in [(0..150, 0..130), (0..64, 0..64), (3..35, 7..71), (10..11, 5..6), (64..111, 32..130)]
            {
                let steps = terms.len().div_ceil(STEP);
                let len = lines.len().div_ceil(BLOCK) * steps * STEP_LEN;
                let (mut left, mut right) = (vec![bf16::NAN; len], vec![bf16::NAN; len]);
                pack::left(source, lines.clone(), terms.clone(), &mut left);
                pack::right(source, lines.clone(), terms.clone(), &mut right);
                for at in 0..len {
                    let (panel, step) = (at / STEP_LEN / steps, at / STEP_LEN % steps);
                    let want = |line: usize, term: usize| {
                        let (line, term) = (lines.start + panel * BLOCK + line, terms.start + step * STEP + term);
                        if lines.contains(&line) && terms.contains(&term) { value(line, term) } else { bf16::ZERO }
                    };
                    let at_step = at % STEP_LEN;
                    assert_eq!(left[at], want(at_step / STEP, at_step % STEP), "{set}, {across}: left {at}");
                    let (tile, within) = (at_step / 512, at_step % 512);
                    let want = want(tile * 16 + within % 32 / 2, within / 32 * 2 + within % 2);
                    assert_eq!(right[at], want, "{set}, {across}: right {at}");
                }
            }
        }
    });
}

#[test]
fn numbers_in_f32_are_packed_as_their_roundings() {
    let (count, terms) = (70, 45);
    let halves =
        [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x0000_ffff, 0x007f_ffff, 0x807f_ffff, 0x7f7f_ffff, 0x7fc0_0001];
    for_each_set(|set| {
        let mut random = Random(11);
        for across in [false, true] {
            let stride = if across { count } else { terms } + 3;
            let len = if across { terms * stride } else { count * stride };
            // Of any exponent, halfway between two bf16, subnormal and special among them.
            let bits =
                (0..len).map(|at| if at % 5 == 0 { halves[at / 5 % halves.len()] } else { random.bits() as u32 });
            let wide: Vec<f32> = bits.map(f32::from_bits).collect();
            let flush = |x: f32| if x.is_subnormal() { 0.0_f32.copysign(x) } else { x };
            let rounded: Vec<bf16> = wide.iter().map(|x| bf16::from_f32(flush(*x))).collect();
            let packed = |data: pack::Numbers<'_>, is_left: bool| {
                let source = pack::Source { data, stride, across };
                let mut to = vec![bf16::ONE; 3 * 2 * STEP_LEN];
                let pack = if is_left { pack::left } else { pack::right };
                pack(source, 2..count, 1..terms, &mut to);
                to
            };
            for is_left in [false, true] {
                let (from_f32, from_bf16) =
                    (packed(pack::Numbers::F32(&wide), is_left), packed(pack::Numbers::Bf16(&rounded), is_left));
                let same = |(a, b): (&bf16, &bf16)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                assert!(from_f32.iter().zip(&from_bf16).all(same), "{set}, {across}, {is_left}");
            }
        }
    });
}

/// Sums of one step by a unit: one tile, from `start`.
fn one_step(unit: Unit, a: &[bf16], b: &[bf16], start: &[f32]) -> Vec<f32> {
    let mut sums = start.to_vec();
    let to = Sums { first: sums.as_mut_ptr(), row: BLOCK };
    // SAFETY: these are the sums of a whole block.
    unsafe { unit.begin().multiply(Multiply { a, b, rows: 32, columns: 32, from: Some(to), to, next: &[] }) };
    sums
}

/// Operands and sums of a step: of ordinary size, of any exponent, near the least normal number, near the largest, with
/// special values among others, or any bits at all.
fn operands(random: &mut Random, kind: usize) -> (Vec<bf16>, Vec<bf16>, Vec<f32>) {
    const SPECIAL: [u16; 12] = [0, 0x8000, 1, 0x807f, 0x0080, 0x8080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x3f80];
    let mut exponent =
        |low: u64, count: u64| ((low + random.bits() % count) << 7) as u16 | random.bits() as u16 & 0x807f;
    let mut one = || match kind {
        0 => exponent(118, 10),
        1 => exponent(90, 70),
        2 => exponent(50, 20),
        3 => exponent(180, 16),
        4 if exponent(1, 200).is_multiple_of(5) => SPECIAL[usize::from(exponent(1, 200)) % SPECIAL.len()],
        4 => exponent(120, 8),
        _ => exponent(0, 256),
    };
    let [a, b] = [(); 2].map(|()| (0..STEP_LEN).map(|_| bf16::from_bits(one())).collect());
    let sums = (0..BLOCK * BLOCK).map(|_| f32::from_bits(u32::from(one()) << 16 | u32::from(one()))).collect();
    (a, b, sums)
}

/// Units of this processor, and the models of their instructions.
fn units_with_models() -> impl Iterator<Item = (Unit, Unit)> {
    let available = InstructionSet::MODELS.into_iter().filter(|(set, _)| set.is_available());
    available.map(|(set, model)| (Unit::of(set).unwrap(), Unit::of(model).unwrap()))
}

/// Compares a unit with the model on at least `values` values: the number compared, and the number that are equal.
fn compare(values: usize, (unit, model): (Unit, Unit)) -> (usize, usize) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut compared, mut equal) = (0, 0);
    for kind in (0..6).cycle() {
        if compared >= values {
            break;
        }
        let (a, b, start) = operands(&mut random, kind);
        let (model, tiles) = (one_step(model, &a, &b, &start), one_step(unit, &a, &b, &start));
        compared += model.len();
        equal +=
            model.iter().zip(&tiles).filter(|(x, y)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan()).count();
    }
    (compared, equal)
}

#[test]
fn models_and_processor_agree_on_random_and_special_values() {
    for pair in units_with_models() {
        let (compared, equal) = compare(60_000, pair);
        assert_eq!(compared, equal, "{:?}", pair.0);
    }
}

/// The claim `bf16-model`.
#[test]
#[ignore = "ten million values, seconds in a release build; scripts/claims.sh bf16-model"]
fn models_and_processor_agree_on_ten_million_values() {
    assert!(units_with_models().next().is_some(), "this processor has none of AMX, AVX512_BF16 and FEAT_BF16");
    for pair in units_with_models() {
        let (compared, equal) = compare(10_000_000, pair);
        println!("figure: {:?} {equal} of {compared} equal", pair.0);
        assert_eq!(compared, equal, "{:?}", pair.0);
    }
}

#[test]
fn the_model_rounds_and_flushes_as_the_manual_states() {
    let power = |exponent: i32| 2f32.powi(exponent);
    let step = |pairs: &[(usize, f32, f32)], start: f32| {
        let mut left = [bf16::ZERO; STEP];
        let mut right = [bf16::ZERO; STEP];
        for (p, x, y) in pairs {
            (left[*p], right[*p]) = (bf16::from_f32(*x), bf16::from_f32(*y));
        }
        Instruction::Tdpbf16ps.add_step(start, &left, |p| right[p])
    };
    // Terms with even numbers are one chain: the second is lost beside the first. In the other chain it is not.
    let one = 1.0 + power(-23);
    assert_eq!(step(&[(0, power(24), 1.0), (2, 1.0, 1.0), (4, -power(24), 1.0)], 0.0), 0.0);
    assert_eq!(step(&[(0, power(24), 1.0), (1, 1.0, 1.0), (2, -power(24), 1.0)], 0.0), 1.0);
    assert_eq!(step(&[(0, power(-24), 1.0), (1, power(-24), 1.0)], 1.0), one);
    // Subnormal operands are zeros, and a sum that is subnormal becomes one, with its sign.
    assert_eq!(step(&[(0, power(-127), power(100))], 0.0), 0.0);
    assert_eq!(step(&[], -power(-127)).to_bits(), 0.0_f32.to_bits());
    assert_eq!(step(&[(0, power(-64), power(-64))], 0.0), 0.0);
    // Rounded to 24 bits before it counts as subnormal: half of the last of them below the least normal number.
    let least = (0, power(-63), power(-63));
    assert_eq!(step(&[least, (2, power(-75), -power(-76))], 0.0), f32::MIN_POSITIVE);
    assert_eq!(step(&[least, (2, power(-75), -1.25 * power(-76))], 0.0), 0.0);
    // One rounding of product and sum: the product alone would be infinite.
    assert_eq!(step(&[(0, -power(127), 1.0), (2, power(64), power(64))], 0.0), power(127));
    assert!(step(&[(0, f32::INFINITY, 0.0)], 1.0).is_nan());
    assert_eq!(step(&[(0, f32::INFINITY, 2.0)], 1.0), f32::INFINITY);
    // Dot products are one chain in pairs, each with its odd term first.
    let large = bf16::from_f32(power(24));
    let dot = |terms: [bf16; 4]| Instruction::Vdpbf16ps.add_step(0.0, &terms, |_| bf16::ONE);
    assert_eq!(dot([-large, large, bf16::ONE, bf16::ZERO]), 1.0);
    assert_eq!(dot([bf16::ONE, large, -large, bf16::ZERO]), 0.0);
    assert_eq!(dot([bf16::ONE, -large, bf16::ZERO, large]), 1.0 - power(24) + power(24));
}

#[test]
fn the_model_of_bfmmla_rounds_to_odd_and_sums_pairs_before_it_adds_them() {
    let power = |exponent: i32| 2f32.powi(exponent);
    let step = |start: f32, terms: &[(f32, f32)]| {
        let (left, right): (Vec<_>, Vec<_>) =
            terms.iter().map(|(x, y)| (bf16::from_f32(*x), bf16::from_f32(*y))).unzip();
        Instruction::Bfmmla.add_step(start, &left, |p| right[p])
    };
    let one = 1.0 + power(-23);
    // What is not exact becomes the odd neighbour, from either side and however little it lacks.
    assert_eq!(step(1.0, &[(power(-60), power(-60)), (0.0, 0.0)]), one);
    assert_eq!(step(1.0, &[(power(-60), -power(-60)), (0.0, 0.0)]), 1.0 - power(-24));
    assert_eq!(step(one, &[(power(-12), power(-12)), (0.0, 0.0)]), one);
    assert_eq!(step(one, &[(power(-60), -power(-60)), (0.0, 0.0)]), one);
    assert_eq!(step(-1.0, &[(power(-60), -power(-60)), (0.0, 0.0)]), -one);
    assert_eq!(step(1.0, &[(power(-11), power(-12)), (0.0, 0.0)]), one);
    // The products of a pair are summed first, to odd as well; then pairs are added one after the other.
    assert_eq!(step(power(24), &[(1.0, 1.0), (3.0, 1.0)]), power(24) + 4.0);
    assert_eq!(step(power(24), &[(1.0, 1.0), (0.0, 0.0), (3.0, 1.0), (0.0, 0.0)]), power(24) + 6.0);
    assert_eq!(step(0.0, &[(power(24), 1.0), (1.0, 1.0), (-power(24), 1.0), (0.0, 0.0)]), 2.0);
    assert_eq!(step(0.0, &[(power(24), 1.0), (-power(24), 1.0), (1.0, 1.0), (0.0, 0.0)]), 1.0);
    // Subnormal operands, products and sums are zeros, with their signs.
    assert_eq!(step(0.0, &[(power(-127), power(100)), (0.0, 0.0)]), 0.0);
    assert_eq!(step(0.0, &[(power(-64), power(-64)), (power(-64), power(-64))]), 0.0);
    assert_eq!(step(power(-126), &[(1.5 * power(-63), -power(-63)), (0.0, 0.0)]).to_bits(), (-0.0_f32).to_bits());
    assert_eq!(step(-power(-127), &[(-0.0, 1.0), (-0.0, 1.0)]).to_bits(), (-0.0_f32).to_bits());
    // Infinite from 2^128 on, the largest number below it; a product alone may be infinite.
    let most = bf16::MAX.to_f32();
    assert_eq!(step(f32::MAX, &[(power(100), 1.0), (0.0, 0.0)]), f32::MAX);
    assert_eq!(step(f32::MAX, &[(power(104), 1.0), (0.0, 0.0)]), f32::INFINITY);
    assert_eq!(step(-most, &[(-most, 1.0), (0.0, 0.0)]), f32::NEG_INFINITY);
    assert_eq!(step(-power(127), &[(power(64), power(64)), (0.0, 0.0)]), f32::INFINITY);
    assert!(step(0.0, &[(power(64), power(64)), (power(64), -power(64))]).is_nan());
    assert!(step(1.0, &[(f32::INFINITY, 0.0), (0.0, 0.0)]).is_nan());
}

#[test]
fn every_number_of_tiles_and_steps_has_the_sums_of_the_model() {
    let mut random = Random(7);
    let models = InstructionSet::MODELS.map(|(_, model)| Unit::of(model).unwrap());
    for (unit, model) in models.map(|model| (model, model)).into_iter().chain(units_with_models()) {
        let (a, b, _) = operands(&mut random, 0);
        let (a, b) = (a.repeat(3), b.repeat(3));
        for (rows, columns) in [(32, 32), (17, 16), (16, 17), (1, 1), (32, 1), (1, 32)] {
            for (steps, starts, row) in [(3, true, 32), (1, false, 48), (0, true, 40), (0, false, 32)] {
                let (a, b) = (&a[..steps * STEP_LEN], &b[..steps * STEP_LEN]);
                let run = |unit: Unit| {
                    let mut sums = vec![7.0; 31 * row + 32];
                    let to = Sums { first: sums.as_mut_ptr(), row };
                    let from = (!starts).then_some(to);
                    // SAFETY: there are as many sums as a block has in such rows.
                    unsafe { unit.begin().multiply(Multiply { a, b, rows, columns, from, to, next: &[] }) };
                    // What is beyond rows and columns is unspecified.
                    sums.chunks(row).take(rows).flat_map(|sums| sums[..columns].to_vec()).collect::<Vec<_>>()
                };
                assert_eq!(run(unit), run(model), "{unit:?}: {rows} x {columns}, {steps} steps");
            }
        }
        // A product inside a product leaves the tiles of the outer one configured.
        let outer = unit.begin();
        let inner = one_step(unit, &a[..STEP_LEN], &b[..STEP_LEN], &[0.0; BLOCK * BLOCK]);
        let mut sums = vec![0.0; BLOCK * BLOCK];
        let (a, b) = (&a[..STEP_LEN], &b[..STEP_LEN]);
        let to = Sums { first: sums.as_mut_ptr(), row: BLOCK };
        // SAFETY: as above.
        unsafe { outer.multiply(Multiply { a, b, rows: 32, columns: 32, from: None, to, next: a }) };
        assert_eq!(sums, inner);
    }
}
