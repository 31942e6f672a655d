//! A server of the Model Context Protocol (MCP, revision 2026-07-28) that limits each user, and each user's calls to
//! each tool. Two headers name the method and the tool, so the limit parses no body: see page `mcp` of the guide.
//!
//! ```sh
//! cargo run -p examples --bin mcp
//! ```

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use serde_json::{Value, json};
use tower_sluice::direct::Limits;
use tower_sluice::key::{HeaderKey, User};
use tower_sluice::rejection::Reason;
use tower_sluice::{Policy, Quota, RateLimitLayer, Rejection, RequestHead};

/// The revision that this server speaks, and the first with both headers.
const REVISION: &str = "2026-07-28";

/// In bytes.
const LARGEST_BODY: usize = 1 << 20;

const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
const VERSION: &str = "mcp-protocol-version";

/// The specification's codes.
const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const HEADER_MISMATCH: i64 = -32020;
const UNSUPPORTED_VERSION: i64 = -32022;

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn calls_a_tool(request: &RequestHead<'_>) -> bool {
    text(request.headers(), METHOD) == Some("tools/call")
}

/// The units that a request takes from its user.
fn cost(request: &RequestHead<'_>) -> u64 {
    match (text(request.headers(), METHOD), text(request.headers(), NAME)) {
        // A client sends it first. If it were rejected, the client would take the server for an old one.
        (Some("server/discover"), _) => 0,
        (Some("tools/call"), Some("report")) => 10,
        _ => 1,
    }
}

fn limits() -> RateLimitLayer {
    let per_user = Policy::new("per-user", Quota::per_minute(60).burst(40)).key(User::key()).cost_fn(cost);
    let per_tool = Policy::new("per-tool", Quota::per_minute(30).burst(2))
        .key((User::key(), HeaderKey::from_static(NAME)))
        .when(calls_a_tool);
    RateLimitLayer::builder([per_user, per_tool]).rejection_response(reject).build()
}

/// A request's body. Each error needs the id in it, because some clients never report an error without an id.
#[derive(Clone)]
struct Message(Bytes);

impl Message {
    fn id(&self) -> Value {
        serde_json::from_slice::<Value>(&self.0).map_or(Value::Null, |message| message["id"].clone())
    }
}

/// Answers in place of the handler.
fn reject(rejection: &Rejection, request: &RequestHead<'_>) -> Response<String> {
    let id = request.extensions().get().map_or(Value::Null, Message::id);
    let body = json!({"jsonrpc": "2.0", "id": id, "error": error_of(rejection)});
    Response::builder()
        .status(rejection.status())
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.to_string())
        .expect("the parts are valid")
}

/// The member `error` of a JSON-RPC answer.
fn error_of(rejection: &Rejection) -> Value {
    let code = match rejection.reason() {
        // `Mcp-Name` is missing, or comes twice.
        Reason::MissingKey | Reason::AmbiguousKey => HEADER_MISMATCH,
        // Mostly 429. The specification leaves codes outside JSON-RPC's range to servers.
        _ => i64::from(rejection.status().as_u16()),
    };
    let violated: Vec<&str> = rejection.verdict().violated().map(|policy| policy.name()).collect();
    // Rounded up, as in `Retry-After`. Null if no wait helps.
    let seconds = rejection.retry_after().map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    json!({
        "code": code,
        "message": rejection.detail(),
        "data": {"retryAfter": seconds, "limits": violated},
    })
}

/// Goes outside of the limit. Finds the user, and rejects headers that must not become keys.
async fn authenticate(request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    // If the limit answered before the body is read, hyper would close the connection, and a client's next call on
    // it may fail.
    let Ok(body) = to_bytes(body, LARGEST_BODY).await else { return StatusCode::PAYLOAD_TOO_LARGE.into_response() };
    // Stands for your check of the token.
    let token = text(&head.headers, "authorization").and_then(|token| token.strip_prefix("Bearer of-"));
    let Some(user) = token.map(User::new) else {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response();
    };
    // We let no web page call this server, which also stops DNS rebinding.
    if head.headers.contains_key(header::ORIGIN) {
        return StatusCode::FORBIDDEN.into_response();
    }
    if let Some(error) = untrusted(&head.headers) {
        return failure(StatusCode::BAD_REQUEST, &Message(body).id(), &error);
    }
    head.extensions.insert(user);
    head.extensions.insert(Message(body.clone()));
    next.run(Request::from_parts(head, Body::from(body))).await
}

/// Rejects a revision without the headers, and a second spelling for a tool's name.
fn untrusted(headers: &HeaderMap) -> Option<Value> {
    match text(headers, VERSION) {
        Some(REVISION) => {}
        // An older client shows its user this message.
        None => return Some(error(HEADER_MISMATCH, "MCP-Protocol-Version is missing: this server speaks 2026-07-28")),
        Some(version) => {
            let mut error = error(UNSUPPORTED_VERSION, "Unsupported protocol version");
            error["data"] = json!({"supported": [REVISION], "requested": version});
            return Some(error);
        }
    }
    // A client encodes a name that a header cannot carry, which no name here needs. A plain name in Base64 would be a
    // second key, with a budget of its own.
    let is_encoded = headers.get_all(NAME).iter().any(|name| name.as_bytes().starts_with(b"=?base64?"));
    is_encoded.then(|| error(HEADER_MISMATCH, "Mcp-Name is in Base64: send the plain name"))
}

