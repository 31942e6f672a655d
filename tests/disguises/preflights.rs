//! Preflights of CORS: counted like all requests.

use http::Version;

use super::mounts::Mount;
use super::wire::{MESSAGE, Spelled};
use super::{Admitted, per_client};

/// As a gRPC client would send it, but for the method and two fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_thousand_disguised_calls_reaches_an_echo_of_tonic() {
    let admitted = Admitted::default();
    let address = Mount::Tonic.serve(per_client(1), &admitted).await;
    let call = Spelled::new(
        "OPTIONS",
        &[
            ("origin", "https://page.example"),
            ("access-control-request-method", "POST"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ],
    )
    .body(MESSAGE);
    let first = call.ask(address, Version::HTTP_2).await.unwrap();
    assert_eq!(first.field("grpc-status"), Some("0"), "tonic serves it: {first:?}");
    let mut rejected = 0;
    for _ in 1..1_000 {
        rejected += usize::from(call.ask(address, Version::HTTP_2).await.unwrap().is_rejection());
    }
    assert_eq!((admitted.count(), rejected), (1, 999));
}
