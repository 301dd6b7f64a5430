//! Products with, and rows of, matrices in quantised blocks, against the same matrices dequantised.

use bmtrain_core::cpu::{CpuOptions, InstructionSet};
use bmtrain_core::kernel::Activation;
use bmtrain_core::quantised::dequantise;
use bmtrain_core::{BlockFormat, Ctx, DType, Device, Tensor, Var, ops};

/// Reproducible bytes.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Blocks of a matrix whose scales are finite and small.
fn blocks(format: BlockFormat, rows: usize, columns: usize) -> Vec<u8> {
    let mut raw = bytes(rows * format.row_bytes(columns).unwrap(), 7 + rows as u64);
    for block in raw.chunks_exact_mut(format.bytes()) {
        let halves: &[usize] = match format {
            BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
            BlockFormat::Q6K => &[208],
            BlockFormat::NF4 => {
                // 2^-8 to 2^-7, in single precision.
                (block[2], block[3]) = (block[2] | 0x80, 0x3b);
                continue;
            }
            _ => &[0, 2],
        };
        for at in halves {
            // 2^-9 to 2^-7, of either sign.
            block[at + 1] = block[at + 1] & 0x8f | 0x18;
        }
    }
    raw
}

/// The matrix in blocks, and dequantised.
fn pair(device: &Device, format: BlockFormat, rows: usize, columns: usize) -> (Var, Var) {
    let raw = blocks(format, rows, columns);
    let mut values = vec![0.0f32; rows * columns];
    dequantise(format, &raw, &mut values);
    let stored = Tensor::from_blocks(device, format, columns, &raw).unwrap();
    let wide = Tensor::from_slice(device, [rows, columns], &values).unwrap();
    (Var::constant(stored), Var::constant(wide))
}

