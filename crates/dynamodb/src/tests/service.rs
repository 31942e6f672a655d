//! DynamoDB in this process: an emulator, and the faults on the way to it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_sdk_dynamodb::config::http::{HttpRequest, HttpResponse};
use aws_sdk_dynamodb::config::{
    AsyncSleep, BehaviorVersion, Config, Credentials, IdentityCache, Region, Sleep, StalledStreamProtectionConfig,
};
use aws_sdk_dynamodb::error::ConnectorError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_sdk_dynamodb::{Client, config};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn};
use dynoxide::errors::DynoxideError;
use dynoxide::{Database, errors};
use serde_json::Value;
use tower_sluice::time::{Clock, ManualClock};

/// A request's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is carried out and answered.
    Answered,
    /// It is carried out after this time, and answered.
    Delayed(Duration),
    /// It is carried out, and answered after this time.
    Late(Duration),
    /// It is carried out, and the connection ends before the answer.
    AnswerLost,
    /// There is no connection.
    Refused,
    /// There is a connection, and never an answer.
    BlackHole,
    /// It is answered with this error of the service.
    Fails(u16, &'static str),
    /// It is answered with something that is not from DynamoDB.
    Garbled,
}

/// How many requests were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) writes: u32,
    /// Writes whose condition did not hold.
    pub(super) unmet: u32,
    pub(super) reads: u32,
}

type Decide = Box<dyn FnMut(&str) -> Fate + Send>;

struct Inner {
    database: Database,
    /// The service's own clock, which it sends as `Date`.
    clock: ManualClock,
    fate: Mutex<Decide>,
    counts: Mutex<Counts>,
    has_date: AtomicBool,
    last_write: Mutex<Option<Value>>,
}

/// The service. Clones share it.
#[derive(Clone)]
pub(super) struct Service(Arc<Inner>);

impl Service {
    pub(super) fn new(clock: ManualClock) -> Self {
        let database = Database::memory().expect("a database in memory");
        Self(Arc::new(Inner {
            database,
            clock,
            fate: Mutex::new(Box::new(|_| Fate::Answered)),
            counts: Mutex::default(),
            has_date: AtomicBool::new(true),
            last_write: Mutex::default(),
        }))
    }

