//! Finds who answers a call. The calls that proxies make for each request go past axum's router, which takes a tenth of
//! an answer's instructions: it matches the path, copies its parameters, and boxes three futures.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use http::header::{ALLOW, CONTENT_LENGTH};
use http::{HeaderValue, Method, Response, StatusCode};
use http_body::Body as _;
use tower::ServiceExt;

use super::limits::Limits;
use super::{auth, rls};

#[derive(Clone)]
pub(crate) struct Front {
    limits: Arc<Limits>,
    /// Answers all other calls.
    router: Router,
}

impl Front {
    pub(crate) fn new(limits: Arc<Limits>, router: Router) -> Self {
        Self { limits, router }
    }

    pub(crate) async fn answer(self, call: Request) -> Result<Response<Body>, Infallible> {
        let path = call.uri().path();
        let status = match path {
            auth::PATH_WITH_401 => Some(StatusCode::UNAUTHORIZED),
            auth::PATH_WITH_403 => Some(StatusCode::FORBIDDEN),
            _ if auth::is_path(path) => None,
            rls::PATH if call.method() == Method::POST => return Ok(rls::answer(&self.limits, call).await),
            rls::PATH => return Ok((StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "POST")]).into_response()),
            _ => return self.router.oneshot(call).await,
        };
        // Some proxies ask by the client's own method.
        let is_head = call.method() == Method::HEAD;
        let answer = auth::decide(&self.limits, call, status).await;
        Ok(if is_head { without_body(answer) } else { answer })
    }
}

/// The answer to a `HEAD` (RFC 9110, section 9.3.2). With HTTP/2, hyper would send the body.
fn without_body(mut answer: Response<Body>) -> Response<Body> {
    let body = std::mem::take(answer.body_mut());
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    answer
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http::Version;

    use super::*;
    use crate::serve::domains::Store;
    use crate::serve::sources::Texts;
    use crate::stores;

    async fn ask(method: Method, path: &str) -> (u16, Option<String>, Option<u64>) {
        let limits = Limits::read(stores::reader(), &Texts::default(), Store::Memory { max_keys: 1 }).unwrap();
        let front = Front::new(Arc::new(limits), Router::new().route("/", get(|| async { "others" })));
        let mut call = Request::new(Body::empty());
        (*call.method_mut(), *call.version_mut(), *call.uri_mut()) = (method, Version::HTTP_2, path.parse().unwrap());
        let answer = front.answer(call).await.unwrap();
        let field = |name| Some(answer.headers().get(name)?.to_str().unwrap().to_owned());
        (answer.status().as_u16(), field(CONTENT_LENGTH).or(field(ALLOW)), answer.body().size_hint().exact())
    }

    #[tokio::test]
    async fn an_answer_to_head_has_no_body() {
        for (path, status) in [("/auth", 400), ("/auth-401", 401), ("/auth-403", 403)] {
            let (found, _, body) = ask(Method::GET, path).await;
            assert_eq!(found, status);
            let length = body.filter(|length| *length > 0).expect("the problem in words");
            assert_eq!(ask(Method::HEAD, path).await, (status, Some(length.to_string()), Some(0)), "{path}");
        }
    }

    #[tokio::test]
    async fn each_path_has_its_answer() {
        for (method, path, expected) in [
            (Method::GET, "/", 200),
            (Method::GET, "/auth/", 404),
            (Method::OPTIONS, "/auth//x", 404),
            (Method::GET, "/authx", 404),
            (Method::GET, "/auth-403/", 404),
            (Method::POST, "/auth-403?x=1", 403),
            (Method::GET, rls::PATH, 405),
        ] {
            assert_eq!(ask(method, path).await.0, expected, "{path}");
        }
    }
}
