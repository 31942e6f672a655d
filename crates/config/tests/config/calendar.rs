//! Calendar windows in a file.

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice_config::Config;

use crate::error;

/// A route with a fixed-window policy that has these lines, from the file's 6th on.
fn with(lines: &str) -> String {
    format!("[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"plan\"\nlimit = 10_000\n{lines}\n")
}

fn fixed(lines: &str) -> String {
    with(&format!("algorithm = \"fixed-window\"\n{lines}"))
}

/// The fields in the response to the first request.
async fn fields(lines: &str) -> [String; 2] {
    let config = Config::parse("f.toml", &fixed(lines)).unwrap_or_else(|error| panic!("{error}"));
    let service = service_fn(|_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new(())) });
    let layer = config.routes()[0].layer().unwrap();
    let response = layer.layer(service).oneshot(Request::new(())).await.unwrap();
    ["ratelimit-policy", "ratelimit"].map(|name| response.headers()[name].to_str().unwrap().to_owned())
}

#[tokio::test]
async fn calendar_periods_make_calendar_windows() {
    for lines in [
        "per = \"day\"",
        "per = \"week\"\nweek-start = \"sunday\"",
        "per = \"month\"\nanchor = 31\nzone = \"America/New_York\"",
        "zone = \"europe/berlin\"\nper = \"month\"",
        "per = \"month\"\nstaggered = false",
    ] {
        let [policy, state] = fields(lines).await;
        assert_eq!(policy, "\"plan\";q=10000", "{lines}");
        assert!(state.starts_with("\"plan\";r=9999;t="), "{lines}: {state}");
    }
    // A time with a number has one length.
    assert_eq!(fields("per = \"1day\"").await[0], "\"plan\";q=10000;w=86400");
}

#[test]
fn mistakes_have_line_and_cure() {
    let calendar = "per = \"month\"\n";
    for (text, expected) in [
        (
            fixed(&format!("{calendar}zone = \"Europe/Berlln\"")),
            "f.toml:8: zone: \"Europe/Berlln\" is no time zone; write a name of the IANA database, such as Europe/Berlin, or UTC",
        ),
        (
            fixed(&format!("{calendar}zone = 3")),
            "f.toml:8: zone = 3: write a text in quotation marks, such as \"Europe/Berlin\"",
        ),
        (
            fixed(&format!("{calendar}anchor = 32")),
            "f.toml:8: anchor = 32 is out of range; write a number from 1 to 31",
        ),
        (fixed(&format!("{calendar}anchor = 0")), "f.toml:8: anchor = 0 is out of range; write a number from 1 to 31"),
        (
            fixed("per = \"week\"\nanchor = 3"),
            "f.toml:8: anchor is for per = \"month\", and not for per = \"week\"; remove it or change per",
        ),
        (
            fixed(&format!("{calendar}week-start = \"monday\"")),
            "f.toml:8: week-start is for per = \"week\", and not for per = \"month\"; remove it or change per",
        ),
        (
            fixed("per = \"week\"\nweek-start = \"mon\""),
            "f.toml:8: week-start = \"mon\": write \"monday\", \"tuesday\", \"wednesday\"",
        ),
        (
            fixed("per = \"1day\"\nzone = \"Europe/Berlin\""),
            "f.toml:8: zone is for per = \"day\", \"week\" or \"month\", and not for per = \"1day\"; remove it or change per",
        ),
        (
            with("algorithm = \"token-bucket\"\nper = \"month\""),
            "f.toml:7: per = \"month\" is for fixed-window; choose that algorithm, or write a time such as 1day",
        ),
        (
            fixed(&format!("{calendar}staggered = true")),
            "f.toml:8: staggered is for windows of one length, and not for per = \"month\"; remove it",
        ),
        (
            fixed(&format!("{calendar}burst = 3")),
            "f.toml:8: burst is for token-bucket, leaky-bucket, leaky-queue and slow-down; remove it or choose that algorithm",
        ),
        (fixed("per = \"months\""), "f.toml:7: per = \"months\" is not a time; write 250ms, 1s, 1m, 1h or 1day"),
    ] {
        let error = error(&text);
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Units that were used in the present window count in the other zone's present window.
#[tokio::test]
async fn changing_the_zone_keeps_the_count() {
    let text = |zone| fixed(&format!("per = \"month\"\nzone = \"{zone}\""));
    let mut config = Config::parse("f.toml", &text("UTC")).unwrap();
    let layer = config.routes()[0].layer().cloned().unwrap();
    let service = service_fn(|_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new(())) });
    for (zone, left) in [("UTC", 9_999), ("Europe/Berlin", 9_998), ("Asia/Kolkata", 9_997)] {
        assert!(config.change("f.toml", &text(zone)).unwrap().not_inherited().is_empty());
        let response = layer.layer(service).oneshot(Request::new(())).await.unwrap();
        let state = response.headers()["ratelimit"].to_str().unwrap();
        assert!(state.starts_with(&format!("\"plan\";r={left};t=")), "{zone}: {state}");
    }
}
