//! Live changes to a limiter, without a layer.

use std::sync::Arc;

use tower_sluice::Limiter;

/// Makes `next` inherit from `before`. Returns the limiter that is in force then, or `None` if it cannot inherit.
#[allow(unreachable_pub)]
pub fn inherit(next: &Arc<dyn Limiter>, before: &Arc<dyn Limiter>) -> Option<Arc<dyn Limiter>> {
    let inheritance = next.inherit(&**before)?;
    let heir = inheritance.heir().cloned().unwrap_or_else(|| Arc::clone(next));
    inheritance.finish();
    Some(heir)
}
