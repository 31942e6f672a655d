//! The request that a log line stands for.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, MatchedPath};
use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, REFERER, USER_AGENT};
use http::request::Parts;
use http::{Extensions, Method, Request, Uri};
use tower_sluice::RequestHead;
use tower_sluice::internal::WholeQuery;
use tower_sluice::key::User;

use crate::log::{Entry, Unreadable};
use crate::path::Target;

/// The parts of a request that any policy may read. The others are left out, since they take time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Header fields that are read only by policies that name them.
    headers: bool,
    /// The path and the query.
    target: bool,
    /// The path that the router has matched.
    matched: bool,
}

impl Needs {
    /// Looks for everything that a file names. It may name a header as a key, in exemptions and for idempotency, always
    /// by this word; a cookie, which is in a header; the query as a key; and the path as a key, or in exemptions.
    pub(super) fn of_file(text: &str) -> Self {
        let headers = text.contains("header") || text.contains("cookie:");
        let matched = text.contains("\"path\"") || text.contains("'path'");
        Self { headers, target: headers || matched || text.contains("query:") || text.contains("exempt"), matched }
    }

    #[cfg(test)]
    pub(crate) const fn all() -> Self {
        Self { headers: true, target: true, matched: true }
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self {
            headers: self.headers || other.headers,
            target: self.target || other.target,
            matched: self.matched || other.matched,
        }
    }
}

/// A request head for a line. The next line reuses its memory.
#[derive(Debug)]
pub(crate) struct LineHead {
    needs: Needs,
    parts: Parts,
}

impl LineHead {
    pub(crate) fn new(needs: Needs) -> Self {
        Self { needs, parts: Request::new(()).into_parts().0 }
    }

    /// Whether a policy may read header fields.
    pub(super) const fn has_headers(&self) -> bool {
        self.needs.headers
    }

    /// Becomes a line's head, with the client's address as its peer.
    ///
    /// # Errors
    ///
    /// If the method isn't valid.
    pub(crate) fn read(&mut self, entry: &Entry<'_>, target: Option<&Target<'_>>) -> Result<(), Unreadable> {
        let method =
            Method::from_bytes(&entry.method).map_err(|_| Unreadable::new("the method is no method of HTTP"))?;
        // As the service spells it. `OPTIONS *` and `CONNECT` have no path, so they match no route.
        if target.is_none() && *entry.target != b"*"[..] && method != Method::CONNECT {
            return Err(Unreadable::new("the path does not begin with a slash; perhaps the fields have another order"));
        }
        self.parts.method = method;
        if self.needs.target {
            self.parts.uri = target.map_or_else(Uri::default, Target::uri);
        }
        set_headers(entry, self.needs, &mut self.parts.headers);
        let long_query = target.and_then(Target::long_query);
        let extensions = &mut self.parts.extensions;
        // Logs don't have the port, and no key reads it.
        set(extensions, entry.client.map(|ip: IpAddr| ConnectInfo(SocketAddr::new(ip, 0))));
        set(extensions, long_query.map(|query| WholeQuery(Bytes::copy_from_slice(query))));
        set(extensions, entry.user.as_ref().map(|user| User::new(&**user)));
        Ok(())
    }

    /// Notes the path that a router has matched.
    pub(super) fn set_matched(&mut self, path: &MatchedPath) {
        if self.needs.matched {
            set(&mut self.parts.extensions, Some(path.clone()));
        }
    }

    pub(super) fn head(&self) -> RequestHead<'_> {
        (&self.parts).into()
    }
}

/// Replaces an extension in its place, if there is one.
fn set<T: Clone + Send + Sync + 'static>(extensions: &mut Extensions, value: Option<T>) {
    match (value, extensions.get_mut::<T>()) {
        (Some(value), Some(before)) => *before = value,
        (Some(value), None) => drop(extensions.insert(value)),
        (None, Some(_)) => drop(extensions.remove::<T>()),
        (None, None) => {}
    }
}

fn set_headers(entry: &Entry<'_>, needs: Needs, headers: &mut HeaderMap) {
    headers.clear();
    for (name, value) in &entry.headers {
        let name = match &**name {
            "referer" | "user-agent" if !needs.headers => continue,
            "referer" => Ok(REFERER),
            "user-agent" => Ok(USER_AGENT),
            "host" => Ok(HOST),
            name => HeaderName::try_from(name),
        };
        if let Some((name, value)) = name.ok().zip(HeaderValue::from_bytes(value).ok()) {
            headers.append(name, value);
        }
    }
}
