//! Disguised requests to the example server: at limit 5, on every route and on its Echo service.

use http::Version;

use crate::echo;
use crate::server::Server;
use crate::wire::{MESSAGE, Spelled};

const PREFLIGHT: [(&str, &str); 2] = [("origin", "https://page.example"), ("access-control-request-method", "PUT")];

/// Twenty-one requests that a limiter might exempt by mistake.
fn disguised() -> Vec<(Spelled, Version)> {
    let dressed = |method, more: &[(&'static str, &str)], body| {
        let spelled = Spelled::new(method, &[PREFLIGHT.as_slice(), more].concat()).body(body);
        [Version::HTTP_11, Version::HTTP_2].map(|version| (spelled.clone(), version))
    };
    let grpc = ("content-type", "application/grpc");
    let mut all: Vec<_> = [
        dressed("OPTIONS", &[], b""),
        dressed("OPTIONS", &[], MESSAGE),
        dressed("OPTIONS", &[grpc], MESSAGE),
        dressed("OPTIONS", &[("content-type", "application/grpc-web")], MESSAGE),
        dressed("POST", &[grpc], MESSAGE),
        dressed("HEAD", &[], b""),
        dressed("TRACE", &[], b""),
        dressed("POST", &[("x-http-method-override", "OPTIONS")], b""),
        dressed("options", &[], b""),
        dressed("GET", &[("expect", "100-continue")], b""),
    ]
    .into_iter()
    .flatten()
    .collect();
    all.push((Spelled::new("OPTIONS", &[("origin", ""), ("access-control-request-method", "")]), Version::HTTP_2));
    assert_eq!(all.len(), 21);
    all
}

/// A route whose period takes years, so that no window ends during the test.
fn route(path: &str, algorithm: &str, more: &str) -> String {
    format!(
        "[[route]]\npath = \"{path}\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"{algorithm}\"\nlimit = 5\n\
         per = \"365days\"\nkey = \"client-ip\"\n{more}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_disguised_requests_pass_per_route() {
    let routes = [
        ("/token-bucket", "token-bucket", ""),
        ("/leaky-bucket", "leaky-bucket", ""),
        // No request may wait, so that five pass at once and the others are rejected.
        ("/leaky-queue", "leaky-queue", "burst = 5\nmax-queue = 0"),
        ("/fixed-window", "fixed-window", ""),
        ("/sliding-window", "sliding-window", ""),
        (echo::PATH, "token-bucket", ""),
        ("/any/{thing}", "token-bucket", ""),
    ];
    let config: String = routes.iter().map(|(path, algorithm, more)| route(path, algorithm, more)).collect();
    let server = Server::start_with(&config);
    for (path, ..) in routes {
        let mut passed = 0;
        for (spelled, version) in disguised() {
            let spelled = Spelled { path: path.replace("{thing}", "x"), ..spelled };
            let answer = spelled.ask(server.address, version).await;
            passed += usize::from(!answer.expect("the server answers").is_rejection());
        }
        assert_eq!(passed, 5, "{path}");
    }
}
