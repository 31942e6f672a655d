//! Limiters that inherit from one another, without a layer.

use std::sync::Arc;

use tower_sluice::Limiter;

/// The limiter that is in force after a change, if it inherits.
#[allow(unreachable_pub)]
pub fn inherit(next: &Arc<dyn Limiter>, before: &Arc<dyn Limiter>) -> Option<Arc<dyn Limiter>> {
    let inheritance = next.inherit(&**before)?;
    let heir = inheritance.heir().cloned().unwrap_or_else(|| Arc::clone(next));
    inheritance.finish();
    Some(heir)
}