fn bits(x: &Var) -> Vec<u32> {
    let x = if x.dtype() == DType::F32 { x.value().clone() } else { cast(x) };
    x.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

fn cast(x: &Var) -> Tensor {
    ops::cast(&Ctx::inference(x.device()), x, DType::F32).unwrap().into_value()
}

fn device(threads: usize, instruction_set: InstructionSet) -> Device {
    Device::cpu_with(CpuOptions { instruction_set, ..CpuOptions::new(threads) }).unwrap()
}

#[test]
fn products_with_blocks_have_the_bits_of_products_with_the_dequantised_matrix() {
    for set in InstructionSet::available() {
        for (threads, format) in [1, 2, 3].into_iter().flat_map(|n| BlockFormat::ALL.map(|format| (n, format))) {
            let device = device(threads, set);
            let cx = Ctx::inference(&device);
            // One row, one group with a row left over, an odd number of rows, several blocks in a row.
            for (n, blocks) in [(1, 1), (25, 2), (97, 3), (131, 9)] {
                let k = blocks * format.elements();
                let (stored, wide) = pair(&device, format, n, k);
                let bias = Var::constant(Tensor::randn(&device, [n], 3).unwrap());
                for m in [1, 2, 3, 5, 16, 17, 33, 70] {
                    let x = Var::constant(Tensor::randn(&device, [m, k], 11).unwrap());
                    let of = |weight: &Var, bias: Option<&Var>, activation| {
                        bits(&ops::linear(&cx, &x, weight, bias, activation).unwrap())
                    };
                    let what = format!("{set}, {threads} threads, {format}, {m} x {n} x {k}");
                    assert_eq!(of(&stored, None, None), of(&wide, None, None), "{what}");
                    let gelu = Some(Activation::Gelu);
                    assert_eq!(of(&stored, Some(&bias), gelu), of(&wide, Some(&bias), gelu), "{what}, bias and gelu");
                }
            }
        }
    }
}

#[test]
fn sixteen_bit_inputs_give_the_bits_of_the_dequantised_matrix() {
    let device = device(2, InstructionSet::best());
    let cx = Ctx::inference(&device);
    let (stored, wide) = pair(&device, BlockFormat::Q4_1, 99, 576);
    for (dtype, m) in [DType::F16, DType::BF16].into_iter().flat_map(|dtype| [(dtype, 1), (dtype, 7), (dtype, 40)]) {
        let x = ops::cast(&cx, &Var::constant(Tensor::randn(&device, [m, 576], 5).unwrap()), dtype).unwrap();
        let of = |weight: &Var| ops::linear(&cx, &x, weight, None, None).unwrap();
        assert_eq!(of(&stored).dtype(), dtype);
        // Tiles multiply bf16 by bf16, if there are enough rows.
        let is_in_tiles = dtype == DType::BF16 && m == 40 && InstructionSet::best().multiplies_bf16();
        let wide = if is_in_tiles { ops::cast(&cx, &wide, DType::BF16).unwrap() } else { wide.clone() };
        assert_eq!(bits(&of(&stored)), bits(&of(&wide)), "{dtype}, {m} rows");
    }
}

#[test]
fn a_matrix_of_several_groups_gives_the_bits_of_the_dequantised_matrix() {
    let device = device(2, InstructionSet::best());
    let cx = Ctx::inference(&device);
    // 1 << 20 elements are dequantised at a time for many rows of x: here two groups and one row.
    let (n, k) = (1 + 2 * (1 << 20) / 2048, 2048);
    let (stored, wide) = pair(&device, BlockFormat::Q8_0, n, k);
    for m in [1, 40] {
        let x = Var::constant(Tensor::randn(&device, [m, k], 5).unwrap());
        let of = |weight: &Var| bits(&ops::linear(&cx, &x, weight, None, None).unwrap());
        assert_eq!(of(&stored), of(&wide), "{m} rows");
    }
}

/// The gradient of x `[m, k]` in `y = activation(x weight^T)` from this of y.
fn gradient_of_x(device: &Device, x: &Tensor, weight: &Var, activation: Option<Activation>, dy: &Tensor) -> Vec<u32> {
    let cx = Ctx::gradients(device);
    let x = cx.tape().unwrap().input(x.clone());
    let y = ops::linear(&cx, &x, weight, None, activation).unwrap();
    let grads = cx.tape().unwrap().backward(device, vec![(y, dy.clone())], &[&x]).unwrap();
    bits(&Var::constant(grads.into_iter().next().flatten().unwrap()))
}

#[test]
fn gradients_through_blocks_have_the_bits_of_gradients_through_the_dequantised_matrix() {
    for set in InstructionSet::available() {
        for (threads, format) in [1, 3].into_iter().flat_map(|n| BlockFormat::ALL.map(|format| (n, format))) {
            let device = device(threads, set);
            // One block, several bands of a wide matrix, a row left over.
            for (n, blocks) in [(1, 1), (25, 2), (131, 9), (4099, 12)] {
                let k = blocks * format.elements();
                if n * k > 1 << 22 {
                    continue;
                }
                let (stored, wide) = pair(&device, format, n, k);
                for m in [1, 2, 5, 17, 70] {
                    let x = Tensor::randn(&device, [m, k], 11).unwrap();
                    let dy = Tensor::randn(&device, [m, n], 12).unwrap();
                    let of = |weight: &Var, activation| gradient_of_x(&device, &x, weight, activation, &dy);
                    let what = format!("{set}, {threads} threads, {format}, {m} x {n} x {k}");
                    assert_eq!(of(&stored, None), of(&wide, None), "{what}");
                    let gelu = Some(Activation::Gelu);
                    assert_eq!(of(&stored, gelu), of(&wide, gelu), "{what}, gelu");
                }
            }
        }
    }
}

#[test]
fn a_feed_forward_layer_in_blocks_has_the_gradients_of_the_dequantised_layer() {
    let device = device(2, InstructionSet::best());
    let (d, f, rows) = (128, 192, 7);
    let format = BlockFormat::NF4;
    for (gated, dtype) in [false, true].into_iter().flat_map(|gated| [DType::F32, DType::BF16].map(|t| (gated, t))) {
        let w_in = pair(&device, format, if gated { 2 * f } else { f }, d);
        let w_out = pair(&device, format, d, f);
        let [x, dy] = [11, 12].map(|seed| {
            let values = Var::constant(Tensor::randn(&device, [rows, d], seed).unwrap());
            ops::cast(&Ctx::inference(&device), &values, dtype).unwrap().into_value()
        });
        let of = |w_in: &Var, w_out: &Var| {
            let cx = Ctx::gradients(&device);
            let x = cx.tape().unwrap().input(x.clone());
            let y = match gated {
                true => ops::gated_feed_forward(&cx, &x, w_in, None, Activation::Silu, w_out, None).unwrap(),
                false => ops::feed_forward(&cx, &x, w_in, None, Activation::Gelu, w_out, None).unwrap(),
            };
            let value = bits(&y.detach());
            let grads = cx.tape().unwrap().backward(&device, vec![(y, dy.clone())], &[&x]).unwrap();
            (value, bits(&Var::constant(grads.into_iter().next().flatten().unwrap())))
        };
        assert_eq!(of(&w_in.0, &w_out.0), of(&w_in.1, &w_out.1), "gated {gated}, {dtype}");
    }
}

#[test]
fn rows_of_a_table_in_blocks_are_its_dequantised_rows() {
    let device = device(2, InstructionSet::best());
    let cx = Ctx::inference(&device);
    for format in BlockFormat::ALL {
        let (stored, wide) = pair(&device, format, 37, 2 * format.elements());
        let ids = Tensor::from_slice(&device, [2, 3], &[36i64, 0, 5, 5, 17, 1]).unwrap();
        let of = |table: &Var| ops::embedding(&cx, &ids, table, None).unwrap();
        assert_eq!(of(&stored).shape(), of(&wide).shape());
        assert_eq!(bits(&of(&stored)), bits(&of(&wide)), "{format}");
        let added = |table: &Var| ops::add_embedding(&cx, of(&wide), &ids, table, None).unwrap();
        assert_eq!(bits(&added(&stored)), bits(&added(&wide)), "{format}, added");
        let outside = Tensor::from_slice(&device, [1], &[37i64]).unwrap();
        let error = ops::embedding(&cx, &outside, &stored, None).unwrap_err().to_string();
        assert!(error.contains("index 37"), "{error}");
    }
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    let device = Device::cpu(1).unwrap();
    let cx = Ctx::inference(&device);
    let error = |columns, bytes: &[u8]| {
        Tensor::from_blocks(&device, BlockFormat::Q4_0, columns, bytes).unwrap_err().to_string()
    };
    assert!(error(33, &[0; 18]).contains("whole blocks of 32"));
    assert!(error(0, &[]).contains("whole blocks"));
    assert!(error(32, &[0; 20]).contains("whole rows of 18"));
    let weight = Var::constant(Tensor::from_blocks(&device, BlockFormat::Q4_0, 64, &[0; 36]).unwrap());
    let x = Var::constant(Tensor::zeros(&device, [1, 32], DType::F32).unwrap());
    assert!(ops::linear(&cx, &x, &weight, None, None).unwrap_err().to_string().contains("64"));
    // An op without a form for blocks refuses the type.
    let y = Var::constant(Tensor::zeros(&device, [1, 36], DType::F32).unwrap());
    assert!(ops::add(&cx, &y, &weight).unwrap_err().to_string().contains("Q4_0"));
    assert!(ops::matmul(&cx, &y, &weight, false, true).unwrap_err().to_string().contains("Q4_0"));
}
