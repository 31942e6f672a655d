//! Translates the engine's decisions into HTTP fields, bodies and statuses.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Response, StatusCode};

use crate::engine::domain::{Domain, Http};
use crate::engine::evaluate::{self, Decide, OpenRequest};
use crate::engine::key::{KeyError, Marks};
use crate::engine::outcome::{Evaluation, Rejected};
use crate::engine::permits::Held;
use crate::engine::policy::Policy;
use crate::engine::reason::{Reason, Refusal};
use crate::engine::reload::{InForce, LayerState};
use crate::engine::settlement::Settlement;
use crate::engine::translate::{Reading, Translate};
use crate::engine::verdict::Verdict;
use crate::http::body::RejectionBody;
use crate::http::grpc::{self, Protocol};
use crate::http::head::{RequestHead, ResponseHead};
use crate::http::headers::{
    Described, LONGEST_ADVERTISED, PolicyReading, QuotaUnit, RateLimitFields, ResponseFields, Writer,
    append_server_timing, leaked,
};
use crate::http::mounting::{self, Mounting};
use crate::http::outcome::{HeldRequest, ResponseProgress, StaysOpen};
use crate::http::preflight::ExemptsPreflight;
use crate::http::reject::{Rejection, Responder};
use crate::http::{extensions, log};
use crate::values::{LimiterError, RequestEnd};

/// A layer's settings that the engine does not read.
#[derive(Default)]
pub(crate) struct HttpSettings {
    pub(crate) fields: RateLimitFields,
    pub(crate) responder: Responder,
    /// The exemption for CORS preflights, if any.
    pub(crate) preflight_exemption: Option<ExemptsPreflight>,
    pub(crate) mounting: Mounting,
}

/// A response to copy.
#[derive(Clone)]
pub(crate) struct KeptResponse {
    status: StatusCode,
    fields: HeaderMap,
    body: &'static [u8],
}

impl Domain for Http {
    type Subject<'a> = RequestHead<'a>;
    type Outcome<'a> = ResponseHead<'a>;
    type Rejection = Rejection;

    const FAILED_CLOSED: &'static str = "are answered 503";
}

impl Translate for Http {
    type Settings = HttpSettings;
    /// `None` if responses do not report quota.
    type Prepared = Option<Arc<Writer>>;
    type Fields = Option<ResponseFields>;
    type Reply = Response<RejectionBody>;
    type Kept = KeptResponse;
    type Held = HeldRequest;
    type Open = Box<dyn StaysOpen>;
    type Progress = ResponseProgress;

    fn prepare(settings: &HttpSettings, policies: &[Policy], has_choices: bool) -> Self::Prepared {
        let advertised = |policy: &Policy| policy.description.terms().filter(|_| !policy.shadow);
        let unit = |policy: &Policy| {
            if policy.billing.is_charged_by_content() { QuotaUnit::ContentBytes } else { QuotaUnit::Requests }
        };
        let described = policies.iter().map(|policy| Described {
            name: policy.name(),
            terms: advertised(policy),
            unit: unit(policy),
            // Members that were not charged are left out, too.
            is_conditional: policy.selector.is_conditional() || has_choices,
        });
        Writer::new(&settings.fields, described).map(Arc::new)
    }

