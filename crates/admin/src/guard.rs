//! Decides which requests are answered at all: those that another site's page makes a browser send are not.
//!
//! This does not replace a guard against people. Everyone who reaches the address may do everything.

use std::net::IpAddr;

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, StatusCode, header};

use super::problem::Problem;

/// Rejects a request for a name that is not this server's.
///
/// Another site's page can make its own name resolve to this server's address (DNS rebinding), and the browser then
/// takes it for this server's origin. The page cannot do so with an address, or with a name that it does not own.
pub(crate) fn check_host(parts: &Parts, hosts: &[String]) -> Result<(), Problem> {
    let is_own = |host: Authority| {
        let name = host.host().trim_matches(['[', ']']);
        let is_address = name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost");
        is_address || hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    // Every browser sends it.
    let has_none = parts.uri.authority().is_none() && !parts.headers.contains_key(header::HOST);
    if has_none || host(parts).is_some_and(is_own) {
        return Ok(());
    }
    let cure = "this is no name of the admin service; use its address, or allow the name by `Admin::host`";
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, cure))
}

/// Rejects a call that comes from another site's page.
///
/// Browsers add `Sec-Fetch-Site` to each request, and `Origin` to all but simple reads, and pages cannot change them.
/// Other clients do not send either, and pass.
pub(crate) fn check_site(parts: &Parts) -> Result<(), Problem> {
    let site = parts.headers.get("sec-fetch-site").map(|site| site.as_bytes());
    let is_same_site = matches!(site, None | Some(b"same-origin" | b"none"));
    let is_same_origin = parts.headers.get(header::ORIGIN).is_none_or(|origin| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let own = host(parts);
        origin.zip(own).is_some_and(|((_, origin), own)| origin.eq_ignore_ascii_case(own.as_str()))
    });
    if is_same_site && is_same_origin {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, "a page of another site sent this call; use the admin page, or curl"))
}

/// Rejects a body that is not declared as JSON.
///
/// A form on another site can send some other types without asking first. For this type, a browser asks by a preflight,
/// which this server never allows.
pub(crate) fn check_type(fields: &HeaderMap) -> Result<(), Problem> {
    let media_type = fields.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send JSON, with `content-type: application/json`"))
}

/// Returns the name and the port that the request is for. Over HTTP/2, the URI has them.
fn host(parts: &Parts) -> Option<Authority> {
    let field = || Authority::try_from(parts.headers.get(header::HOST)?.as_bytes()).ok();
    parts.uri.authority().cloned().or_else(field)
}
