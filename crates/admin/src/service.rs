//! The service: it answers each call, and sends the page's files.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use serde_json::{Value, json};
use tower_service::Service;

use super::answers;
use super::body::{AdminBody, read};
use super::call::{Act, Adjustment, Call};
use super::guard::{check_host, check_site, check_type};
use super::members::{Members, Terms, Units};
use super::problem::Problem;
use super::{Admin, page};
use tower_sluice::limiter::{Credit, Debit};
use tower_sluice::policy::{Operate, PolicyStatus};

/// The path of all calls. Other paths are the page's files.
const API: &str = "/api/";

/// A policy in force, with its layer's name and handle.
type InForce<'a> = (&'a str, &'a dyn Operate, PolicyStatus);

/// An act with its terms, as far as it has any.
enum Order {
    Reset,
    Unban,
    Ban(Terms),
    Allow(Terms),
}

impl<B> Service<Request<B>> for Admin
where
    B: Body + Send + 'static,
    B::Data: Send,
{
    type Response = Response<AdminBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AdminBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        if let Err(problem) = check_host(&parts, &self.hosts) {
            return Box::pin(ready(Ok(problem.response())));
        }
        if !parts.uri.path().starts_with(API) {
            return Box::pin(ready(Ok(page::file(&parts).unwrap_or_else(|problem| problem.response()))));
        }
        let admin = self.clone();
        Box::pin(async move {
            let answer = match admin.answer(&parts, body).await {
                Ok(answer) => json_response(&answer),
                Err(problem) => problem.response(),
            };
            Ok(never_stored(answer))
        })
    }
}

impl Admin {
    /// Carries out a call.
    async fn answer<B: Body>(&self, parts: &Parts, body: B) -> Result<Value, Problem> {
        check_site(parts)?;
        let call = Call::parse(&parts.uri.path()[API.len()..])?;
        call.check_method(&parts.method)?;
        match call {
            Call::Policies => Ok(json!({ "policies": policies(&self.policies()) })),
            Call::Stores => Ok(stores(&self.policies())),
            Call::Exceptions => Ok(json!({ "exceptions": exceptions(&self.policies())? })),
            Call::Offenders => Ok(json!({ "offenders": offenders(&self.policies()).await? })),
            Call::Key => self.key(members(parts, body).await?).await,
            Call::Act(act) => self.act(members(parts, body).await?, act).await,
            Call::Adjust(adjustment) => self.adjust(members(parts, body).await?, adjustment).await,
        }
    }

    /// Returns each policy's report on a key, or only those in one layer, or with one name.
    async fn key(&self, mut members: Members) -> Result<Value, Problem> {
        let key = members.text("key")?;
        let (layer, policy) = (members.optional_text("layer")?, members.optional_text("policy")?);
        members.end()?;
        let mut answers = Vec::new();
        for (name, handle, status) in self.wanted(layer.as_deref(), policy.as_deref())? {
            let mut answer = answers::key(name, &status, handle.peek(status.name(), &key).await);
            if status.tracks_offenders() && answer["state"] != "no-key" {
                let rejections = handle.rejections(status.name(), &key).await?;
                answer["rejections"] = rejections.as_ref().map(answers::offender).into();
            }
            answers.push(answer);
        }
        Ok(json!({ "key": key, "policies": answers }))
    }

    /// Resets, bans, allows or unbans a key in one policy. Returns its state afterwards.
    async fn act(&self, mut members: Members, act: Act) -> Result<Value, Problem> {
        let (key, policy) = (members.text("key")?, members.text("policy")?);
        let layer = members.optional_text("layer")?;
        let order = match act {
            Act::Reset => Order::Reset,
            Act::Unban => Order::Unban,
            Act::Ban => Order::Ban(members.terms()?),
            Act::Allow => Order::Allow(members.terms()?),
        };
        members.end()?;
        let (layer, handle, status) = self.only(layer.as_deref(), &policy)?;
        if matches!(order, Order::Ban(_) | Order::Allow(_)) && status.is_shadow() {
            let detail = format!(
                "policy `{policy}` is a shadow: it rejects no request, so neither a ban nor an allowance would change it"
            );
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        }
        if matches!(order, Order::Reset) && !status.can_reset() {
            // Checked before the call, which would lift a ban nevertheless.
            let detail = format!("policy `{policy}` cannot reset a key; unban it, or allow it for a while");
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        }
        let done = match order {
            Order::Reset => handle.reset(&policy, &key).await?,
            Order::Unban => handle.unban(&policy, &key).await?,
            Order::Ban(terms) => handle.ban(&policy, &key, terms.span, &terms.reason).await?,
            Order::Allow(terms) => handle.allow(&policy, &key, terms.span, &terms.reason).await?,
        };
        Ok(answers::key(layer, &status, Ok(done)))
    }

