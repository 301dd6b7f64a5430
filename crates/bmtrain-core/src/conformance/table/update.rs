//! Rows of the optimizers that update each element by itself.

use super::*;

const RMS_PROP: UpdateRule = UpdateRule::RmsProp { rho: 0.9, epsilon: 1e-6, momentum: 0.0, centered: false };
const SGD: UpdateRule = UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: false };

/// A rule without decay at its third step.
const fn plain(rule: UpdateRule) -> UpdateSettings {
    UpdateSettings { rule, lr: 0.01, decay: 0.0, decoupled: false, maximize: false, step: 3 }
}

pub(super) fn rows(cases: &mut Vec<Case>) {
    let rules = [
        ("sgd", UpdateRule::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false }),
        ("sgd with momentum", UpdateRule::Sgd { momentum: 0.9, dampening: 0.25, nesterov: false }),
        ("sgd with nesterov", UpdateRule::Sgd { momentum: 0.9, dampening: 0.0, nesterov: true }),
        ("adagrad", UpdateRule::Adagrad { lr_decay: 0.1, epsilon: 1e-6 }),
        ("rmsprop", RMS_PROP),
        ("rmsprop with momentum", UpdateRule::RmsProp { rho: 0.9, epsilon: 1e-6, momentum: 0.5, centered: false }),
        ("rmsprop centered", UpdateRule::RmsProp { rho: 0.9, epsilon: 1e-3, momentum: 0.0, centered: true }),
        ("rmsprop with both", UpdateRule::RmsProp { rho: 0.9, epsilon: 1e-3, momentum: 0.5, centered: true }),
        ("adadelta", UpdateRule::Adadelta { rho: 0.9, epsilon: 1e-4 }),
        ("adamax", UpdateRule::Adamax { beta1: 0.9, beta2: 0.95, epsilon: 1e-6 }),
        ("nadam", UpdateRule::NAdam { beta1: 0.9, beta2: 0.95, epsilon: 1e-6, momentum_decay: 4e-3 }),
        ("radam", UpdateRule::RAdam { beta1: 0.9, beta2: 0.95, epsilon: 1e-6 }),
        ("lion", UpdateRule::Lion { beta1: 0.9, beta2: 0.99 }),
    ];
    for (name, rule) in rules {
        cases.push(update(name, 0.5, 77, UpdateSettings { decay: 0.1, ..plain(rule) }));
    }
    let mut row = |name: &str, factor: f32, n: usize, settings| cases.push(update(name, factor, n, settings));
    row("first step of momentum", 0.5, 77, UpdateSettings { step: 1, ..plain(rules[1].1) });
    row("rectified", 0.5, 77, UpdateSettings { step: 100, ..plain(rules[11].1) });
    row("decoupled decay", 0.5, 77, UpdateSettings { decay: 0.1, decoupled: true, ..plain(rules[10].1) });
    row("climbing", 0.5, 77, UpdateSettings { maximize: true, decay: 0.1, ..plain(SGD) });
    row("factor that is not a number", f32::NAN, 77, UpdateSettings { decay: 0.1, ..plain(RMS_PROP) });
    row("70001", 0.5, 70_001, plain(UpdateRule::RmsProp { rho: 0.9, epsilon: 1e-3, momentum: 0.5, centered: true }));
}

fn update(name: &str, factor: f32, n: usize, settings: UpdateSettings) -> Case {
    let has = settings.rule.states().map(|state| state.is_some());
    Case::kernel(format!("update/{name}"), move |device, t| {
        let [mut master, mut first, mut second, mut third] = [copy(&t[0])?, copy(&t[1])?, copy(&t[2])?, copy(&t[3])?];
        let mut parameter = zeros(device, &[n], t[4].dtype())?;
        device.launch(Cast { x: master.view()?, out: parameter.dest(false)? })?;
        let factor = Tensor::full_in(device, [1], DType::F32, factor, Segment::Workspace)?;
        let wide = parameter.dtype() == DType::F32;
        device.launch(Update {
            parameter: parameter.view_mut()?,
            master: if wide { None } else { Some(master.view_mut()?) },
            first: has[0].then(|| first.view_mut()).transpose()?,
            second: has[1].then(|| second.view_mut()).transpose()?,
            third: has[2].then(|| third.view_mut()).transpose()?,
            grad: t[4].view()?,
            factor: factor.view()?,
            settings,
        })?;
        Ok(vec![if wide { copy(&parameter)? } else { master }, parameter, first, second, third])
    })
    .constant("master", [n])
    .of(DType::F32)
    .constant("first", [n])
    .of(DType::F32)
    // Above the square of the third, which may be an average of the gradients of its squares.
    .constant("second", [n])
    .of(DType::F32)
    .holding(Values::Uniform(0.5, 1.0))
    .constant("third", [n])
    .of(DType::F32)
    .holding(Values::Uniform(0.0, 0.5))
    .constant("grad", [n])
    .expecting(move |t| host_update(factor, settings, t))
}