/// A report that a user asks for.
struct Report {
    user: String,
    pages: u64,
}

/// The number of pages is in the body, so the handler charges them.
fn pages() -> Limits<Report> {
    let pages = Policy::on("pages", Quota::per_minute(30).burst(20))
        .key_by(|report: &Report| report.user.clone())
        .cost_fn(|report| report.pages);
    Limits::new(pages)
}

async fn serve(
    State(pages): State<Limits<Report>>,
    Extension(user): Extension<User>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Ok(message) = serde_json::from_slice::<Value>(&body) else {
        return failure(StatusCode::BAD_REQUEST, &Value::Null, &error(PARSE_ERROR, "the body is not JSON"));
    };
    // This also rejects arrays and notifications, which the revision does not have.
    let (id, method) = (&message["id"], message["method"].as_str().unwrap_or_default());
    if id.is_null() || method.is_empty() {
        return failure(StatusCode::BAD_REQUEST, id, &error(INVALID_REQUEST, "the body is not a request"));
    }
    let params = &message["params"];
    if let Some(header) = mismatch(&headers, method, params) {
        let message = format!("{header} does not match the body");
        return failure(StatusCode::BAD_REQUEST, id, &error(HEADER_MISMATCH, message));
    }
    match method {
        "server/discover" => {
            let about = json!({"supportedVersions": [REVISION], "capabilities": {"tools": {}}});
            result(id, about, 3_600_000)
        }
        "tools/list" => result(id, json!({"tools": tools()}), 60_000),
        "tools/call" => call(id, params, &user, &pages).await,
        _ => failure(StatusCode::NOT_FOUND, id, &error(METHOD_NOT_FOUND, "Method not found")),
    }
}

/// Returns the header that differs from the body. The limits counted the tool in the header, so we run only that tool.
fn mismatch(headers: &HeaderMap, method: &str, params: &Value) -> Option<&'static str> {
    let differs =
        |header: &str, value: Option<&str>| headers.get(header).map(HeaderValue::as_bytes) != value.map(str::as_bytes);
    if differs(METHOD, Some(method)) {
        return Some("Mcp-Method");
    }
    if differs(VERSION, params["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str()) {
        return Some("MCP-Protocol-Version");
    }
    (method == "tools/call" && differs(NAME, params["name"].as_str())).then_some("Mcp-Name")
}

fn tools() -> Value {
    let no_arguments = json!({"type": "object"});
    let pages = json!({"type": "object", "properties": {"pages": {"type": "integer", "minimum": 1}}});
    json!([
        {"name": "look_up", "description": "Looks a word up.", "inputSchema": no_arguments},
        {"name": "report", "description": "Writes a report of some pages.", "inputSchema": pages},
    ])
}

async fn call(id: &Value, params: &Value, user: &User, pages: &Limits<Report>) -> Response {
    let said = match params["name"].as_str() {
        Some("look_up") => "a word".to_owned(),
        Some("report") => {
            let report =
                Report { user: user.id().to_owned(), pages: params["arguments"]["pages"].as_u64().unwrap_or(1) };
            match pages.decide(&report).await {
                Ok(admission) => admission.finish(),
                // At status 200, all clients hand the error and its data to their caller.
                Err(rejected) => return failure(StatusCode::OK, id, &error_of(&Rejection::from(*rejected))),
            }
            format!("a report, pages: {}", report.pages)
        }
        _ => return failure(StatusCode::BAD_REQUEST, id, &error(INVALID_PARAMS, "Unknown tool")),
    };
    let result = json!({"resultType": "complete", "content": [{"type": "text", "text": said}]});
    success(id, &result)
}

/// A result that clients may cache for this time.
fn result(id: &Value, mut result: Value, milliseconds: u32) -> Response {
    result["resultType"] = "complete".into();
    result["ttlMs"] = milliseconds.into();
    result["cacheScope"] = "public".into();
    success(id, &result)
}

fn error(code: i64, message: impl Into<Value>) -> Value {
    json!({"code": code, "message": message.into()})
}

fn success(id: &Value, result: &Value) -> Response {
    Json(json!({"jsonrpc": "2.0", "id": id, "result": result})).into_response()
}

fn failure(status: StatusCode, id: &Value, error: &Value) -> Response {
    (status, Json(json!({"jsonrpc": "2.0", "id": id, "error": error}))).into_response()
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let app = Router::new()
        .route("/mcp", post(serve))
        .layer(limits())
        .layer(from_fn(authenticate)) // the last is the outermost
        .with_state(pages());

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    for (tool, times) in [("report", "1 2 3"), ("look_up", "1")] {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": REVISION});
        let params = json!({"name": tool, "_meta": meta});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        println!(
            "try: for i in {times}; do curl -s -w ' %{{http_code}}\\n' -H 'authorization: Bearer of-ada' \
             -H 'content-type: application/json' -H '{VERSION}: {REVISION}' -H '{METHOD}: tools/call' \
             -H '{NAME}: {tool}' -d '{body}' {url}/mcp; done"
        );
    }
    axum::serve(listener, app).await
}
