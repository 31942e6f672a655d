//! `max-keys` for policies in memory, and the program's own keys.

use std::convert::Infallible;
use std::future::ready;

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::key::{HeaderKey, KeyExtractor};
use tower_sluice_config::Config;

use crate::with;

/// This holds for buckets and windows.
#[test]
fn max_keys_sizes_the_tables() {
    for algorithm in ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window"] {
        let capacity = |lines: &str| {
            let text = with(&format!("algorithm = \"{algorithm}\"\n{lines}"));
            let config = Config::parse("f.toml", &text).unwrap();
            config.routes()[0].layer().unwrap().handle().policies()[0].stats().table.unwrap().capacity
        };
        assert_eq!(capacity(""), 65_536, "{algorithm}");
        assert!((1_000_000..1_100_000).contains(&capacity("max-keys = 1_000_000")), "{algorithm}");
    }
    let month = format!("{}max-keys = 9", with("per = \"month\"").replace("token-bucket", "fixed-window"));
    Config::parse("f.toml", &month).unwrap_or_else(|error| panic!("{error}"));
}

type Custom = Option<Result<Box<dyn KeyExtractor>, String>>;

/// `tenant` is a key, and `tenant:…` is a mistake.
fn tenant(policy: &str, names: &[String]) -> Custom {
    match names {
        [name] if name == "tenant" => Some(Ok(Box::new(HeaderKey::from_static("x-tenant")))),
        [name] if name.starts_with("tenant:") => Some(Err(format!("`{policy}`: write tenant"))),
        _ => None,
    }
}

fn send(config: &Config, tenant: &'static str) -> u16 {
    let answer = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let mut request = Request::new(());
    request.headers_mut().insert("x-tenant", tenant.parse().unwrap());
    let service = config.routes()[0].layer().unwrap().layer(answer);
    service.oneshot(request).now_or_never().unwrap().unwrap().status().as_u16()
}

#[test]
fn custom_keys_work_after_a_change() {
    let text = |limit: u32, key: &str| {
        format!(
            "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"fixed-window\"\nlimit = {limit}\n\
             per = \"1day\"\nkey = \"{key}\""
        )
    };
    let mut config = Config::reader().keys(tenant).parse("f.toml", &text(1, "tenant")).unwrap();
    assert_eq!(["ada", "ada", "bob"].map(|tenant| send(&config, tenant)), [200, 429, 200]);
    config.change("f.toml", &text(2, "tenant")).unwrap();
    assert_eq!(["ada", "ada", "bob"].map(|tenant| send(&config, tenant)), [200, 429, 200]);

    let error = config.change("f.toml", &text(2, "tenant:a")).unwrap_err().to_string();
    assert_eq!(error, "f.toml:8: `p`: write tenant");
    let error = Config::parse("f.toml", &text(1, "tenant")).unwrap_err().to_string();
    assert!(error.starts_with("f.toml:8: unknown key `tenant`"), "{error}");
}
