//! Parameters whose initial values are computed from other parameters. Defines [`DeferredValue`].

use crate::error::Result;
use std::fmt;
use std::rc::Rc;

/// A parameter that is initialized after the ones that its value is computed from.
#[derive(Clone)]
pub(crate) struct DeferredValue {
    /// Full name of the parameter.
    pub(super) name: String,
    /// Sets its value. Collective.
    pub(super) initialize: Rc<dyn Fn() -> Result<()>>,
}

impl DeferredValue {
    pub(super) fn initialize(&self) -> Result<()> {
        (self.initialize)()
    }
}

impl fmt::Debug for DeferredValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeferredValue").field(&self.name).finish()
    }
}
