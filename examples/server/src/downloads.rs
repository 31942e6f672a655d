//! `/in-flight`: slow downloads, which are counted while their bodies are open.
//!
//! The configuration's route at this path has the download as its handler. [`TOWER`] is that download under tower's own
//! `ConcurrencyLimit`, which counts requests until their response heads. [`OPEN`] has the counts for both.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use hyper::body::{Bytes, Frame, SizeHint};
use serde_json::{Value, json};
use tokio::time::{Interval, interval};
use tower::limit::ConcurrencyLimitLayer;

pub(crate) const PATH: &str = "/in-flight";
pub(crate) const TOWER: &str = "/in-flight/tower";
pub(crate) const OPEN: &str = "/in-flight/open";

/// A download takes three seconds.
const PIECES: u32 = 30;
const PIECE_EVERY: Duration = Duration::from_millis(100);

/// The limit that `/in-flight` has in `server.toml`.
const LIMIT: usize = 10;

/// One route's open bodies.
#[derive(Default)]
pub(crate) struct Downloads {
    now: AtomicU64,
    /// The most at any time since the start.
    most: AtomicU64,
}

impl Downloads {
    /// Responds with this JSON, slowly: white space follows it.
    pub(crate) fn download(self: &Arc<Self>, answer: &Value) -> Response {
        let now = 1 + self.now.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(now, Ordering::SeqCst);
        let open = Some(Open(Arc::clone(self)));
        let body = Download { text: answer.to_string().into(), left: PIECES, ticks: interval(PIECE_EVERY), open };
        ([(header::CONTENT_TYPE, "application/json")], Body::new(body)).into_response()
    }

    /// Returns how many bodies are open.
    pub(crate) fn open(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    fn counts(&self) -> Value {
        json!({ "now": self.open(), "most": self.most.load(Ordering::SeqCst) })
    }
}

/// Routes [`TOWER`] and [`OPEN`]. `limited` holds the downloads at [`PATH`].
pub(crate) fn router(limited: Arc<Downloads>) -> Router {
    let tower = Arc::new(Downloads::default());
    let counted = Arc::clone(&tower);
    let download = move || std::future::ready(tower.download(&json!({ "route": TOWER })));
    let open = move || std::future::ready(Json(json!({ "limited": limited.counts(), "tower": counted.counts() })));
    Router::new().route(TOWER, any(download).layer(ConcurrencyLimitLayer::new(LIMIT))).route(OPEN, get(open))
}

/// Counts a body as open until it is dropped.
struct Open(Arc<Downloads>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Download {
    /// The next piece.
    text: Bytes,
    /// How many pieces follow.
    left: u32,
    ticks: Interval,
    /// `None` once the last piece was returned.
    open: Option<Open>,
}

impl hyper::body::Body for Download {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.ticks.poll_tick(cx));
        self.left -= 1;
        if self.left == 0 {
            self.open = None;
        }
        let text = std::mem::replace(&mut self.text, Bytes::from_static(b" "));
        Poll::Ready(Some(Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        // The next piece, and a space for each other piece.
        let length = self.left.checked_sub(1).map_or(0, |spaces| u64::from(spaces) + self.text.len() as u64);
        SizeHint::with_exact(length)
    }
}
