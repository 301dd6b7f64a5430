//! Bundles: groups of variables that flow between blocks and stages.

use bmtrain_core::Var;

/// Lists its variables and can be rebuilt around others in the same order. What is not a variable (masks, sizes) is
/// carried along by cloning.
pub trait Bundle: Clone {
    /// The variables, in a fixed order.
    fn vars(&self) -> Vec<Var>;

    /// The same bundle around other variables, as many as [`Bundle::vars`] lists.
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
        let mut vars = self.0.vars();
        vars.extend(self.1.vars());
        vars
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        (self.0.rebuild(vars), self.1.rebuild(vars))
    }
}

impl<A: Bundle, B: Bundle, C: Bundle> Bundle for (A, B, C) {
    fn vars(&self) -> Vec<Var> {
        let mut vars = self.0.vars();
        vars.extend(self.1.vars());
        vars.extend(self.2.vars());
        vars
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