    /// Credits or charges a key in one policy by hand. Returns its state afterwards.
    async fn adjust(&self, mut members: Members, adjustment: Adjustment) -> Result<Value, Problem> {
        let (key, policy) = (members.text("key")?, members.text("policy")?);
        let layer = members.optional_text("layer")?;
        let Units { units, reference, expires_in } = members.units(adjustment == Adjustment::Credit)?;
        members.end()?;
        let (layer, handle, status) = self.only(layer.as_deref(), &policy)?;
        let done = match adjustment {
            Adjustment::Credit => {
                let credit = Credit::units(units).reference(reference);
                let credit = expires_in.into_iter().fold(credit, Credit::expires_in);
                handle.credit(&policy, &key, credit).await?
            }
            Adjustment::Charge => handle.charge(&policy, &key, Debit::units(units).reference(reference)).await?,
        };
        let mut answer = answers::key(layer, &status, Ok(done));
        answer["repeated"] = done.is_repeated().into();
        Ok(answer)
    }

    /// Returns the only policy with this name, in this layer if it is given.
    fn only(&self, layer: Option<&str>, policy: &str) -> Result<InForce<'_>, Problem> {
        let mut wanted = self.wanted(layer, Some(policy))?;
        let only = wanted.pop().filter(|_| wanted.is_empty());
        only.ok_or_else(|| {
            let detail = format!("several layers have a policy `{policy}`; write the `layer`, too");
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        })
    }

    /// All policies in force, with their layers.
    fn policies(&self) -> Vec<InForce<'_>> {
        let mut all = Vec::new();
        for (layer, handle) in &*self.layers {
            all.extend(handle.policies().into_iter().map(|status| (layer.as_str(), &**handle, status)));
        }
        all
    }

    /// Returns the policies in this layer and with this name, if they are given. There is at least one.
    fn wanted(&self, layer: Option<&str>, policy: Option<&str>) -> Result<Vec<InForce<'_>>, Problem> {
        if let Some(layer) = layer.filter(|layer| self.layers.iter().all(|(name, _)| name != layer)) {
            let all: Vec<_> = self.layers.iter().map(|(name, _)| name.as_str()).collect();
            let detail = format!("there is no layer `{layer}`; there are: {}", all.join(", "));
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        }
        let all = self.policies().into_iter();
        let of_layer: Vec<_> = all.filter(|(name, ..)| layer.is_none_or(|layer| layer == *name)).collect();
        let names: Vec<_> = of_layer.iter().map(|(_, _, status)| status.name().to_owned()).collect();
        let is_wanted = |status: &PolicyStatus| policy.is_none_or(|policy| policy == status.name());
        let wanted: Vec<_> = of_layer.into_iter().filter(|(_, _, status)| is_wanted(status)).collect();
        if let (true, Some(policy)) = (wanted.is_empty(), policy) {
            let detail = format!("there is no policy `{policy}`; there are: {}", names.join(", "));
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        }
        Ok(wanted)
    }
}

/// Reads the members of a call's body.
async fn members<B: Body>(parts: &Parts, body: B) -> Result<Members, Problem> {
    check_type(&parts.headers)?;
    Members::parse(&read(body).await?)
}

/// Each policy's state.
fn policies(all: &[InForce<'_>]) -> Vec<Value> {
    all.iter().map(|(layer, _, status)| answers::policy(layer, status)).collect()
}

/// The stores that keep the policies' budgets.
fn stores(all: &[InForce<'_>]) -> Value {
    answers::stores(all.iter().map(|(layer, _, status)| (*layer, status)))
}

/// How many offenders are listed per policy.
const MOST: usize = 20;

/// The keys that are rejected most, from each policy that tracks them.
async fn offenders(all: &[InForce<'_>]) -> Result<Vec<Value>, Problem> {
    let mut found = Vec::new();
    for (layer, handle, status) in all.iter().filter(|(_, _, status)| status.tracks_offenders()) {
        let offenders = handle.offenders(status.name(), MOST).await?;
        found.push(answers::offenders(layer, status, &offenders));
    }
    Ok(found)
}

/// All policies' bans and allowances by hand.
fn exceptions(all: &[InForce<'_>]) -> Result<Vec<Value>, Problem> {
    let mut found = Vec::new();
    for (layer, handle, status) in all {
        for (key, exception) in handle.exceptions(status.name())? {
            let mut entry = answers::by_hand(&exception, None);
            entry["layer"] = (*layer).into();
            entry["policy"] = status.name().into();
            entry["key"] = key.into();
            entry["kind"] = if exception.is_ban() { "ban" } else { "allowance" }.into();
            found.push(entry);
        }
    }
    Ok(found)
}

fn json_response(answer: &Value) -> Response<AdminBody> {
    let mut response = Response::new(AdminBody::new(format!("{answer}\n")));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Keeps the response out of caches, because it is about one moment, and has keys, which may be personal data.
fn never_stored(mut response: Response<AdminBody>) -> Response<AdminBody> {
    let fields = response.headers_mut();
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    fields.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