    #[inline]
    fn fields<'a>(prepared: &Self::Prepared, decided: impl Iterator<Item = Reading<'a>> + Clone) -> Self::Fields {
        let writer = prepared.as_ref()?;
        let to_reading = |it: Reading<'a>| {
            let Reading { policy, key, quota, decision } = it;
            PolicyReading { policy, decision, quota, mark: writer.mark(key) }
        };
        let mut readings = decided.clone().map(to_reading);
        let first = readings.next()?;
        if readings.next().is_none() { writer.fields_of_one(first) } else { writer.fields(decided.map(to_reading)) }
    }

    #[inline(always)]
    fn is_empty(fields: &Self::Fields) -> bool {
        fields.is_none()
    }

    #[inline(always)]
    fn reject(policy: &Policy, refusal: Refusal, verdict: Verdict) -> Rejection {
        let Refusal { reason, is_due_to_others, wait } = refusal;
        let status = || policy.rejection_status(is_due_to_others);
        match reason {
            Reason::Suspended => Rejection::suspended(policy.suspended_status(), verdict),
            Reason::BannedByHand => Rejection::banned_by_hand(status(), wait, verdict),
            Reason::Banned => Rejection::banned(status(), wait, verdict),
            Reason::Overloaded => Rejection::overloaded(status(), wait, verdict),
            _ => Rejection::limit_exceeded(status(), wait, verdict),
        }
    }

    fn reject_without_key(error: &KeyError) -> Rejection {
        Rejection::without_key(error)
    }

    fn reject_for_failure(policy: &Policy, error: &LimiterError, verdict: Verdict) -> Rejection {
        Rejection::limiter_failed(policy, error, verdict)
    }

    /// Waits longer than 24.8 days are shortened.
    fn advertised(rejection: &Rejection) -> Option<Duration> {
        rejection.retry_after().map(|wait| wait.min(LONGEST_ADVERTISED))
    }

    fn marks<'s>(_: &HttpSettings, head: &'s RequestHead<'_>) -> Option<&'s Marks> {
        head.extensions().get()
    }

    fn patience(head: &RequestHead<'_>) -> Option<Duration> {
        grpc::timeout(head)
    }

    fn replies_alike(settings: &HttpSettings, prepared: &Self::Prepared) -> bool {
        prepared.is_none() && settings.responder.is_constant()
    }

    /// Whether the request is answered in plain HTTP, with a body.
    #[inline]
    fn is_usual(head: &RequestHead<'_>) -> bool {
        match *head.method() {
            Method::GET => true,
            Method::HEAD => false,
            _ => Protocol::detect(head) == Protocol::Http,
        }
    }

    #[cold]
    fn keep(response: &Self::Reply) -> Option<KeptResponse> {
        let body = response.body().whole().and_then(leaked)?;
        Some(KeptResponse { status: response.status(), fields: response.headers().clone(), body })
    }

    #[inline(always)]
    fn copy(kept: &KeptResponse) -> Self::Reply {
        let mut response = Response::new(kept.body.into());
        *response.status_mut() = kept.status;
        // A new response's map is empty and owns nothing, but dropping it takes the time of dropping a full one.
        std::mem::forget(std::mem::replace(response.headers_mut(), kept.fields.clone()));
        response
    }

    #[inline(always)]
    fn hold(held: Held) -> HeldRequest {
        HeldRequest::new(held)
    }

    fn look(open: &Self::Open) -> (Option<Verdict>, Option<Settlement>) {
        open.look()
    }

    fn end_held(mut held: HeldRequest, response: Option<&ResponseHead<'_>>, end: RequestEnd) {
        match response {
            Some(response) => held.note_last(response),
            None => held.end_as(end),
        }
    }

    fn end_open(mut open: Self::Open, response: Option<&ResponseHead<'_>>, end: RequestEnd) {
        match response {
            Some(response) => open.settle_last(response),
            None => open.end_as(end),
        }
    }

    /// Logs, once per policy name, that a layer is built for each request. That is not a mistake if its counts are on a
    /// server, or in a limiter that the program keeps.
    fn note_end(settings: &HttpSettings, policies: &[Policy]) {
        if !settings.mounting.had_few_requests() {
            return;
        }
        let counts_here =
            |policy: &&Policy| policy.description.keeps_states().is_some() && Arc::strong_count(&policy.limiter) == 1;
        let Some(policy) = policies.iter().find(counts_here) else { return };
        if let Some(layers) = mounting::note_short_lived(&policy.name) {
            log::layers_are_short_lived(&policy.name, layers);
        }
    }
}

/// Evaluates a request, and answers it if the only policy rejects it.
#[inline]
pub(crate) fn evaluate(
    layer: &Arc<LayerState<Http>>,
    in_force: &Arc<InForce<Http>>,
    head: &RequestHead<'_>,
) -> Evaluation<Http> {
    evaluate::evaluate(layer, in_force, head, |decided| reject_plain(layer, in_force, decided, head))
}

/// Replies at once, because a rejection is too large to be moved. In this way, it is compiled in this crate, and not in
/// each crate that has a service.
#[cold]
fn reject_plain(
    layer: &Arc<LayerState<Http>>,
    in_force: &Arc<InForce<Http>>,
    decided: Reading<'_>,
    head: &RequestHead<'_>,
) -> Evaluation<Http> {
    evaluate::reject_plain(layer, in_force, decided, head, |rejected| {
        Evaluation::Replied(Http::reply(layer, rejected, head))
    })
}

impl Decide for Http {
    const REPLIES: bool = true;

    /// A preflight does not have a body, so a request whose body we cannot see may be one.
    fn exempts(layer: &LayerState<Self>, in_force: &InForce<Self>, head: &RequestHead<'_>) -> bool {
        let exempts = layer.settings.own.preflight_exemption.as_ref();
        exempts.is_some_and(|exempts| exempts(&in_force.policies, head, &|| true))
    }

    #[inline]
    fn reply(layer: &LayerState<Self>, mut rejected: Rejected<Self>, head: &RequestHead<'_>) -> Self::Reply {
        let mut response = layer.settings.own.responder.respond(&mut rejected.rejection, head, rejected.fields);
        if let Some(waited) = rejected.waited {
            append_server_timing(response.headers_mut(), waited);
        }
        if layer.settings.adds_verdict {
            extensions::put_verdict(rejected.rejection.into_verdict(), response.extensions_mut());
        }
        response
    }

    fn open(open: OpenRequest<Self>) -> Self::Open {
        Box::new(open)
    }
}
