//! Rows of initial values.

use super::*;

pub(super) fn rows(cases: &mut Vec<Case>) {
    for (name, distribution) in [
        ("normal", Distribution::Normal(0.5, 2.0)),
        ("uniform", Distribution::Uniform(-1.0, 3.0)),
        ("truncated", Distribution::TruncatedNormal(0.0, 0.02)),
    ] {
        for (offset, n) in [(0, 1000), (3, 37), (1 << 33, 70_000)] {
            let case = Case::kernel(format!("fill_random/{name}/{n} from {offset}"), move |device, t| {
                let mut out = zeros(device, &[n], t[0].dtype())?;
                let key = Key::new(5, "encoder.weight");
                device.launch(FillRandom { distribution, key, offset, out: out.view_mut()? })?;
                Ok(vec![out])
            });
            // The input only carries the dtype.
            cases.push(case.constant("type", [1]));
        }
    }
}
