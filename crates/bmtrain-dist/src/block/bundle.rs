//! Bundles: groups of variables that flow between blocks and stages.

use bmtrain_core::Var;
use bmtrain_core::autograd::Tape;

/// Lists its variables and can be rebuilt around others in the same order. What is not a variable (masks, sizes) is
/// carried along by cloning.
pub trait Bundle: Clone {
    /// The variables, in a fixed order.
    fn vars(&self) -> Vec<Var>;

    /// This bundle around other variables, in the number and order of [`Bundle::vars`].
    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self;
}

impl Bundle for () {
    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }

    fn rebuild(&self, _vars: &mut dyn Iterator<Item = Var>) -> Self {}
}

impl Bundle for Var {
    fn vars(&self) -> Vec<Var> {
        vec![self.clone()]
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        vars.next().unwrap_or_else(|| self.detach())
    }
}

impl<A: Bundle, B: Bundle> Bundle for (A, B) {
    fn vars(&self) -> Vec<Var> {
        [self.0.vars(), self.1.vars()].concat()
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        (self.0.rebuild(vars), self.1.rebuild(vars))
    }
}

impl<A: Bundle, B: Bundle, C: Bundle> Bundle for (A, B, C) {
    fn vars(&self) -> Vec<Var> {
        [self.0.vars(), self.1.vars(), self.2.vars()].concat()
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        (self.0.rebuild(vars), self.1.rebuild(vars), self.2.rebuild(vars))
    }
}

impl<B: Bundle> Bundle for Option<B> {
    fn vars(&self) -> Vec<Var> {
        self.as_ref().map(Bundle::vars).unwrap_or_default()
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        self.as_ref().map(|bundle| bundle.rebuild(vars))
    }
}

impl<B: Bundle> Bundle for Vec<B> {
    fn vars(&self) -> Vec<Var> {
        self.iter().flat_map(Bundle::vars).collect()
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        self.iter().map(|bundle| bundle.rebuild(vars)).collect()
    }
}

/// A bundle off every tape, and which of its variables need a gradient.
#[derive(Debug, Clone)]
pub(super) struct Detached<C> {
    pub(super) bundle: C,
    pub(super) needs_grad: Vec<bool>,
}

impl<C: Bundle> Detached<C> {
    pub(super) fn new(bundle: C) -> Self {
        let vars = bundle.vars();
        Detached {
            bundle: bundle.rebuild(&mut vars.iter().map(Var::detach)),
            needs_grad: vars.iter().map(Var::needs_grad).collect(),
        }
    }

    pub(super) fn any_needs_grad(&self) -> bool {
        self.needs_grad.contains(&true)
    }

    /// Bytes of its variables.
    pub(super) fn bytes(&self) -> usize {
        self.bundle.vars().iter().map(|var| var.value().bytes()).sum()
    }

    /// The bundle and its variables as inputs of a tape.
    pub(super) fn on_tape(&self, tape: &Tape) -> (C, Vec<Var>) {
        let enter = |(var, &needs): (Var, &bool)| if needs { tape.input(var.into_value()) } else { var.detach() };
        let vars: Vec<Var> = self.bundle.vars().into_iter().zip(&self.needs_grad).map(enter).collect();
        (self.bundle.rebuild(&mut vars.iter().cloned()), vars)
    }

    /// The bundle around the next variables of a tape; those that need no gradient are detached.
    pub(super) fn attach(&self, vars: &mut dyn Iterator<Item = Var>) -> C {
        let keep = |(&needs, var): (&bool, Var)| if needs { var } else { var.detach() };
        self.bundle.rebuild(&mut self.needs_grad.iter().zip(vars).map(keep))
    }
}