    /// The client as an application passes it in. It retries, as the SDK does by default.
    pub(super) fn client(&self) -> Client {
        let connector = SharedHttpConnector::new(self.clone());
        let config = Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("eu-central-1"))
            .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
            .identity_cache(IdentityCache::no_cache())
            .sleep_impl(TokioSleep)
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .retry_config(config::retry::RetryConfig::standard().with_max_attempts(3))
            .http_client(http_client_fn(move |_, _| connector.clone()));
        Client::from_conf(config.build())
    }

    /// From now on, a request's fate depends on its operation.
    pub(super) fn decide(&self, fate: impl FnMut(&str) -> Fate + Send + 'static) {
        *self.0.fate.lock().unwrap() = Box::new(fate);
    }

    /// From now on, all requests have this fate.
    pub(super) fn all(&self, fate: Fate) {
        self.decide(move |_| fate);
    }

    /// From now on, answers have no `Date`.
    pub(super) fn send_no_date(&self) {
        self.0.has_date.store(false, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        *self.lock_counts()
    }

    pub(super) fn forget_counts(&self) {
        *self.lock_counts() = Counts::default();
    }

    fn lock_counts(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap()
    }

    /// The last write that was carried out.
    pub(super) fn last_write(&self) -> Value {
        self.0.last_write.lock().unwrap().clone().expect("a write")
    }

    /// Creates the table, without waiting.
    pub(super) fn create_table(&self) {
        let table = serde_json::json!({
            "TableName": super::TABLE, "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{ "AttributeName": "k", "KeyType": "HASH" }],
            "AttributeDefinitions": [{ "AttributeName": "k", "AttributeType": "S" }],
        });
        self.call("CreateTable", &table);
    }

    /// Makes a request by the test itself.
    pub(super) fn call(&self, operation: &str, request: &Value) -> Value {
        let answer = self.carry_out(operation, &request.to_string());
        serde_json::from_str(&answer.expect("the emulator takes it")).expect("JSON")
    }

    /// All items in the table.
    pub(super) fn items(&self) -> Vec<Value> {
        let answer = self.call("Scan", &serde_json::json!({ "TableName": super::TABLE }));
        answer["Items"].as_array().expect("a list").clone()
    }

    fn carry_out(&self, operation: &str, body: &str) -> errors::Result<String> {
        macro_rules! by {
            ($($name:literal => $method:ident),+) => {
                match operation {
                    $($name => serde_json::to_string(&self.0.database.$method(parse(body)?)?).map_err(json),)+
                    other => panic!("the emulator is not asked for {other}"),
                }
            };
        }
        by! {
            "UpdateItem" => update_item, "GetItem" => get_item, "DeleteItem" => delete_item, "PutItem" => put_item,
            "Scan" => scan, "CreateTable" => create_table, "DescribeTable" => describe_table,
            "UpdateTimeToLive" => update_time_to_live, "DescribeTimeToLive" => describe_time_to_live
        }
    }

    fn count(&self, operation: &str, body: &str, answer: &errors::Result<String>) {
        let mut counts = self.lock_counts();
        match operation {
            "GetItem" => {
                // A stale read would make writes fail unnecessarily.
                assert!(body.contains(r#""ConsistentRead":true"#), "{body}");
                counts.reads += 1;
            }
            "UpdateItem" | "DeleteItem" => {
                counts.writes += 1;
                counts.unmet += u32::from(matches!(answer, Err(DynoxideError::ConditionalCheckFailedException(..))));
                *self.0.last_write.lock().unwrap() = serde_json::from_str(body).ok();
            }
            _ => {}
        }
    }

    fn response(&self, answer: errors::Result<String>) -> HttpResponse {
        match answer {
            Ok(body) => self.respond(200, body),
            Err(error) => self.respond(error.status_code(), error.to_json()),
        }
    }

    fn respond(&self, status: u16, body: String) -> HttpResponse {
        let mut response = HttpResponse::new(status.try_into().expect("a status"), body.into());
        let seconds = i64::try_from(self.0.clock.now().as_nanos() / 1_000_000_000).expect("a time");
        let date = DateTime::from_secs(seconds).fmt(DateTimeFormat::HttpDate).expect("a date");
        if self.0.has_date.load(Ordering::Relaxed) {
            response.headers_mut().insert("date", date);
        }
        response.headers_mut().insert("content-type", "application/x-amz-json-1.0");
        response
    }

    async fn answer(self, operation: String, body: String) -> Result<HttpResponse, ConnectorError> {
        // The network: other tasks run before and after.
        tokio::task::yield_now().await;
        let fate = (self.0.fate.lock().unwrap())(&operation);
        let carry_out = || {
            let answer = self.carry_out(&operation, &body);
            self.count(&operation, &body, &answer);
            self.response(answer)
        };
        let broken = |problem: &str| ConnectorError::io(problem.into());
        let response = match fate {
            Fate::Answered => carry_out(),
            Fate::Delayed(delay) => {
                tokio::time::sleep(delay).await;
                carry_out()
            }
            Fate::Late(delay) => {
                let response = carry_out();
                tokio::time::sleep(delay).await;
                response
            }
            Fate::AnswerLost => {
                carry_out();
                return Err(broken("connection reset"));
            }
            Fate::Refused => return Err(broken("connection refused")),
            Fate::BlackHole => std::future::pending().await,
            Fate::Fails(status, code) => {
                self.count(&operation, &body, &Ok(String::new()));
                let error = format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"on purpose"}}"#);
                self.respond(status, error)
            }
            Fate::Garbled => self.respond(200, "<html>".to_owned()),
        };
        tokio::task::yield_now().await;
        Ok(response)
    }
}

fn parse<T: serde::de::DeserializeOwned>(body: &str) -> errors::Result<T> {
    serde_json::from_str(body).map_err(json)
}

#[allow(clippy::needless_pass_by_value)] // For `map_err`.
fn json(error: serde_json::Error) -> DynoxideError {
    DynoxideError::ValidationException(error.to_string())
}

impl HttpConnector for Service {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let target = request.headers().get("x-amz-target").expect("the operation");
        let operation = target.rsplit('.').next().expect("a name").to_owned();
        let body = request.body().bytes().expect("a body in memory");
        let body = String::from_utf8(body.to_vec()).expect("JSON");
        HttpConnectorFuture::new(self.clone().answer(operation, body))
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

/// The timer that an application's SDK has by its feature `rt-tokio`.
#[derive(Debug)]
struct TokioSleep;

impl AsyncSleep for TokioSleep {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(tokio::time::sleep(duration))
    }
}
