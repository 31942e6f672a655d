//! [`AnyRecords`]: [`Records`] on a server whose type is not known.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::backend::{CallLimits, GaveUp};
use super::records::{Record, Records};
use super::server::Server;
use crate::store::NodeHealth;
use crate::values::LimiterError;

type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, LimiterError>> + Send + 'a>>;

/// [`Records`] on any server. Clones use the same server.
#[derive(Clone)]
pub struct AnyRecords(Arc<dyn DynRecords>);

impl AnyRecords {
    /// Hides a server's type.
    pub fn new(records: impl Records) -> Self {
        Self::shared(Arc::new(records))
    }

    pub(crate) fn shared(records: Arc<impl Records>) -> Self {
        Self(records)
    }
}

impl fmt::Debug for AnyRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyRecords")
    }
}

/// The part of [`Records`] that a box can have.
trait DynRecords: Server {
    fn read<'a>(&'a self, name: &'a str, limits: CallLimits) -> Pending<'a, Record>;

    fn swap<'a>(
        &'a self,
        name: &'a str,
        old: Option<&'a [u8]>,
        new: Option<&'a [u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Pending<'a, bool>;
}

impl<R: Records> DynRecords for R {
    fn read<'a>(&'a self, name: &'a str, limits: CallLimits) -> Pending<'a, Record> {
        Box::pin(Records::read(self, name, limits))
    }

    fn swap<'a>(
        &'a self,
        name: &'a str,
        old: Option<&'a [u8]>,
        new: Option<&'a [u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Pending<'a, bool> {
        Box::pin(Records::swap(self, name, old, new, lifetime, limits))
    }
}

impl Records for AnyRecords {
    async fn read(&self, name: &str, limits: CallLimits) -> Result<Record, LimiterError> {
        self.0.read(name, limits).await
    }

    async fn swap(
        &self,
        name: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        lifetime: Duration,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        self.0.swap(name, old, new, lifetime, limits).await
    }
}

impl Server for AnyRecords {
    fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    /// Whether both are clones of one value.
    fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn secret(&self) -> &[u8] {
        self.0.secret()
    }

    fn health(&self) -> Vec<NodeHealth> {
        self.0.health()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        self.0.gave_up(reason)
    }
}