/// The formulas of the rule's documentation in f64.
fn host_update(factor: f32, settings: UpdateSettings, t: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (mut p, mut first, mut second, mut third) = (t[0].clone(), t[1].clone(), t[2].clone(), t[3].clone());
    let UpdateSettings { lr, decay, decoupled, maximize, .. } = settings;
    for i in (0..p.len()).filter(|_| factor.is_finite()) {
        let mut g = f64::from(factor) * t[4][i] * if maximize { -1.0 } else { 1.0 };
        if decoupled {
            p[i] -= lr * decay * p[i];
        } else {
            g += decay * p[i];
        }
        p[i] -= lr * host_change(settings, g, [&mut first[i], &mut second[i], &mut third[i]]);
    }
    vec![p.clone(), p, first, second, third]
}

/// Change of an element, before the learning rate; updates the states.
fn host_change(settings: UpdateSettings, g: f64, [a, b, c]: [&mut f64; 3]) -> f64 {
    let (step, t) = (settings.step, settings.step as f64);
    let average = |of: &mut f64, decay: f64, x: f64| {
        *of = decay * *of + (1.0 - decay) * x;
        *of
    };
    match settings.rule {
        UpdateRule::Sgd { momentum, dampening, nesterov } => {
            let weight = if step == 1 { 1.0 } else { 1.0 - dampening };
            match (momentum == 0.0, nesterov) {
                (true, _) => g,
                (false, is_ahead) => {
                    *a = momentum * *a + weight * g;
                    if is_ahead { g + momentum * *a } else { *a }
                }
            }
        }
        UpdateRule::Adagrad { lr_decay, epsilon } => {
            *b += g * g;
            g / (b.sqrt() + epsilon) / (1.0 + (t - 1.0) * lr_decay)
        }
        UpdateRule::RmsProp { rho, epsilon, momentum, centered } => {
            let mut square = average(b, rho, g * g);
            if centered {
                square -= average(c, rho, g).powi(2);
            }
            let change = g / (square.sqrt() + epsilon);
            if momentum == 0.0 {
                return change;
            }
            *a = momentum * *a + change;
            *a
        }
        UpdateRule::Adadelta { rho, epsilon } => {
            let change = (*c + epsilon).sqrt() / (average(b, rho, g * g) + epsilon).sqrt() * g;
            average(c, rho, change * change);
            change
        }
        UpdateRule::Adamax { beta1, beta2, epsilon } => {
            *b = (beta2 * *b).max(g.abs() + epsilon);
            average(a, beta1, g) / (1.0 - beta1.powf(t)) / *b
        }
        UpdateRule::NAdam { beta1, beta2, epsilon, momentum_decay } => {
            let mu = |step: f64| beta1 * (1.0 - 0.5 * 0.96f64.powf(step * momentum_decay));
            let product: f64 = (1..=step).map(|step| mu(step as f64)).product();
            let (m, v) = (average(a, beta1, g), average(b, beta2, g * g));
            let root = (v / (1.0 - beta2.powf(t))).sqrt() + epsilon;
            let next = mu(t + 1.0);
            (1.0 - mu(t)) / (1.0 - product) * g / root + next / (1.0 - product * next) * m / root
        }
        UpdateRule::RAdam { beta1, beta2, epsilon } => {
            let (m, v) = (average(a, beta1, g) / (1.0 - beta1.powf(t)), average(b, beta2, g * g));
            let (rest, most) = (1.0 - beta2.powf(t), 2.0 / (1.0 - beta2) - 1.0);
            let known = most - 2.0 * t * beta2.powf(t) / rest;
            if known <= 5.0 {
                return m;
            }
            let ratio = (known - 4.0) * (known - 2.0) * most / ((most - 4.0) * (most - 2.0) * known);
            m * rest.sqrt() / (v.sqrt() + epsilon) * ratio.sqrt()
        }
        UpdateRule::Lion { beta1, beta2 } => {
            let mixed = beta1 * *a + (1.0 - beta1) * g;
            average(a, beta2, g);
            mixed.signum()
        }
    }
}
