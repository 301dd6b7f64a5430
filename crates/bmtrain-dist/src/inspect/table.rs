//! Tables in text: the columns of [`format_summary`], and how numbers are written.

use super::Moments;

/// Statistics of one parameter, or of one named value.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryRow {
    /// Full name.
    pub name: String,
    /// Shape in text.
    pub shape: String,
    /// Moments of the values.
    pub values: Moments,
    /// Moments of the gradient, where there is one.
    pub gradient: Option<Moments>,
}

/// One line for each row under a line of names: name, shape, max, min, std, mean, grad_std, grad_mean. Without a
/// gradient its columns have a dash.
pub fn format_summary(rows: &[SummaryRow]) -> String {
    let names = ["name", "shape", "max", "min", "std", "mean", "grad_std", "grad_mean"];
    let lines = rows.iter().map(|row| {
        let SummaryRow { name, shape, values, gradient } = row;
        let of_gradient = |value: fn(&Moments) -> f64| gradient.as_ref().map_or("-".into(), |g| number(value(g)));
        let figures = [values.max, values.min, values.deviation(), values.mean].map(number);
        let mut line = vec![name.clone(), shape.clone()];
        line.extend(figures);
        line.extend([of_gradient(Moments::deviation), of_gradient(|gradient| gradient.mean)]);
        line
    });
    aligned(&names, lines.collect())
}

/// Five digits, in whichever way shows them.
fn number(value: f64) -> String {
    let size = value.abs();
    match () {
        () if value == 0.0 || (1e-3..1e4).contains(&size) => format!("{value:.4}"),
        () if value.is_finite() => format!("{value:.3e}"),
        () => format!("{value}"),
    }
}

/// Lines of equally wide columns: the first one starts at the left, the others end at the right.
pub(super) fn aligned(names: &[&str], lines: Vec<Vec<String>>) -> String {
    let all: Vec<Vec<String>> =
        std::iter::once(names.iter().map(|name| (*name).to_owned()).collect()).chain(lines).collect();
    let width = |column: usize| all.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..names.len()).map(|column| width(column).unwrap_or(0)).collect();
    let one = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (text, width))| match column {
            0 => format!("{text:<width$}"),
            _ => format!("{text:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    all.iter().map(one).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_small_numbers_are_not_zero() {
        let row = |name: &str, values: &[f32], gradient: Option<&[f32]>| SummaryRow {
            name: name.into(),
            shape: format!("[{}]", values.len()),
            values: Moments::of(values),
            gradient: gradient.map(Moments::of),
        };
        let rows = [
            row("layer.weight", &[1.0, -2.0, 4.0, 1.0], Some(&[2e-6, 2e-6, 4e-6, 4e-6])),
            row("b", &[12345.0], None),
            row("broken", &[f32::NAN, 0.0], Some(&[0.0, 0.0])),
        ];
        let expected = "\
name          shape      max      min     std     mean   grad_std  grad_mean
layer.weight    [4]   4.0000  -2.0000  2.1213   1.0000   1.000e-6   3.000e-6
b               [1]  1.234e4  1.234e4  0.0000  1.234e4          -          -
broken          [2]      NaN      NaN     NaN      NaN     0.0000     0.0000";
        let shown = format_summary(&rows);
        let squeezed =
            |text: &str| text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
        assert_eq!(squeezed(&shown), squeezed(expected), "\n{shown}");
        let ends: Vec<usize> = shown.lines().map(|line| line.chars().count()).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "\n{shown}");
        assert_eq!(format_summary(&[]), "name  shape  max  min  std  mean  grad_std  grad_mean");
    }
}
