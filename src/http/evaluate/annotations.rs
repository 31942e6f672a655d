//! Annotations: the response fields and extensions that report the decisions on a request.

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, Response};

use super::entry::PolicyEntry;
use super::open_request::OpenRequest;
use super::scope::Scope;
use crate::http::headers::{self, PolicyReading, ResponseFields, Writer};
use crate::http::policy::Policy;
use crate::http::verdict::{PolicyVerdict, Verdict};
use crate::values::{Decision, PartitionKey, Quota};

/// Response fields and extensions, computed at decision time and applied when the response arrives. Every response
/// future holds them, so the rare parts are boxed.
#[derive(Default)]
pub(crate) struct Annotations {
    fields: Option<ResponseFields>,
    rare: Option<Box<Rare>>,
}

const _: () = assert!(size_of::<Annotations>() <= 32, "every response future holds them");

/// The annotations that few layers use.
#[allow(clippy::large_enum_variant, reason = "it is behind a pointer, and short-lived")]
enum Rare {
    Known {
        /// The time that the request waited for its turn.
        waited: Option<Duration>,
        verdict: Option<Verdict>,
    },
    /// The request is over when its response is, or parts of it.
    Open(Box<OpenRequest>),
}

impl Annotations {
    pub(super) fn open(open: OpenRequest) -> Self {
        Self { fields: None, rare: Some(Box::new(Rare::Open(Box::new(open)))) }
    }

    /// Adds to the extensions of the request, before the inner service is called.
    #[inline(always)]
    pub(crate) fn extend_request(&self, extensions: &mut Extensions) {
        if let Some(rare) = &self.rare {
            rare.extend_request(extensions);
        }
    }

    /// Takes the fields, which are then written otherwise.
    pub(super) fn take_fields(&mut self) -> Option<ResponseFields> {
        self.fields.take()
    }

    /// Annotates the response. Returns what ends with its body, if anything does.
    #[inline(always)]
    pub(crate) fn write<B>(self, response: &mut Response<B>) -> Option<Box<OpenRequest>> {
        if let Some(fields) = self.fields {
            fields.write(response.status(), response.headers_mut());
        }
        self.rare.and_then(|rare| rare.write(response))
    }
}

impl Rare {
    #[cold]
    fn extend_request(&self, extensions: &mut Extensions) {
        match self {
            Self::Open(open) => open.extend(extensions),
            Self::Known { verdict: Some(verdict), .. } => verdict.extend_request(extensions),
            Self::Known { verdict: None, .. } => {}
        }
    }

    #[cold]
    #[allow(clippy::boxed_local, reason = "the hot path passes a pointer on")]
    fn write<B>(self: Box<Self>, response: &mut Response<B>) -> Option<Box<OpenRequest>> {
        match *self {
            Self::Open(mut open) => {
                let annotations = open.settle_head(&(&*response).into());
                annotations.write(response);
                Some(open).filter(|open| open.lasts())
            }
            Self::Known { waited, verdict } => {
                if let Some(waited) = waited {
                    headers::append_server_timing(response.headers_mut(), waited);
                }
                if let Some(verdict) = verdict {
                    verdict.insert_into(response.extensions_mut());
                }
                None
            }
        }
    }
}

impl Scope<'_> {
    /// The annotations of a request that the only policy of a [plain](crate::http::reload::InForce::is_plain) layer has
    /// admitted at once.
    #[inline]
    pub(super) fn annotate_plain(self, key: &PartitionKey, quota: Option<Quota>, decision: &Decision) -> Annotations {
        let write = |writer: &Arc<Writer>| writer.fields_of_one(reading(writer, 0, key, quota, decision));
        Annotations { fields: self.in_force.writer.as_ref().and_then(write), rare: None }
    }

    /// The verdict on a request with these entries, if the layer adds one.
    pub(super) fn verdict(self, entries: &[PolicyEntry]) -> Option<Verdict> {
        self.layer.settings.adds_verdict.then(|| verdict_of(&self.in_force.policies, entries))
    }

    /// The annotations of a request with these entries.
    pub(super) fn annotate(self, entries: &[PolicyEntry], verdict: Option<Verdict>) -> Annotations {
        let write = |writer: &Arc<Writer>| {
            let of = |entry| reading_of(writer, entry);
            match entries {
                [entry] => writer.fields_of_one(of(entry)?),
                _ => writer.fields(entries.iter().filter_map(of)),
            }
        };
        let fields = self.in_force.writer.as_ref().and_then(write);
        let (settings, policies) = (&self.layer.settings, &*self.in_force.policies);
        let waited = if settings.adds_timing { total_wait(policies, entries) } else { None };
        let is_rare = waited.is_some() || verdict.is_some();
        Annotations { fields, rare: is_rare.then(|| Box::new(Rare::Known { waited, verdict })) }
    }
}

fn reading_of<'a>(writer: &Writer, entry: &'a PolicyEntry) -> Option<PolicyReading<'a>> {
    Some(reading(writer, entry.policy as usize, &entry.key, entry.quota, entry.decision.as_ref()?))
}

#[inline]
fn reading<'a>(
    writer: &Writer,
    policy: usize,
    key: &PartitionKey,
    quota: Option<Quota>,
    decision: &'a Decision,
) -> PolicyReading<'a> {
    PolicyReading { policy, decision, quota, mark: writer.mark(key) }
}

/// The sum of the times in all queues; `None` for a request that did not wait. A request that waited in one queue may
/// have been rejected by the next.
fn total_wait(policies: &[Policy], entries: &[PolicyEntry]) -> Option<Duration> {
    // Shadows delay no request, and a preview has the time that a request would wait.
    let has_waited = |entry: &&PolicyEntry| !entry.is_preview && !entry.policy_of(policies).shadow;
    let admissions = entries.iter().filter(has_waited).filter_map(PolicyEntry::admission);
    let total = admissions.fold(Duration::ZERO, |sum, decision| sum.saturating_add(decision.delay()));
    Some(total).filter(|total| !total.is_zero())
}

pub(super) fn verdict_of(policies: &[Policy], entries: &[PolicyEntry]) -> Verdict {
    let decided =
        |entry: &PolicyEntry| Some(PolicyVerdict::new(entry.policy_of(policies), entry.decision?, entry.fell_back));
    Verdict::of(entries.iter().filter_map(decided))
}
